# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which directories processes need: found by program, directory, command line and mounts."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest
from ansible_collections.confined.slots.plugins.module_utils._in_use import in_use


@pytest.mark.parametrize("how", ["program", "directory", "command line"])
def test_a_directory_is_in_use_while_a_process_needs_it(tmp_path: pathlib.Path, how: str) -> None:
    needed, other = tmp_path / "1.0-a", tmp_path / "1.0-ab"
    for directory in (needed, other):
        (directory / "bin").mkdir(parents=True)
        (directory / "bin/script.py").write_text("print(flush=True); input()")
    program = shutil.copy("/bin/cat", needed / "bin/cat") if how == "program" else sys.executable
    words = {"program": [program], "directory": ["cat"], "command line": [program, str(needed / "bin/script.py")]}[how]
    directory = needed if how == "directory" else "/"
    with subprocess.Popen(words, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            if how == "command line" and process.stdout:
                process.stdout.readline()  # before it has run on, the kernel may not show its words
            assert in_use([str(needed), str(other)]) == {str(needed)}
        finally:
            process.communicate(b"\n")
    assert in_use([str(needed), str(other)]) == set()


def process_at(proc: pathlib.Path, pid: int, mountinfo: str = "") -> pathlib.Path:
    """Lay out a process that needs nothing, with mounts."""
    directory = proc / str(pid)
    (directory / "ns").mkdir(parents=True)
    (directory / "exe").symlink_to("/usr/bin/cat")
    (directory / "cwd").symlink_to("/")
    (directory / "cmdline").write_bytes(b"cat\0")
    (directory / "ns/mnt").symlink_to(f"mnt:[{pid}]")
    (directory / "mountinfo").write_text(mountinfo)
    return directory


@pytest.mark.parametrize("fields", ["/opt/p/1 /elsewhere", "/elsewhere /opt/p/1", "/opt/p/1/bin /x"])
def test_what_is_mounted_into_a_sandbox_is_in_use(tmp_path: pathlib.Path, fields: str) -> None:
    process_at(tmp_path, 4194300, f"36 35 98:0 {fields} ro,nosuid - ext4 /dev/sda rw\n")
    assert in_use(["/opt/p/1", "/opt/p/11"], str(tmp_path)) == {"/opt/p/1"}


def test_a_process_that_ended_or_may_not_be_looked_into_is_passed_over(tmp_path: pathlib.Path) -> None:
    (tmp_path / "4194300").mkdir()
    (tmp_path / "self").mkdir()
    process_at(tmp_path, 4194301)
    assert in_use(["/opt/p/1"], str(tmp_path)) == set()


def test_nothing_is_looked_at_when_nothing_is_asked(tmp_path: pathlib.Path) -> None:
    assert in_use([], str(tmp_path / "missing")) == set()
