# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""PL-03: verified mode runs what a person has approved, and nothing in a slot can be that person."""

from __future__ import annotations

import json
import shlex
import typing as t

import pytest

from .conftest import SLOTS_D, STATE

if t.TYPE_CHECKING:
    import pathlib

    from .conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

APPROVE = "slotctl approve strict"
IN_A_SLOT = "systemd-run --quiet --wait --collect --pipe --slice=confined-slots-strict.slice --"


@pytest.fixture(autouse=True)
def nobody_has_approved(operator: Operator) -> None:
    """Begin each test with the scenario's policies and no approval."""
    operator.do(f"rm -f {SLOTS_D}/*/approval")
    operator.policy(operator.slots())


def test_without_an_approval_nothing_runs_and_the_refusal_says_how_to_get_one(operator: Operator) -> None:
    assert operator.refusal("strict") == {
        "refusal": "approval-missing",
        "what": "nobody has approved the policy of slot strict",
        "cure": "read 'slotctl policy strict', then 'slotctl approve strict'",
    }
    assert operator.refusal("strict", "tight")["refusal"] == "approval-missing"
    for command in ("status", "preflight"):
        done = operator.host.run(f"slotctl {command} strict --json")
        assert done.rc == 1 and '"approval-missing"' in done.stdout
    (record,) = json.loads(operator.do("slotctl sessions strict --most 1 --json"))
    assert (record["outcome"], record["mode"]) == ("refused", "verified")


def test_an_approval_in_the_inventory_as_people_write_it_lets_it_run(
    operator: Operator, tmp_path: pathlib.Path
) -> None:
    """YAML takes the plain key `on` for a truth, and the day for a date."""
    slots = operator.approved(operator.slots())
    approval = slots[2].pop("approval")
    text = f'  approval: {{by: alice, on: 2026-11-29, fingerprint: "{approval["fingerprint"]}"}}\n'
    listed = "".join(f"- {json.dumps(slot)}\n" if slot["name"] != "strict" else "" for slot in slots)
    strict = "".join(f"  {key}: {json.dumps(word)}\n" for key, word in slots[2].items())
    (tmp_path / "more.yml").write_text(f"slots:\n{listed}- {strict.strip()}\n{text}")
    operator.play("confined.slots.site", "--tags", "policy", "-e", f"@{tmp_path}/more.yml")
    assert operator.said("strict", "echo works") == "works"
    assert operator.said("strict", "echo works", "tight") == "works"
    status = json.loads(operator.do("slotctl status strict --json"))
    assert {"check": "approval", "refusal": "", "what": "alice on 2026-11-29"} in status["checks"]


def test_what_a_session_writes_to_its_home_is_gone_with_it(operator: Operator) -> None:
    operator.policy(operator.approved(operator.slots()))
    script = 'stat -f -c %T "$HOME"; touch "$HOME/kept"; ls "$HOME"; mkdir -p "$HOME/.ssh" && touch "$HOME/.ssh/config"'
    assert operator.said("strict", script).split() == ["tmpfs", "kept"]
    assert operator.said("strict", 'ls -A "$HOME"') == ""
    assert operator.do(f"ls -A {STATE}/strict/homes/shell {STATE}/strict/home").split()[-1].endswith(":")


def test_a_person_on_a_terminal_approves_and_that_is_on_record(operator: Operator) -> None:
    done = operator.on_terminal(APPROVE, "strict")
    assert done.rc == 0, done.stdout
    assert "Use Git identity" in done.stdout and "To approve this as root" in done.stdout
    assert operator.said("strict", "echo $GIT_AUTHOR_NAME") == "Robot"
    kept = operator.do(f"tr '\\0' '\\n' < {SLOTS_D}/strict/approval")
    assert operator.shown("strict")["fingerprint"] in kept and '"terminal": "/dev/pts/' in kept
    assert operator.do(f"stat -c '%U:%G %a' {SLOTS_D}/strict/approval") == "root:slot-strict 640"
    newest = operator.do("tail -n 20 /var/log/confined-slots/strict/sessions.jsonl")
    assert '"event":"approved"' in newest
    assert "approved" in operator.do("slotctl sessions strict")


def test_another_answer_approves_nothing(operator: Operator) -> None:
    done = operator.on_terminal(APPROVE, "yes")
    assert done.rc == 125 and "nothing was approved" in done.stdout
    assert operator.refusal("strict")["refusal"] == "approval-missing"


def test_pl_03_without_a_terminal_nobody_approves(operator: Operator) -> None:
    for command in (f"echo strict | {APPROVE}", f"{APPROVE} < /dev/null", f"yes strict | {APPROVE} > /dev/null"):
        done = operator.host.run(command)
        assert done.rc == 125 and "only a person on a terminal can approve" in done.stderr
    assert operator.refusal("strict")["refusal"] == "approval-missing"


def test_pl_03_roots_own_process_in_a_slot_cannot_approve(operator: Operator) -> None:
    done = operator.on_terminal(APPROVE, "strict", IN_A_SLOT)
    assert "what runs in a slot cannot approve" in done.stdout
    assert operator.refusal("strict")["refusal"] == "approval-missing"


def test_pl_03_the_same_process_outside_of_a_slot_could_have(operator: Operator) -> None:
    done = operator.on_terminal(APPROVE, "strict", "systemd-run --quiet --wait --collect --pipe --")
    assert "root approved sha256:" in done.stdout
    operator.said("strict", "true")


def test_pl_03_a_slots_account_cannot_approve(operator: Operator) -> None:
    for command in (APPROVE, f"sudo -n {APPROVE}", f"script -qec {shlex.quote(APPROVE)} /dev/null < /dev/null"):
        done = operator.as_slot("strict", command)
        assert done.rc != 0, done.stdout
    assert operator.refusal("strict")["refusal"] == "approval-missing"


FORGE = """
for p in /etc/confined-slots/slots.d/strict/approval /run/confined-slots/strict/approval $PWD/approval; do
  printf 'confined-slots-approval 1\\0' > $p; ln -sf $PWD/approval $p; mv $PWD/approval $p
done
ls /etc/confined-slots /usr/local/sbin/slotctl /opt/confined-slots/current; slotctl approve strict; true
"""


@pytest.mark.parametrize("slot", ["loose", "kept"])
def test_pl_03_a_session_of_another_slot_can_neither_see_nor_write_an_approval(operator: Operator, slot: str) -> None:
    before = operator.trusted()
    operator.session(slot, FORGE)
    assert operator.trusted() == before
    assert operator.refusal("strict")["refusal"] == "approval-missing"


def test_pl_03_an_approval_cannot_be_replayed_for_another_slot_or_policy(operator: Operator) -> None:
    operator.policy(operator.approved(operator.slots()))
    operator.said("strict", "true")
    operator.do(f"cp -p {SLOTS_D}/strict/approval /run/approval-of-the-tests")
    other = operator.slots(kept={"mode": "verified"}, strict={"network": "host"})
    operator.policy(other)
    operator.do(f"cp /run/approval-of-the-tests {SLOTS_D}/kept/approval; chgrp slot-kept {SLOTS_D}/kept/approval")
    assert operator.refusal("kept")["refusal"] == "approval-missing"
    operator.do(f"cp -p /run/approval-of-the-tests {SLOTS_D}/strict/approval")
    found = operator.refusal("strict")
    assert found["refusal"] == "approval-missing"
    assert 'network: "none" -> "host"' in found["what"] and "since alice on 2026-11-29" in found["what"]
    operator.policy(operator.slots())
    operator.said("strict", "true")


def test_an_added_capability_is_named_and_can_be_approved(operator: Operator) -> None:
    operator.policy(operator.approved(operator.slots(strict={"capabilities": ["use_shell"]})))
    operator.policy(operator.slots())
    found = operator.refusal("strict")
    assert found["refusal"] == "capability-missing" and "Use Git identity" in found["what"]
    done = operator.on_terminal(APPROVE, "strict")
    assert "since alice approved it: capabilities" in done.stdout
    operator.said("strict", "true")


def test_verified_mode_refuses_what_nobody_certified_at_converge_and_the_old_plan_stays(operator: Operator) -> None:
    before = operator.do(f"sha256sum {SLOTS_D}/strict/plan")
    slots = operator.slots(strict={"profile_version": 2})
    site = operator.variables()["site_capabilities"]
    from .conftest import profiles

    done = operator.module("policy", slots=slots, profiles=profiles(), capabilities=site)
    assert "profile_version is 2, but the profile of shell has version 1" in done["msg"]
    assert operator.do(f"sha256sum {SLOTS_D}/strict/plan") == before


def test_approvers_have_a_rule_of_their_own_that_sudo_takes(operator: Operator) -> None:
    operator.play(
        "confined.slots.site",
        "--tags",
        "permissions_operators",
        "-e",
        '{"permissions_approvers": ["oper"], "permissions_operators": []}',
    )
    try:
        rules = operator.do("visudo -cf /etc/sudoers.d/confined-slots > /dev/null && sudo -l -U oper")
        assert "PASSWD: /usr/local/sbin/slotctl ^approve" in rules and "^(run" not in rules
        asked = operator.do(
            "setpriv --reuid=oper --regid=oper --init-groups sudo -n slotctl approve strict 2>&1 || true"
        )
        assert "a password is required" in asked
    finally:
        operator.play("confined.slots.site", "--tags", "permissions_operators")
    assert "approve" not in operator.do("cat /etc/sudoers.d/confined-slots")
