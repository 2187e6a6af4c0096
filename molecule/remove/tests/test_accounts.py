# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts that come, drift and meet others on a real host."""

from __future__ import annotations

import collections.abc
import json
import subprocess
import time
import typing as t

import pytest
from waiting import until

if t.TYPE_CHECKING:
    from conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

MOVER = {"name": "mover"}
RANGES = "/etc/subuid /etc/subgid"


@pytest.fixture
def kept(operator: Operator) -> collections.abc.Iterator[None]:
    """Keep the account files as they are now, and put them back whatever the test did to them."""
    operator.do(f"mkdir /root/kept; cp -p /etc/passwd /etc/shadow /etc/group /etc/gshadow {RANGES} /root/kept")
    yield
    operator.do("cp -p /root/kept/* /etc/; rm -r /root/kept")


@pytest.fixture(scope="module")
def mover(operator: Operator) -> dict[str, int]:
    """Make one more slot, and return its numbers."""
    result = operator.module("accounts", slots=[MOVER])
    numbers: dict[str, int] = result["accounts"]["mover"]
    return numbers


def test_rd_01_a_slot_has_ranges_in_both_files_and_a_second_converge_changes_nothing(
    operator: Operator, mover: dict[str, int]
) -> None:
    line = f"slot-mover:{mover['subid_first']}:65536"
    assert operator.do(f"grep -h ^slot-mover: {RANGES}").split() == [line, line]
    assert operator.module("accounts", slots=[MOVER])["changed"] is False


@pytest.mark.usefixtures("kept")
def test_rd_01_ranges_that_are_lost_come_back_as_they_were(operator: Operator, mover: dict[str, int]) -> None:
    before = operator.do("sort /etc/subuid")
    operator.do("sed -i /^slot-mover:/d /etc/subuid")
    foreseen = operator.module("accounts", check=True, slots=[MOVER])
    result = operator.module("accounts", slots=[MOVER])
    assert foreseen["steps"] == result["steps"] == [{"subject": "slot-mover", "action": "give subordinate uids"}]
    assert operator.do("sort /etc/subuid") == before


@pytest.mark.usefixtures("kept")
def test_rd_02_lines_of_others_stay_byte_for_byte_and_new_ranges_go_around_them(operator: Operator) -> None:
    ledger = operator.ledger()
    used = [*ledger["slots"].values(), *ledger["retired"]]
    base = max(entry["subid_first"] + entry["subid_count"] for entry in used) + 1_000_000
    for line in ("# by hand", "", f"number:{base}:1000", f"1234567:{base + 70_000}:5", "odd line"):
        operator.do(f"echo '{line}' | tee -a {RANGES}")
    operator.do(f"echo 'twin:{base + 100_000}:65536' | tee -a {RANGES} {RANGES}")
    operator.do(f"useradd --uid {base + 300_000} --no-log-init deep")
    before = operator.do(f"cat {RANGES}")
    slots = [{"name": f"round{number}"} for number in range(3)]
    result = operator.module("accounts", slots=slots, subid_first=base)
    firsts = [result["accounts"][slot["name"]]["subid_first"] - base for slot in slots]
    assert firsts == [1000, 165_536, 231_072]
    assert operator.do(f"grep -hv ^slot-round {RANGES}") == before
    names = [slot["name"] for slot in slots]
    assert not operator.module("removal", names=names)["failed"]
    assert operator.do(f"cat {RANGES}") == before


@pytest.mark.usefixtures("kept", "mover")
def test_rd_02_an_overlap_fails_the_converge_with_both_names_and_changes_nothing(
    operator: Operator, mover: dict[str, int]
) -> None:
    operator.do(f"echo intruder:{mover['subid_first'] + 65535}:1 >> /etc/subgid")
    before = operator.do(f"cat {RANGES} /etc/passwd")
    refused = operator.module("accounts", slots=[MOVER, {"name": "unmade"}])
    assert refused["msg"].startswith("subid-overlap: ")
    assert "'slot-mover'" in refused["msg"] and "'intruder'" in refused["msg"]
    assert operator.do(f"cat {RANGES} /etc/passwd") == before
    assert "unmade" not in operator.ledger()["slots"]


def test_rd_02_no_space_left_is_subid_exhausted(operator: Operator) -> None:
    refused = operator.module("accounts", slots=[{"name": "unmade"}], subid_first=(1 << 31) - 65535)
    assert refused["msg"].startswith("subid-exhausted: ")


@pytest.mark.usefixtures("kept")
def test_rd_02_converges_at_the_same_time_give_no_id_twice(operator: Operator) -> None:
    def converge(name: str) -> subprocess.Popen[str]:
        arguments = json.dumps({"slots": [{"name": f"{name}{number}"} for number in range(4)]})
        command = ("ansible", "-i", operator.inventory, operator.name, "-m", "confined.slots.accounts", "-a", arguments)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    running = [converge(name) for name in ("one", "two", "three")]
    try:
        for process in running:
            said, _unused = process.communicate(timeout=300)
            assert process.returncode == 0, said
        slots = operator.ledger()["slots"]
        new = [entry for name, entry in slots.items() if name.startswith(("one", "two", "three"))]
        assert len(new) == 12
        assert len({entry["uid"] for entry in new}) == len({entry["subid_first"] for entry in new}) == 12
        assert operator.do("cut -d: -f3 /etc/passwd | sort | uniq -d; cut -d: -f2 /etc/subuid | sort | uniq -d") == ""
    finally:
        names = [name for name in operator.ledger()["slots"] if name.startswith(("one", "two", "three"))]
        operator.module("removal", names=names)


def test_a_converge_killed_again_and_again_promises_no_id_twice(operator: Operator) -> None:
    slots = [{"name": f"cut{number}"} for number in range(30)]
    arguments = json.dumps({"slots": slots})
    command = ("ansible", "-i", operator.inventory, operator.name, "-m", "confined.slots.accounts", "-a", arguments)
    cut = 0
    promised: dict[str, t.Any] = {}
    for made in (1, 7, 15, 24):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            operator.do(
                f"{until(f'grep -q ^slot-cut{made}: /etc/passwd', 0.01)};"
                " pkill -9 -x python3; pkill -9 -x useradd; pkill -9 -x usermod; true"
            )
            process.wait(300)
        cut += not operator.says(f"grep -q ^slot-cut{slots[-1]['name'][3:]}: /etc/subgid")
        given = {name: entry for name, entry in operator.ledger()["slots"].items() if name.startswith("cut")}
        assert len(given) == 30 and (not promised or given == promised)
        promised = given
    assert cut >= 2, "some of the converges were cut off before their end"
    assert not operator.module("accounts", slots=slots)["failed"]
    assert operator.module("accounts", slots=slots)["changed"] is False
    assert operator.do("cut -d: -f3 /etc/passwd | sort | uniq -d; cut -d: -f2 /etc/subuid | sort | uniq -d") == ""
    for name, entry in promised.items():
        assert operator.do(f"id -u slot-{name}; id -g slot-{name}").split() == [str(entry["uid"])] * 2
    assert not operator.module("removal", names=list(promised))["failed"]


@pytest.mark.usefixtures("kept", "mover")
def test_whatever_drifted_of_an_account_is_set_back_and_foreseen(operator: Operator) -> None:
    before = operator.do("grep -h slot-mover /etc/passwd /etc/shadow /etc/group /etc/gshadow")
    operator.do("usermod --shell /bin/sh --home /root --append --groups adm,games slot-mover")
    operator.do("gpasswd --add root slot-mover; echo slot-mover:secret | chpasswd")
    operator.do("chmod 755 /var/lib/confined-slots/slots/mover/home")
    foreseen = operator.module("accounts", check=True, slots=[MOVER])
    result = operator.module("accounts", slots=[MOVER])
    assert foreseen["steps"] == result["steps"]
    assert {step["action"] for step in result["steps"]} == {
        *("set shell", "set home", "leave group", "put out of its group", "lock password", "mend directory")
    }
    today = str(int(time.time() // 86400))
    after = operator.do("grep -h slot-mover /etc/passwd /etc/shadow /etc/group /etc/gshadow")
    assert after.replace(f":{today}:", "::") == before.replace(f":{today}:", "::")
    assert operator.module("accounts", slots=[MOVER])["changed"] is False


def test_an_account_of_somebody_else_is_left_alone(operator: Operator) -> None:
    operator.do("useradd --no-create-home slot-theirs")
    try:
        before = operator.do("grep theirs /etc/passwd /etc/shadow /etc/group /etc/subuid")
        refused = operator.module("accounts", slots=[{"name": "theirs"}])
        assert "is not in /etc/confined-slots/ledger.json, so it is left alone" in refused["msg"]
        assert operator.do("grep theirs /etc/passwd /etc/shadow /etc/group /etc/subuid") == before
    finally:
        operator.do("userdel slot-theirs")


@pytest.mark.usefixtures("mover")
def test_es_12_links_in_a_home_and_in_its_place_are_not_followed(operator: Operator) -> None:
    home = "/var/lib/confined-slots/slots/mover/home"
    operator.do(
        f"su slot-mover -s /bin/sh -c 'cd {home}; ln -s /etc .ssh; ln -s /etc .config; ln -s /etc/shadow .profile'"
    )
    before = operator.do("stat -c '%n %U %G %a %Y' /etc /etc/shadow /etc/passwd")
    assert operator.module("accounts", slots=[MOVER])["changed"] is False
    operator.do(f"mv {home} {home}.away; ln -s /etc {home}")
    try:
        refused = operator.module("accounts", slots=[MOVER])
        assert f"{home} is a link" in refused["msg"]
    finally:
        operator.do(f"rm {home}; mv {home}.away {home}")
    assert operator.do("stat -c '%n %U %G %a %Y' /etc /etc/shadow /etc/passwd") == before


@pytest.mark.usefixtures("mover")
def test_an_06_a_console_password_is_hashed_logs_in_and_is_shown_nowhere(operator: Operator) -> None:
    slot = {**MOVER, "console_password": "correct-horse"}
    said = operator.play("confined.slots.site", "-vvv", "--diff", "--tags", "accounts", slots=[slot])
    hashed = operator.do("grep ^slot-mover: /etc/shadow | cut -d: -f2").strip()
    assert hashed.startswith("$6$rounds=656000$")
    assert "correct-horse" not in said and hashed not in said and hashed.split("$")[-1] not in said
    assert "a password is set" in said
    assert "changed=0" in operator.play("confined.slots.site", "--tags", "accounts", slots=[slot])
    assert "changed=1" in operator.play("confined.slots.site", "--tags", "accounts", slots=[MOVER])
    assert operator.do("grep ^slot-mover: /etc/shadow | cut -d: -f2").strip() == "!"


@pytest.mark.usefixtures("mover")
@pytest.mark.parametrize("locale", ["de_DE.UTF-8", "tr_TR.UTF-8", "no such locale"])
def test_an_07_the_callers_locale_makes_no_difference(operator: Operator, locale: str) -> None:
    operator.do("usermod --shell /bin/sh slot-mover")
    play = [
        {
            "hosts": "all",
            "gather_facts": False,
            "environment": {"LANG": locale, "LC_ALL": locale},
            "tasks": [{"name": "Keep the account", "confined.slots.accounts": {"slots": [MOVER]}}],
        }
    ]
    command = operator.command("/dev/stdin")
    played = subprocess.run(command, input=json.dumps(play), capture_output=True, text=True, check=False)
    assert played.returncode == 0 and "changed=1" in played.stdout, played.stdout + played.stderr
