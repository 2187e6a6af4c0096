# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A CLI with state, transcripts and a credential in each mode: what stays, what is resumed, which change is noticed."""

from __future__ import annotations

import collections.abc
import hashlib
import json
import tarfile
import typing as t

import pytest

from .conftest import MODES, SLOTS_D, STATE, profiles

if t.TYPE_CHECKING:
    import pathlib

    from .conftest import Operator, Slot

testinfra_hosts = ["ansible://slot_hosts"]

TREE = "/opt/confined-slots/providers/fake/1.0.0"
CLI = r"""#!/bin/sh
# Keeps a conversation as CLIs do: one file below HOME, named by a UUID.
case $1 in --resume) id=$2; shift 2;; *) id=$(cat /proc/sys/kernel/random/uuid);; esac
[ "$1" = -p ] && shift 2
mkdir -p "$HOME/.fake/p" "$HOME/.cache"
touch "$HOME/.cache/kept"
printf '%s\n' "$1" >> "$HOME/.fake/p/$id.jsonl"
cat "$HOME/.fake/p/$id.jsonl"
[ -z "$FAKE_TOKEN_FD" ] || { printf 'token '; eval "cat <&$FAKE_TOKEN_FD"; printf ' %s\n' "$(env | grep -c SECRET)"; }
"""
DIGEST = hashlib.sha256(CLI.encode()).hexdigest()
ASK = {"why": "for tests"}
PROFILE: dict[str, t.Any] = {
    "name": "fake",
    "profile_version": 1,
    "summary": "A CLI for tests",
    "install": {"kind": "npm", "packages": [{"name": "fake", "version": "1.0.0"}]},
    "executable": "bin/fake",
    "identity": "tree",
    "reasons": {"tree": "the program"},
    "state": [{"path": ".fake", "holds": ["history"]}],
    "transcript": ".fake/*/{session}.jsonl",
    "headless": ["-p", "--", "{prompt}"],
    "resume": ["--resume", "{session}"],
    "resume_headless": ["--resume", "{session}", "-p", "--", "{prompt}"],
    "credentials": [{"name": "FAKE_TOKEN", "by": "descriptor", "variable": "FAKE_TOKEN_FD", "refreshable": True}],
    "capabilities": {
        "use_fake": {**ASK, "words": "Use Fake", "required": True},
        "use_fake_history": {**ASK, "words": "Use your Fake conversation history", "state": [".fake"]},
        "use_fake_token": {**ASK, "words": "Use the Fake token", "credentials": ["FAKE_TOKEN"]},
    },
    "certification": {"status": "certified", "evidence": "evidence/x.json", "cli_version": "1.0.0", "sha256": DIGEST},
}
SECRET = "sk-SECRET-of-the-tests"


def declared(operator: Operator, **more: t.Any) -> list[Slot]:
    """Return the slots with the fake provider; each has a token of its own."""
    changed = {
        slot: {
            "provider": "fake",
            "capabilities": ["use_fake", "use_fake_history", "use_fake_token"],
            "workspaces": ["main"],
            "profile_version": None,
            "credential": {"name": "FAKE_TOKEN", "value": f"{SECRET}-{slot}"},
            **more,
        }
        for slot in MODES
    }
    return operator.slots(**changed)


def keep(operator: Operator, slots: list[Slot], changed: dict[str, t.Any] | None = None) -> None:
    """Converge the slots with the fake provider (its profile changed), the one in verified mode approved."""
    profile = changed or PROFILE
    operator.kept("credentials", slots=slots, profiles=[*profiles(), profile])
    operator.policy(operator.approved(slots, more=[profile]), more=[profile])
    operator.kept("permissions", slots=slots)


@pytest.fixture(scope="module", autouse=True)
def fake(operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> collections.abc.Iterator[None]:
    """Have the fake provider installed and used by every slot."""
    source: pathlib.Path = tmp_path_factory.mktemp("fake")
    (source / "tree/bin").mkdir(parents=True)
    (source / "tree/bin/fake").write_text(CLI)
    (source / "tree/bin/fake").chmod(0o755)
    with tarfile.open(source / "fake.tar", "w") as tar:
        tar.add(source / "tree", ".")
    install = {"name": "fake", "source": "archive", "archive": str(source / "fake.tar")}
    operator.kept("providers", providers=[install], profiles=[*profiles(), PROFILE])
    keep(operator, declared(operator))
    yield
    operator.kept("credentials", slots=operator.slots())
    operator.policy(operator.slots())
    operator.do(f"rm -rf /opt/confined-slots/providers/fake /opt/confined-slots/providers.json {STATE}/*/homes/fake")
    operator.do(f"rm -rf {STATE}/*/states/fake {STATE}/*/home/.fake {STATE}/*/home/.cache")


def prompt(operator: Operator, slot: str, text: str, command: str = "") -> list[str]:
    """Have the CLI do one thing without a person, and return what it prints."""
    done = operator.host.run(f"slotctl {command or f'run {slot}'} --prompt '{text}' < /dev/null")
    assert done.rc == 0, done.stderr
    return str(done.stdout).splitlines()


def newest(operator: Operator, slot: str) -> dict[str, t.Any]:
    """Return the record of the slot's newest session."""
    found: list[dict[str, t.Any]] = json.loads(operator.do(f"slotctl sessions {slot} --most 1 --json"))
    return found[0]


@pytest.mark.parametrize("slot", MODES)
def test_a_session_is_resumed_with_its_conversation_and_no_other(operator: Operator, slot: str) -> None:
    prompt(operator, slot, "another")
    assert prompt(operator, slot, "first")[0] == "first"
    record = newest(operator, slot)
    assert len(record["conversations"]) == 1
    said = prompt(operator, slot, "second", f"resume {record['session']}")
    assert said[:2] == ["first", "second"]
    again = newest(operator, slot)
    assert (again["resumes"], again["conversations"]) == (record["session"], record["conversations"])
    assert (again["mode"], again["profile_version"], again["provider"]["name"]) == (MODES[slot], 1, "fake")


@pytest.mark.parametrize("slot", MODES)
def test_a_session_is_not_resumed_in_another_environment(operator: Operator, slot: str) -> None:
    prompt(operator, slot, "first")
    session = newest(operator, slot)["session"]
    keep(operator, declared(operator, resources={"tmp_size": "2G"}))
    try:
        done = operator.host.run(f"slotctl resume {session} --prompt more --json < /dev/null")
        assert (done.rc, json.loads(done.stderr)["refusal"]) == (125, "resume-incompatible")
    finally:
        keep(operator, declared(operator))
    assert prompt(operator, slot, "more", f"resume {session}")[:2] == ["first", "more"]


def test_in_verified_mode_only_the_state_that_was_approved_outlives_a_session(operator: Operator) -> None:
    for slot, left in (("kept", True), ("strict", False)):
        prompt(operator, slot, "first")
        found = operator.do(f"find {STATE}/{slot}/homes {STATE}/{slot}/states -name kept -o -name '*.jsonl'; true")
        assert ("/.cache/kept" in found, ".jsonl" in found) == (left, True), found
    assert operator.do(f"stat -c '%U %a' {STATE}/strict/states/fake/.fake {STATE}/strict/states").split() == [
        *("slot-strict", "700"),
        *("root", "755"),
    ]


@pytest.mark.parametrize("slot", MODES)
def test_the_token_comes_by_a_descriptor_and_stands_in_no_environment(operator: Operator, slot: str) -> None:
    assert prompt(operator, slot, "x")[-1] == f"token {SECRET}-{slot} 0"


def test_cr_01_one_token_that_is_renewed_is_refused_for_two_slots(operator: Operator) -> None:
    slots = declared(operator, credential={"name": "FAKE_TOKEN", "value": SECRET})
    done = operator.module("credentials", slots=slots, profiles=[*profiles(), PROFILE])
    assert "slots 'loose' and 'kept': credential-shared" in done["msg"] and SECRET not in json.dumps(done["msg"])


def test_cr_02_a_copied_login_is_refused(operator: Operator) -> None:
    slots = declared(operator, credential={"name": "FAKE_TOKEN", "value": json.dumps({"refresh_token": SECRET})})
    done = operator.module("credentials", slots=slots, profiles=[*profiles(), PROFILE])
    assert "credential-not-seedable" in done["msg"] and SECRET not in json.dumps(done["msg"])


# A credential's value is not hashed on the host: what is no token any more is refused, and another token is put back by
# the next converge.
FLIP = """python3 -c '
import sys
path, position, change = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
data = bytearray(open(path, "rb").read())
data[position] ^= change
open(path, "r+b").write(data)'"""
PLACES = {
    "executable": (f"{TREE}/bin/fake", -2, 1, "provider-changed"),
    "tree": (f"{TREE}/MANIFEST.json", -9, 1, "provider-changed"),
    "plan": (f"{SLOTS_D}/{{slot}}/plan", -9, 1, "policy-tampered"),
    "credential": ("/etc/confined-slots/credentials/{slot}/fake.env", -4, 1, "credential-malformed"),
    "name of the credential": ("/etc/confined-slots/credentials/{slot}/fake.env", 80, 1, "credential-malformed"),
    "approval": (f"{SLOTS_D}/{{slot}}/approval", -9, 1, "approval-missing"),
}


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("slot", MODES)
def test_a_changed_byte_is_noticed_in_every_mode(operator: Operator, slot: str, what: str) -> None:
    path, position, change, code = PLACES[what]
    path = path.format(slot=slot)
    if what == "approval" and slot != "strict":
        assert operator.host.run(f"test -e {path}").rc == 1, "only verified mode has one"
        return
    operator.do(f"cp -a {path} /run/kept-of-the-tests; {FLIP} {path} {position} {change}")
    try:
        assert operator.do(f"cmp -s {path} /run/kept-of-the-tests || echo differs") == "differs"
        found = operator.refusal(slot)
        assert (found["refusal"], SECRET in json.dumps(found)) == (code, False)
    finally:
        operator.do(f"cp -a /run/kept-of-the-tests {path}; rm /run/kept-of-the-tests")
    prompt(operator, slot, "it works again")


@pytest.mark.parametrize("slot", MODES)
def test_a_changed_profile_is_noticed_in_every_mode(operator: Operator, slot: str) -> None:
    """In verified mode nothing runs until it is approved; in the others a session of before is not gone on with."""
    prompt(operator, slot, "first")
    session = newest(operator, slot)["session"]
    before = operator.shown(slot)["fingerprint"]
    newer = {**PROFILE, "profile_version": 2, "environment": {"FAKE_MORE": "1"}}
    slots = declared(operator)
    operator.policy(slots, more=[newer])
    try:
        assert operator.shown(slot)["fingerprint"] != before
        if slot == "strict":
            found = operator.refusal(slot)
            assert found["refusal"] == "profile-changed" and "has version 2, not 1" in found["what"]
        done = operator.host.run(f"slotctl resume {session} --prompt more --json < /dev/null")
        found = json.loads(done.stderr)
        assert found["refusal"] == "resume-incompatible" and "profile_version was 1" in found["what"]
    finally:
        keep(operator, slots)


def test_what_nobody_certified_does_not_run_in_verified_mode(operator: Operator) -> None:
    documented = {**PROFILE, "certification": {"status": "documented"}}
    site = operator.variables()["site_capabilities"]
    given = {"slots": declared(operator), "profiles": [*profiles(), documented], "capabilities": site}
    assert "profile of fake is documented, not certified" in operator.module("policy", **given)["msg"]


def test_pl_09_a_login_in_home_that_ends_is_told_by_its_own_file_read_as_the_slot(operator: Operator) -> None:
    expiry = {"file": ".fake/login.json", "at": ["oauth", "ends"], "unit": "milliseconds", "renewed_by": ["oauth", "r"]}
    keep(operator, declared(operator, credential=None), {**PROFILE, "login_expiry": expiry})
    place = f"{STATE}/kept/homes/fake/.fake/login.json"

    def told(login: t.Any) -> str:
        written = operator.as_slot(
            "kept", f"mkdir -p {place.rpartition('/')[0]}; rm -f {place}; printf %s '{json.dumps(login)}' > {place}"
        )
        assert written.rc == 0, written.stderr
        shown = json.loads(operator.host.run("slotctl preflight kept --json").stdout)
        (check,) = [each for each in shown["checks"] if each["check"] == "expiry"]
        return str(check["refusal"] or check["what"])

    ends = 4_000_000_000_000
    try:
        assert told({"oauth": {"ends": 1000}}) == "credential-expiring"
        assert told({"oauth": {"ends": 1000, "r": "a refresh token"}}) == "no end is known"
        assert told({"oauth": {"ends": ends}}) == "the login ends 2096-10-02T07:06:40Z"
        assert told({"oauth": {"ends": "soon"}}) == "no end is known"
        # One that is a link is not followed: it would have root's, or another's, file read for the slot.
        operator.do(f'echo \'{{"oauth": {{"ends": 1000}}}}\' > /run/login.json; ln -sf /run/login.json {place}')
        shown = operator.do("slotctl preflight kept")
        assert "no end is known" in shown and "credential-expiring" not in shown
    finally:
        operator.do(f"rm -f {place} /run/login.json")
        keep(operator, declared(operator))
