# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""PL-02, FACTS 3: each mode holds what it promises, a narrower workspace is narrower, and modes stay as they are."""

from __future__ import annotations

import collections.abc
import json
import typing as t

import pytest
from waiting import until

from .conftest import MODES, STATE

if t.TYPE_CHECKING:
    from .conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

HOME = f"{STATE}/loose/home"
# Places that compatibility mode masks and that every test host has; a marker there is for all to read.
MASKED = ("/boot", "/etc/ssh", "/home", "/media", "/mnt", "/root", "/var/backups", "/var/log")
MARKER = "marker-of-the-tests"
PLANT = f"for d in {' '.join(MASKED)}; do echo found > $d/{MARKER}; chmod 644 $d/{MARKER}; done; chmod 711 /root"
TAKE_AWAY = f"for d in {' '.join(MASKED)}; do rm -f $d/{MARKER}; done; chmod 700 /root"
READ = f"for d in {' '.join(MASKED)}; do cat $d/{MARKER} 2>/dev/null; done; true"

# Every place that a session can write gets files that look like what decides.
LOOK_ALIKES = r"""
for d in $(find / -xdev -type d -writable 2>/dev/null) "$HOME" /tmp /var/tmp /dev/shm "$XDG_RUNTIME_DIR" "$PWD"; do
  for n in policy.json plan approval plan-main profile.yml shell.yml candidate.yml MANIFEST.json slots.yml; do
    mkdir -p "$d/.confined-slots/slots.d/$CONFINED_SLOT" 2>/dev/null
    for f in "$d/$n" "$d/.confined-slots/$n" "$d/.confined-slots/slots.d/$CONFINED_SLOT/$n"; do
      printf '{"mode":"compatibility","network":"host","approved":true,"by":"alice"}' > "$f" 2>/dev/null
    done
  done
done
cp -f "$PWD/plan" /etc/confined-slots/slots.d/$CONFINED_SLOT/plan 2>/dev/null
ln -sfn /etc/shadow "$PWD/approval" 2>/dev/null
true
"""


@pytest.fixture(scope="module")
def secrets(operator: Operator) -> collections.abc.Iterator[None]:
    """Have secrets in the home of the slot in compatibility mode, and its policy compiled with them."""
    done = operator.as_slot(
        "loose",
        f"cd {HOME} && mkdir -p .config/gcloud .ssh && echo SECRET > .config/gcloud/key && echo SECRET > .ssh/id"
        " && echo SECRET > .netrc",
    )
    assert done.rc == 0, done.stderr
    operator.policy(operator.slots())
    yield
    operator.do(f"rm -rf {HOME}/.config {HOME}/.c2 {HOME}/.ssh {HOME}/.netrc")
    operator.policy(operator.slots())


@pytest.mark.parametrize(
    ("slot", "options"),
    [
        pytest.param("loose", "", id="compatibility"),
        pytest.param("loose", "--workspace tight --no-mutations", id="compatibility-narrower"),
        pytest.param("kept", "", id="isolated"),
        pytest.param("kept", "--workspace tight", id="isolated-narrower"),
        pytest.param("strict", "", id="verified"),
        pytest.param("strict", "--workspace tight --no-mutations", id="verified-narrower"),
    ],
)
def test_the_selftest_of_each_mode_holds_and_so_does_its_proof(
    operator: Operator, secrets: None, slot: str, options: str
) -> None:
    done = operator.host.run(f"slotctl selftest {slot} {options} --json")
    rows = json.loads(done.stdout)
    assert (done.rc, [row for row in rows if not row["ok"]]) == (0, [])
    kinds = [row["kind"] for row in rows]
    assert kinds.count("probe") > 30 and (kinds.count("mutation") > 20) is ("--no-mutations" not in options)
    names = {row["name"] for row in rows}
    if slot == "loose":
        assert {f"hold:{HOME}/.config", f"mask:{HOME}/.config/gcloud", f"mask:{HOME}/.netrc", "mask:/etc/ssh"} <= names
    if "tight" in options:
        assert "read-only-workspace" in names


@pytest.mark.parametrize("slot", MODES)
def test_the_mode_is_shown_and_compatibility_is_called_best_effort(operator: Operator, slot: str) -> None:
    for shown in (operator.do("slotctl list"), operator.do(f"slotctl policy {slot}")):
        assert MODES[slot] in shown
    line = next(line for line in operator.do("slotctl list").splitlines() if line.startswith(f"{slot} "))
    assert ("best effort" in line) is (slot == "loose")
    assert "Use a shell" in operator.do(f"slotctl policy {slot}")
    assert "/usr/bin/bash" not in operator.do(f"slotctl policy {slot}")
    assert "/usr/bin/bash" in operator.do(f"slotctl policy {slot} --details")


# Compatibility


def test_what_is_masked_is_not_seen_in_a_session_and_is_outside_of_one(operator: Operator) -> None:
    operator.do(PLANT)
    try:
        assert operator.said("loose", READ) == ""
        unconfined = operator.as_slot("loose", READ).stdout
        assert unconfined.split() == ["found"] * len(MASKED), "the markers can be read where nothing is masked"
        assert operator.said("loose", "cat /etc/hostname /etc/fstab > /dev/null && echo seen") == "seen"
    finally:
        operator.do(TAKE_AWAY)


def test_secrets_in_the_slots_own_home_are_masked_and_held_in_their_place(operator: Operator, secrets: None) -> None:
    script = "cat ~/.config/gcloud/key ~/.ssh/id ~/.netrc; mv ~/.config ~/.c2; mv ~/.ssh ~/.s2; mv ~/.netrc ~/.n2; ls ~"
    done = operator.session("loose", script)
    assert "SECRET" not in done.stdout + done.stderr
    assert done.stderr.count("Device or resource busy") == 3, done.stderr
    assert operator.as_slot("loose", f"cat {HOME}/.config/gcloud/key").stdout == "SECRET\n"


@pytest.mark.parametrize(
    "after",
    [
        pytest.param("true", id="gone"),
        pytest.param("mkdir -p .config/gcloud", id="another-in-its-place"),
        pytest.param("ln -s .c2 .config", id="a-link-in-its-place"),
    ],
)
def test_a_mask_that_was_renamed_away_is_refused_at_the_next_launch(
    operator: Operator, secrets: None, after: str
) -> None:
    assert operator.as_slot("loose", f"cd {HOME} && mv .config .c2 && {after}").rc == 0
    try:
        found = operator.refusal("loose", script="cat ~/.c2/gcloud/key")
        assert found["refusal"] == "policy-invalid"
        assert f"{HOME}/.config, which is masked" in found["what"]
        status = operator.host.run("slotctl status loose --json")
        assert status.rc == 1 and "which is masked" in status.stdout
    finally:
        operator.do(f"cd {HOME} && rm -rf .config && mv .c2 .config")
    operator.said("loose", "true")


def test_without_that_check_the_next_launch_would_have_shown_it(operator: Operator, secrets: None) -> None:
    """Compiled anew, the plan knows nothing of what was renamed: what compatibility mode cannot promise."""
    assert operator.as_slot("loose", f"cd {HOME} && mv .config .c2").rc == 0
    operator.policy(operator.slots())
    try:
        assert operator.said("loose", "cat ~/.c2/gcloud/key") == "SECRET"
    finally:
        operator.do(f"cd {HOME} && mv .c2 .config")
        operator.policy(operator.slots())


# Narrower workspaces

SEEN = (
    "touch w 2>/dev/null && echo writes && rm w; wc -l < /proc/net/dev; echo ${GIT_AUTHOR_NAME-none};"
    " ls -d /etc/cron.daily"
)


def test_a_narrower_workspace_is_narrower_and_the_other_is_not(operator: Operator) -> None:
    wide, tight = (operator.session("kept", SEEN, workspace).stdout.split() for workspace in ("main", "tight"))
    assert (wide[0], wide[-2:]) == ("writes", ["Robot", "/etc/cron.daily"])
    assert tight == ["3", "none"], "two lines of heading, and loopback"
    assert int(wide[1]) > 3


@pytest.mark.parametrize("slot", MODES)
def test_a_read_only_workspace_cannot_be_written_by_whatever_way(operator: Operator, slot: str) -> None:
    operator.policy(operator.approved(operator.slots()))
    path = f"{STATE}/{slot}/workspaces/tight"
    script = (
        f"touch {path}/x; ln /etc/hostname {path}/x; mkdir {path}/x; mount -o remount,rw {path};"
        f" chmod 777 {path}; ls -A {path}; ls {STATE}/{slot}/workspaces"
    )
    done = operator.session(slot, script, "tight")
    assert done.stdout.split() == ["tight"], done.stdout
    assert operator.said(slot, f"touch {STATE}/{slot}/workspaces/main/x && echo wrote") == "wrote"


# PL-02


@pytest.mark.parametrize("slot", MODES)
def test_pl_02_look_alikes_of_policy_profile_and_approval_change_nothing(operator: Operator, slot: str) -> None:
    operator.policy(operator.approved(operator.slots()))
    before, shown = operator.trusted(), operator.shown(slot)
    operator.said(slot, LOOK_ALIKES)
    assert operator.do(f"find {STATE}/{slot} -name policy.json | head -n 1"), "nothing was written"
    assert operator.trusted() == before
    assert operator.shown(slot) == shown
    assert operator.policy(operator.approved(operator.slots()))["changed"] is False
    operator.said(slot, "true")
    (record,) = json.loads(operator.do(f"slotctl sessions {slot} --most 1 --json"))
    assert (record["mode"], record["policy"]) == (MODES[slot], shown["fingerprint"])
    operator.do(f"cd {STATE}/{slot} && find workspaces/main home homes/* -mindepth 1 -delete")


def test_pl_02_a_change_of_what_decides_would_have_been_noticed(operator: Operator) -> None:
    before = operator.trusted()
    operator.do("touch /etc/confined-slots/slots.d/kept/plan-main")
    assert operator.trusted() != before
    operator.policy(operator.slots())
    assert "plan-main" not in operator.trusted()


@pytest.mark.parametrize(
    "words",
    [
        "--mode compatibility",
        "--policy /tmp/policy.json",
        "--profile /tmp/shell.yml",
        "--capability x",
        "/bin/sh",
        "--work=main",
    ],
)
def test_pl_02_a_caller_can_name_no_mode_policy_or_executable(operator: Operator, words: str) -> None:
    done = operator.host.run(f"slotctl run strict {words} < /dev/null")
    assert (done.rc, done.stdout) == (2, "")


@pytest.mark.parametrize("variable", ["CONFINED_SLOT=loose", "HOME=/root", "SLOTCTL_MODE=compatibility", "PATH=/tmp"])
def test_pl_02_nor_does_the_callers_environment(operator: Operator, variable: str) -> None:
    done = operator.host.run(
        f"env {variable} /usr/local/sbin/slotctl run kept -- -c 'echo $CONFINED_SLOT $HOME' < /dev/null"
    )
    assert done.stdout.split() == ["kept", f"{STATE}/kept/homes/shell"]


# Modes stay


@pytest.mark.parametrize("default", MODES.values())
def test_slots_that_are_there_keep_their_mode_whatever_the_default_becomes(operator: Operator, default: str) -> None:
    operator.policy(operator.slots())
    slots = [{key: word for key, word in slot.items() if key not in ("mode", "masks")} for slot in operator.slots()]
    slots[0]["masks"] = ["/etc/ssh"]
    assert operator.policy(slots, default_mode=default)["changed"] is False
    assert {slot: operator.shown(slot)["mode"] for slot in MODES} == MODES


@pytest.mark.parametrize("default", MODES.values())
def test_only_a_new_slot_gets_the_default(operator: Operator, default: str) -> None:
    predicted = operator.policy([{"name": "fresh"}], check=True, default_mode=default)["fingerprints"]
    declared = {
        mode: operator.policy([{"name": "fresh", "mode": mode}], check=True)["fingerprints"] for mode in MODES.values()
    }
    assert [mode for mode, fingerprint in declared.items() if fingerprint == predicted] == [default]


def test_check_mode_predicts_what_a_converge_then_does(operator: Operator) -> None:
    operator.policy(operator.slots())
    other = operator.slots(kept={"mode": "verified", "workspaces": ["main"], "network": "none"})
    predicted = operator.policy(other, check=True)
    assert operator.shown("kept")["mode"] == "isolated"
    done = operator.policy(other)
    assert (predicted["steps"], predicted["fingerprints"]) == (done["steps"], done["fingerprints"])
    assert {step["action"] for step in done["steps"]} == {"compile", "remove"}
    assert operator.policy(other)["changed"] is False
    assert operator.policy(operator.slots())["changed"] is True


def test_a_running_session_keeps_its_policy_while_its_slot_is_converged_to_another_mode(operator: Operator) -> None:
    operator.policy(operator.slots())
    look = "ls -d /etc/cron.daily; echo $GIT_AUTHOR_NAME; touch ~/kept && echo writes"
    script = f"touch begun; until [ -e go-on ]; do sleep 0.2; done; rm begun go-on; {look}"
    main = f"{STATE}/kept/workspaces/main"
    operator.do(f"rm -f {main}/begun {main}/go-on")
    begin = f"slotctl run kept -- -c '{script}' < /dev/null > /run/said-of-the-tests 2>&1"
    operator.do(f"({begin}; echo ended >> /run/said-of-the-tests) > /dev/null 2>&1 & {until(f'[ -e {main}/begun ]')}")
    try:
        operator.policy(
            operator.slots(kept={"mode": "verified", "binds": [], "capabilities": None, "workspaces": ["main"]})
        )
        assert operator.refusal("kept")["refusal"] == "approval-missing"
    finally:
        operator.do(f"touch {main}/go-on")
    said = operator.do(f"{until('grep -q ended /run/said-of-the-tests')}; cat /run/said-of-the-tests")
    assert said.split() == ["/etc/cron.daily", "Robot", "writes", "ended"]
    records = json.loads(operator.do("slotctl sessions kept --most 2 --json"))
    assert [(record["mode"], record["outcome"]) for record in records] == [
        ("verified", "refused"),
        ("isolated", "ended"),
    ]
    operator.policy(operator.slots())
    assert operator.said("kept", "ls ~/kept && rm ~/kept").endswith("/kept"), "the private HOME is as it was"


def test_preflight_names_a_writable_bind_that_the_slot_cannot_write(operator: Operator) -> None:
    place = "/srv/of-the-tests"
    bind = {"source": place, "mode": "rw", "reason": "the tests write there"}
    operator.do(f"mkdir -p {place}; chmod 0755 {place}")
    operator.policy(operator.slots(kept={"binds": [bind], "workspaces": ["main"]}))
    try:
        shut = operator.host.run("slotctl preflight kept")
        assert shut.rc == 1 and f"bind {place} is rw, and slot-kept cannot write there" in shut.stdout
        operator.do(f"chown slot-kept: {place}")
        assert operator.host.run("slotctl preflight kept").rc == 0
    finally:
        operator.policy(operator.slots())
        operator.do(f"rmdir {place}")
