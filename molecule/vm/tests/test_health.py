# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of molecule/health/tests/table.py that need this kernel or a Docker daemon: broken, seen, mended, seen."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _health
from slot_docker import OTHER, SLOT, Docker
from test_attacks import MUTATIONS, changed
from waiting import until

if t.TYPE_CHECKING:
    from conftest import Guest

Bad = dict[tuple[str, str], str]

PROFILES = "/etc/apparmor.d/confined-slots"
UNIT = f"confined-slots-docker@{SLOT}.service"
WORKSPACE = "/var/lib/confined-slots/slots/coder/workspaces/review"
# One mebibyte for the account on a file system of its own, by the kernel's interface: a host need not have setquota.
SET_QUOTA = """
import ctypes, os, pwd, struct, sys
limits = struct.pack("8QI", 1024, *[0] * 7, 1)
where = os.open(sys.argv[1], os.O_RDONLY)
uid = ctypes.c_int(pwd.getpwnam("slot-coder").pw_uid)
sys.exit(ctypes.CDLL(None).syscall(443, where, 0x800008 << 8, uid, limits))
"""
QUOTA = f"""
ids=$(id -u slot-coder):$(id -g slot-coder)
truncate --size=16M /run/quota
mke2fs -q -t ext4 -O quota -E root_owner=$ids /run/quota
mount -o loop,usrquota /run/quota {WORKSPACE}
chmod 0700 {WORKSPACE}
python3 -c '{SET_QUOTA}' {WORKSPACE}
setpriv --reuid=slot-coder --regid=slot-coder --clear-groups head -c 1000000 /dev/zero > {WORKSPACE}/most
chown $ids {WORKSPACE}/most
"""
# Exactly this profile allows what it forbids, and says so to the log.
COMPLAINS = f"sed '/^profile confined-slots-payload /s/flags=(/flags=(complain, /' {PROFILES}"
# What a check says whose time is up, which on an emulated processor says nothing of the host.
LATE = ("did not end in", "in time", "the budget of", "nothing answers on /run/confined-slots-docker")


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
        f"{COMPLAINS} | apparmor_parser --quiet --skip-cache --replace",
        f"apparmor_parser --quiet --skip-cache --replace {PROFILES}",
        also={("", "apparmor"): "critical", **{(slot, "apparmor-attached"): "critical" for slot in (SLOT, OTHER)}},
    ),
    Row(
        "docker",
        SLOT,
        f"systemctl stop {UNIT}",
        f"systemctl start {UNIT}; {until(f'slotctl status {SLOT} >/dev/null')}",
        also={(SLOT, "docker-secrets"): "unknown"},
    ),
    Row(
        "quota",
        "coder",
        QUOTA,
        f"umount {WORKSPACE}; rm /run/quota",
        "warn",
    ),
)


def bad_of(guest: Guest) -> Bad:
    """Return what is not ok, by slot ("" for the host) and check; asked again while a check's time did not suffice."""
    for _unused in range(4):
        found = _health.check_report(json.loads(guest.asked("slotctl health --json --budget 300").stdout))
        bad = [(slot, each) for slot, each in _health.every(found) if each["state"] != "ok"]
        if not any(words in each["found"] for _slot, each in bad for words in LATE):
            break
    return {(slot, each["check"]): each["state"] for slot, each in bad}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.check)
def test_exactly_the_check_of_what_is_broken_turns_and_turns_back(row: Row, guest: Guest) -> None:
    well = bad_of(guest)
    assert (row.slot, row.check) not in well
    try:
        guest.run(f"set -e; {row.broken}")
        found = bad_of(guest)
    finally:
        guest.run(row.mended)
    assert found == {**well, **row.also, (row.slot, row.check): row.state}
    assert bad_of(guest) == well


def test_a_daemon_that_sees_a_home_is_told_and_no_longer_once_it_does_not(guest: Guest) -> None:
    docker = Docker(guest.host, SLOT)
    well = bad_of(guest)
    with changed(docker, *MUTATIONS["homes"]):
        found = bad_of(guest)
    assert found == {**well, (SLOT, "docker-secrets"): "critical"}
    assert bad_of(guest) == well
