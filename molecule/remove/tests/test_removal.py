# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""RD-11: a slot that is removed leaves nothing that the next one could inherit, wherever the removal is interrupted."""

from __future__ import annotations

import collections.abc
import subprocess
import typing as t

import pytest
from waiting import until

if t.TYPE_CHECKING:
    from conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

LEAVER: dict[str, t.Any] = {
    "name": "leaver",
    "workspaces": ["main"],
    "credential": {"name": "API_KEY", "value": "sk-left-behind"},
}
STATE = "/var/lib/confined-slots/slots/leaver"
ARCHIVE = "/var/lib/confined-slots/archive"
ARCHIVED_FILE = "workspaces/main/work.txt"

# What a program of the slot, or an operator for it, may leave on a host. Each line is a mutation of an empty slot too:
# before the removal the matching trace below must be there.
LEAVE = """
set -e
slotctl=/opt/confined-slots/current/bin/slotctl
setsid -f $slotctl run leaver -- -c 'sleep 600' </dev/null >/dev/null 2>&1
cd {state}/workspaces/main
su slot-leaver -s /bin/sh -c '
  echo done > work.txt; ln -s /etc/shadow shadow; ln -s / everything; mkfifo pipe; mkdir closed; echo x > closed/y
  chmod 000 closed; cp /bin/true setuid; chmod 4755 setuid; printf x > "$(printf "line\\nbreak")"
  i=0; while [ $i -lt 1500 ]; do mkdir d; cd -P d; i=$((i + 1)); done'
echo sub > container; chown {sub}:{sub} container; chmod 600 container
ln -s /etc {state}/home/.ssh; chown -h slot-leaver: {state}/home/.ssh
su slot-leaver -s /bin/sh -c 'trap "" TERM HUP; setsid -f sleep 7001 </dev/null >/dev/null 2>&1'
setsid -f setpriv --reuid={sub} --regid={sub} --clear-groups sleep 7002 </dev/null >/dev/null 2>&1
echo '0 0 1 1 * true' | crontab -u slot-leaver -
su slot-leaver -s /bin/sh -c 'echo true | at now + 20 hours' 2>/dev/null
mkdir -p /var/lib/systemd/linger; touch /var/lib/systemd/linger/slot-leaver
echo mail > /var/mail/slot-leaver; chown slot-leaver /var/mail/slot-leaver
mkdir -p /srv/shared; chmod 711 /srv/shared; echo shared > /srv/shared/file; chmod 600 /srv/shared/file
setfacl -m u:{uid}:r /srv/shared/file
"""

TRACES = {
    "account": "grep -q '^slot-leaver:' /etc/passwd",
    "password": "grep -q '^slot-leaver:' /etc/shadow",
    "group": "grep -q '^slot-leaver:' /etc/group",
    "subordinate uids": "grep -Eq '^(slot-leaver|{uid}):' /etc/subuid",
    "subordinate gids": "grep -Eq '^(slot-leaver|{uid}):' /etc/subgid",
    "processes": "ps -eo ruid= | grep -qw {uid}",
    "processes of subordinate ids": "ps -eo ruid= | grep -qw {sub}",
    "session": "systemctl list-units --plain --no-legend | grep -q confined-slots-leaver",
    "slice": "test -e /etc/systemd/system/confined-slots-leaver.slice",
    "crontab": "crontab -u slot-leaver -l >/dev/null || test -e /var/spool/cron/crontabs/slot-leaver",
    "at job": "find /var/spool/cron -uid {uid} -path '*/at*' | grep -q .",
    "lingering": "test -e /var/lib/systemd/linger/slot-leaver",
    "mail": "test -e /var/mail/slot-leaver",
    "policy": "test -e /etc/confined-slots/slots.d/leaver",
    "credential": "test -e /etc/confined-slots/credentials/leaver",
    "run directory": "test -e /run/confined-slots/leaver",
    "homes and workspaces": f"test -e {STATE}",
    "log": "test -e /var/log/confined-slots/leaver",
}


def ids(operator: Operator) -> dict[str, int]:
    entry = operator.ledger()["slots"]["leaver"]
    return {"uid": entry["uid"], "sub": entry["subid_first"] + 7}


def traces(operator: Operator, numbers: dict[str, int]) -> set[str]:
    """Return what there is of the slot."""
    tests = {name: test.format(**numbers) for name, test in TRACES.items()}
    script = "".join(f"if {{ {test}; }} 2>/dev/null; then echo '{name}'; fi\n" for name, test in tests.items())
    return set(operator.do(script).splitlines())


def others(operator: Operator) -> str:
    """Return the lines of every other account, and the trees of every other slot."""
    files = "/etc/passwd /etc/shadow /etc/group /etc/gshadow /etc/subuid /etc/subgid"
    trees = "/var/lib/confined-slots/slots /etc/confined-slots/slots.d /etc/systemd/system"
    return operator.do(f"grep -Hv slot-leaver {files}; find {trees} -printf '%p %U %G %m\\n' | grep -v leaver | sort")


@pytest.fixture(scope="module")
def removed(operator: Operator) -> collections.abc.Iterator[dict[str, t.Any]]:
    """Make a slot that leaves all it can, remove it, killed once on the way, and make it anew; return what was seen."""
    seen: dict[str, t.Any] = {}
    operator.do(
        "grep -q 'left by hand' /etc/subuid || printf '# left by hand\\nnobody-here:5000000:10\\n' >> /etc/subuid"
    )
    before_any = others(operator)
    operator.converge(LEAVER)
    seen["old"] = ids(operator)
    operator.do(LEAVE.format(state=STATE, **seen["old"]) + until("pgrep -u slot-leaver -fx 'sleep 600'"))
    seen["before"] = traces(operator, seen["old"])
    seen["read before"] = operator.says("su slot-leaver -s /bin/sh -c 'cat /srv/shared/file'")
    seen["check"] = operator.play("confined.slots.remove_slot", "--check", "--diff", slot="leaver")
    seen["after check"] = traces(operator, seen["old"])

    seen["killed"] = kill_while_archiving(operator)
    seen["after kill"] = traces(operator, seen["old"])
    seen["complete archive after kill"] = operator.says(f"ls {ARCHIVE}/leaver-*-workspaces.tar.gz")
    seen["run after kill"] = operator.host.run("/opt/confined-slots/current/bin/slotctl run leaver -- -c true")
    seen["converge after kill"] = operator.module("accounts", slots=[{"name": "leaver"}])

    seen["removal"] = operator.play("confined.slots.remove_slot", slot="leaver")
    seen["after"] = traces(operator, seen["old"])
    seen["owned"] = operator.do(
        "find / -xdev -path /proc -prune -o"
        f" \\( -uid {seen['old']['uid']} -o -gid {seen['old']['uid']} -o -uid {seen['old']['sub']} \\) -print"
    )
    seen["again"] = operator.play("confined.slots.remove_slot", slot="leaver")
    seen["others"] = (before_any, others(operator))
    seen["archive"] = f"{ARCHIVE}/leaver-{seen['old']['uid']}-workspaces.tar.gz"

    operator.converge(LEAVER)
    seen["new"] = ids(operator)
    yield seen
    operator.do(f"rm -rf /srv/shared {ARCHIVE}/leaver-*; sed -i '/left by hand/d;/nobody-here/d' /etc/subuid")


def kill_while_archiving(operator: Operator) -> bool:
    """Start a removal, kill it with all its children while tar is at work, and return whether that was the moment."""
    large = f"{STATE}/workspaces/main/large"
    operator.do(f"head -c 300M /dev/urandom > {large}; chown slot-leaver: {large}")  # gzip needs seconds for it
    with subprocess.Popen(
        operator.command("confined.slots.remove_slot", slot="leaver"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as removal:
        met = operator.says(until("pgrep -x tar"))
        ended = until("! pgrep -x 'tar|gzip'")
        operator.do(f"pkill -9 -x python3; pkill -9 -x gzip; pkill -9 -x tar; {ended}")
        removal.communicate()
    operator.do(f"rm {large}")
    return met


def test_rd_11_what_the_slot_left_was_there_before(removed: dict[str, t.Any]) -> None:
    assert removed["before"] == set(TRACES) and removed["read before"]


def test_rd_11_check_mode_names_each_step_and_changes_nothing(removed: dict[str, t.Any]) -> None:
    for words in (
        "slot-leaver (end processes)",
        "(archive workspaces)",
        "subuid (take ranges back)",
        "(remove account)",
    ):
        assert words in removed["check"]
    assert removed["after check"] == set(TRACES)


def test_rd_11_a_removal_that_was_killed_has_shut_the_slot_out_and_lost_nothing(removed: dict[str, t.Any]) -> None:
    assert removed["killed"]
    gone = set(TRACES) - removed["after kill"]
    assert {"processes", "processes of subordinate ids", "session", "crontab", "at job", "lingering"} <= gone
    assert {"account", "group", "subordinate uids", "homes and workspaces", "log"} <= removed["after kill"]
    assert not removed["complete archive after kill"]
    assert removed["run after kill"].rc == 125
    assert "slot 'leaver' is being removed [finish it with" in removed["converge after kill"]["msg"]


def test_rd_11_a_removal_run_again_finishes_and_leaves_nothing(removed: dict[str, t.Any]) -> None:
    assert "changed=1" in removed["removal"]
    assert removed["after"] == set()
    assert removed["owned"] == ""


def test_removing_it_once_more_changes_nothing(removed: dict[str, t.Any]) -> None:
    assert "changed=0" in removed["again"] and "failed=0" in removed["again"]


def test_rd_11_accounts_and_slots_of_others_are_as_they_were(removed: dict[str, t.Any]) -> None:
    before, after = removed["others"]
    assert before == after and "left by hand" in before


def test_rd_11_the_archive_holds_the_work_and_only_root_reads_it(operator: Operator, removed: dict[str, t.Any]) -> None:
    file = operator.host.file(removed["archive"])
    assert (file.user, file.group, file.mode) == ("root", "root", 0o600)
    assert operator.do(f"tar -xzOf {removed['archive']} {ARCHIVED_FILE}") == "done"
    listed = operator.do(f"tar --numeric-owner -tvzf {removed['archive']} | grep -v /d/d/")
    for name in ("closed/y", "container", "pipe", "setuid"):
        assert f"workspaces/main/{name}" in listed
    assert "shadow -> /etc/shadow" in listed and "everything -> /" in listed
    assert "root:" not in operator.do(f"tar -xzOf {removed['archive']} | strings")
    assert "0/0" not in listed.replace("drwxr-xr-x 0/0", "", 1), "nothing of the slot is root's once unpacked"


def test_rd_11_the_logs_are_archived_too(operator: Operator, removed: dict[str, t.Any]) -> None:
    archive = removed["archive"].replace("workspaces.tar", "logs.tar")
    assert '"leaver"' in operator.do(f"tar -xzOf {archive} leaver/sessions.jsonl")


def test_rd_11_a_new_slot_of_the_name_gets_ids_that_nobody_had(operator: Operator, removed: dict[str, t.Any]) -> None:
    old, new = removed["old"], removed["new"]
    assert new["uid"] != old["uid"] and abs(new["sub"] - old["sub"]) >= 65536
    retired = operator.ledger()["retired"]
    assert any(entry["name"] == "leaver" and entry["uid"] == old["uid"] for entry in retired)


def test_rd_11_a_new_slot_of_the_name_inherits_nothing(operator: Operator, removed: dict[str, t.Any]) -> None:
    expected = {"account", "password", "group", "subordinate uids", "subordinate gids", "slice", "policy", "credential"}
    expected |= {"run directory", "homes and workspaces", "log"}
    assert traces(operator, removed["new"]) == expected
    assert operator.do(f"find {STATE}/home {STATE}/homes {STATE}/workspaces -not -type d") == ""
    assert operator.do("cat /var/log/confined-slots/leaver/sessions.jsonl") == ""
    assert not operator.says("su slot-leaver -s /bin/sh -c 'cat /srv/shared/file'")
    operator.do(f"setfacl -m u:{removed['new']['uid']}:r /srv/shared/file")
    assert operator.says("su slot-leaver -s /bin/sh -c 'cat /srv/shared/file'"), "what was denied can be granted"


def test_rd_11_a_home_that_is_not_the_slots_is_refused_and_unharmed(
    operator: Operator, removed: dict[str, t.Any]
) -> None:
    before = operator.do(f"chown root: {STATE}/home; find {STATE} -printf '%p %U %m %T@\\n'")
    refused = operator.module("removal", names=["leaver"])
    assert "belongs to uid 0, not to 'slot-leaver'" in refused["msg"]
    assert operator.do(f"find {STATE} -printf '%p %U %m %T@\\n'") == before
    assert operator.ledger()["slots"]["leaver"]["leaving"] is False
    operator.do(f"chown slot-leaver: {STATE}/home")


def test_rd_11_a_home_that_is_shared_is_refused(operator: Operator, removed: dict[str, t.Any]) -> None:
    operator.do(f"useradd --no-create-home --home-dir {STATE}/home sharer")
    try:
        assert "is the home of account 'sharer' too" in operator.module("removal", names=["leaver"])["msg"]
        assert traces(operator, removed["new"]) >= {"account", "policy", "homes and workspaces"}
    finally:
        operator.do("userdel sharer")


def test_what_is_mounted_in_a_slot_is_refused_and_unharmed(operator: Operator, removed: dict[str, t.Any]) -> None:
    operator.do(f"mkdir -p /srv/data {STATE}/workspaces/data; touch /srv/data/kept")
    operator.do(f"mount --bind /srv/data {STATE}/workspaces/data")
    try:
        assert f"[umount {STATE}/workspaces/data]" in operator.module("removal", names=["leaver"])["msg"]
        assert operator.says("test -e /srv/data/kept")
    finally:
        operator.do(f"umount {STATE}/workspaces/data; rm -r /srv/data; rmdir {STATE}/workspaces/data")


def test_a_slot_that_the_host_never_had_is_unknown(operator: Operator) -> None:
    assert operator.module("removal", names=["never-was"])["msg"].startswith("slot-unknown: no slot 'never-was'")


def test_workspaces_are_deleted_when_asked_for(operator: Operator, removed: dict[str, t.Any]) -> None:
    operator.do(f"echo work > {STATE}/workspaces/main/file")
    result = operator.module("removal", names=["leaver"], workspaces="delete")
    assert result["archives"] == [f"{ARCHIVE}/leaver-{removed['new']['uid']}-logs.tar.gz"]
    assert traces(operator, removed["new"]) == set()
