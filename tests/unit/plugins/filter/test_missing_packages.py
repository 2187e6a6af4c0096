# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages a host lacks, by the files that they bring."""

from __future__ import annotations

from ansible_collections.confined.slots.plugins.filter.missing_packages import missing_packages

NEEDS = [
    {"package": "sudo", "file": "/usr/bin/sudo"},
    {"package": "python3-seccomp", "file": "/usr/lib/python3/dist-packages/seccomp.*.so"},
]


def test_a_package_is_there_if_a_file_of_it_is() -> None:
    assert missing_packages(NEEDS, []) == ["sudo", "python3-seccomp"]
    found = ["/usr/lib/python3/dist-packages/seccomp.cpython-313-x86_64-linux-gnu.so", "/usr/bin/sudoedit"]
    assert missing_packages(NEEDS, found) == ["sudo"]
    assert missing_packages([], found) == []
