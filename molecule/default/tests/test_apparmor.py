# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""AppArmor's profiles before each distribution's parser; that a kernel obeys them is shown in the scenario vm."""

from __future__ import annotations

import shlex
import typing as t

from confined_slots import _apparmor, _apparmor_profiles
from confined_slots._apparmor import PROFILES, Found

if t.TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://slot_hosts"]


def parses(host: Host, text: str, abi: str) -> bool:
    """Return whether the host's parser takes the text; without a kernel's word it has the features of the ABI."""
    parser = f"/usr/sbin/apparmor_parser --skip-kernel-load --skip-cache --features-file={PROFILES}/abi/{abi} --quiet"
    return bool(host.run(f"printf %s {shlex.quote(text)} | {parser}").rc == 0)


def test_bw_04_the_parser_of_each_distribution_takes_the_profiles_that_are_written_for_it(host: Host) -> None:
    abis = tuple(host.check_output(f"ls {PROFILES}/abi").split())
    highest = max(set(abis) & set(_apparmor_profiles.ABIS))
    assert parses(host, _apparmor.text(Found(True, abis=abis)), highest)
    # what an older parser does not know is what would take apparmor.service down with it
    assert parses(host, _apparmor_profiles.text("4.0").replace("abi/4.0", f"abi/{highest}"), highest) == (
        highest == "4.0"
    )


def test_bw_04_a_kernel_without_apparmor_gets_no_profile(host: Host) -> None:
    if host.run("test -d /sys/kernel/security/apparmor/features").rc != 0:
        assert not host.file("/etc/apparmor.d/confined-slots").exists
