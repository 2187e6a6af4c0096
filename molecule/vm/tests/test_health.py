# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of molecule/health/tests/table.py that need this kernel or a Docker daemon: broken, seen, mended, seen."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest
from slot_docker import SLOT, Docker
from test_attacks import MUTATIONS, changed

if t.TYPE_CHECKING:
    from conftest import Guest

Bad = dict[tuple[str, str], str]

PROFILES = "/etc/apparmor.d/confined-slots"
UNIT = f"confined-slots-docker@{SLOT}.service"
WORKSPACE = "/var/lib/confined-slots/slots/coder/workspaces/review"
QUOTA = "size=8m,usrquota,usrquota_block_hardlimit=1m,uid=$(id -u slot-coder),gid=$(id -g slot-coder),mode=0700"
AS_CODER = "setpriv --reuid=slot-coder --regid=slot-coder --clear-groups"


@dataclasses.dataclass(frozen=True)
class Row:
    """What a check looks at, how that is broken and mended, and what else follows from it."""

    check: str
    slot: str
    broken: str
    mended: str
    state: str = "critical"
    also: Bad = dataclasses.field(default_factory=dict)


ROWS = (
    Row(
        "apparmor",
        "",
        "printf confined-slots-slotctl > /sys/kernel/security/apparmor/.remove",
        f"apparmor_parser --quiet --replace {PROFILES}",
    ),
    Row(
        "apparmor-attached",
        "coder",
        f"apparmor_parser --quiet --skip-cache --Complain --replace {PROFILES}",
        f"apparmor_parser --quiet --skip-cache --replace {PROFILES}",
        also={("", "apparmor"): "critical"},
    ),
    Row(
        "docker",
        SLOT,
        f"systemctl stop {UNIT}",
        f"systemctl start {UNIT}; until slotctl status {SLOT} >/dev/null; do sleep 1; done",
        also={(SLOT, "docker-secrets"): "unknown"},
    ),
    Row(
        "quota",
        "coder",
        f"mount -t tmpfs -o {QUOTA} tmpfs {WORKSPACE}; {AS_CODER} head -c 1000000 /dev/zero > {WORKSPACE}/most",
        f"umount {WORKSPACE}",
        "warn",
    ),
)


def bad_of(guest: Guest, slot: str) -> Bad:
    """Return what is not ok of the host (slot "") and of a slot."""
    done = guest.asked(f"slotctl health {slot or 'coder'} --json")
    found = json.loads(done.stdout)
    each = [("", one) for one in found["checks"]]
    each += [(name["slot"], one) for name in found["slots"] for one in name["checks"]]
    return {(name, one["check"]): one["state"] for name, one in each if one["state"] != "ok"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.check)
def test_exactly_the_check_of_what_is_broken_turns_and_turns_back(row: Row, guest: Guest) -> None:
    well = bad_of(guest, row.slot)
    assert (row.slot, row.check) not in well
    try:
        guest.run(f"set -e; {row.broken}")
        found = bad_of(guest, row.slot)
    finally:
        guest.run(row.mended)
    assert found == {**well, **row.also, (row.slot, row.check): row.state}
    assert bad_of(guest, row.slot) == well


def test_a_daemon_that_sees_a_home_is_told_and_no_longer_once_it_does_not(guest: Guest) -> None:
    docker = Docker(guest.host, SLOT)
    well = bad_of(guest, SLOT)
    with changed(docker, *MUTATIONS["homes"]):
        found = bad_of(guest, SLOT)
    assert found == {**well, (SLOT, "docker-secrets"): "critical"}
    assert bad_of(guest, SLOT) == well
