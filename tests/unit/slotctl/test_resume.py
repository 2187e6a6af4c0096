# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A session is gone on with by its own id, in the environment that it had, or not at all."""

from __future__ import annotations

import typing as t

import pytest
from confined_slots._refusals import Refusal
from slotctl import resume, run, slots, words

SESSION = "20261129t190205-74631a56"
ID = "0198c2d4-1e4f-7c3a-9b1d-2f6a7b8c9d0e"
OTHER = "0198c2d4-1e4f-7c3a-9b1d-2f6a7b8c9d0f"
POLICY: dict[str, t.Any] = {
    "mode": "isolated",
    "network": "host",
    "provider": {
        "name": "fake",
        "version": "1",
        "profile_version": 2,
        "identity": [{"path": "/p", "digest": "0"}],
        "headless": ["-p", "--", "{prompt}"],
        "resume": ["--resume", "{session}"],
        "resume_headless": ["--resume", "{session}", "-p", "--", "{prompt}"],
        "login": ["login"],
    },
    "capabilities": [{"key": "use_fake", "words": "Use Fake", "why": "runs it"}],
}
RECORD: dict[str, t.Any] = {
    "event": "end",
    "session": SESSION,
    "slot": "a",
    "workspace": "review",
    "policy": "sha256:1",
    "mode": "isolated",
    "provider": {"name": "fake", "version": "1", "identity": [{"path": "/p", "digest": "0"}]},
    "profile_version": 2,
    "capabilities": ["use_fake"],
    "conversations": [ID],
    "outcome": "ended",
}


def slot(fingerprint: str = "sha256:1", **changed: t.Any) -> slots.Slot:
    """Return the slot as it is now."""
    records: list[tuple[str, ...]] = [("ids", "1", "1"), ("fingerprint", fingerprint)]
    return slots.Slot("a", "/plan", records, {**POLICY, **changed})


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, t.Any]]]:
    """Return the records by slot; nothing else of a host is there."""
    records = {"a": [dict(RECORD)], "b": []}
    monkeypatch.setattr(resume, "known", lambda: list(records))
    monkeypatch.setattr(resume.show, "sessions", lambda name, most: records[name])
    return records


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[t.Any]:
    """Return what sessions were started with, which happens nowhere but in this list."""
    seen: list[t.Any] = []

    def start(name: str, workspace: str, made: run.Words, *, json: bool, resumes: str) -> int:
        seen.extend((name, workspace, made(slot()), resumes))
        return 0

    monkeypatch.setattr(run, "run", start)
    return seen


Log = dict[str, list[dict[str, t.Any]]]


def refused(*arguments: t.Any) -> str:
    """Return what a resume is refused with."""
    with pytest.raises(Refusal) as caught:
        resume.resume(*arguments, json=False)
    assert caught.value.code == "resume-incompatible"
    return str(caught.value)


def test_it_goes_on_in_the_same_workspace_with_the_conversations_id(log: Log, started: list[t.Any]) -> None:
    assert resume.resume(SESSION, None, None, ["--more"], json=False) == 0
    assert started == ["a", "review", ["--resume", ID, "--more"], SESSION]


def test_without_a_person_it_takes_the_command_line_for_that(log: Log, started: list[t.Any]) -> None:
    resume.resume(SESSION, None, "{session} and {prompt}", [], json=False)
    assert started[2] == ["--resume", ID, "-p", "--", "{session} and {prompt}"]


@pytest.mark.parametrize("session", ["", "last", "--last", SESSION[:-1], SESSION.upper(), f"../{SESSION}", ID])
def test_only_a_whole_id_of_a_session_names_one(log: Log, session: str) -> None:
    assert "is no id of a session" in refused(session, None, None, [])


def test_a_session_that_is_not_on_record_does_not_start_a_new_one(log: Log, started: list[t.Any]) -> None:
    assert "on record on this host" in refused("20261129t190205-00000000", None, None, [])
    assert started == []


def test_a_session_that_runs_is_not_resumed(log: Log) -> None:
    log["a"][0]["outcome"] = "running"
    assert "runs [stop it: slotctl stop a]" in refused(SESSION, None, None, [])


@pytest.mark.parametrize(
    ("conversations", "said"),
    [
        ([], "wrote no conversations [start a new session]"),
        ([ID, OTHER], f"{ID}, {OTHER} [name one with --conversation]"),
    ],
    ids=["none", "two"],
)
def test_without_exactly_one_conversation_none_is_guessed(log: Log, conversations: list[str], said: str) -> None:
    log["a"][0]["conversations"] = conversations
    assert said in refused(SESSION, None, None, [])


def test_one_of_several_can_be_named(log: Log, started: list[t.Any]) -> None:
    log["a"][0]["conversations"] = [ID, OTHER]
    resume.resume(SESSION, OTHER, None, [], json=False)
    assert started[2] == ["--resume", OTHER]


@pytest.mark.parametrize("name", ["last", "--help", ID[:8], ID.upper(), "../x"])
def test_what_clis_would_take_for_an_id_too_is_refused(log: Log, name: str) -> None:
    assert "is no id of a conversation [give the whole id" in refused(SESSION, name, None, [])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"mode": "compatibility"}, "mode was 'isolated'", id="mode"),
        pytest.param(
            {"provider": {**POLICY["provider"], "version": "2"}}, "provider was {'name': 'fake'", id="version"
        ),
        pytest.param(
            {"provider": {**POLICY["provider"], "identity": [{"path": "/p", "digest": "1"}]}},
            "provider was",
            id="bytes",
        ),
        pytest.param({"provider": {**POLICY["provider"], "profile_version": 3}}, "profile_version was 2", id="profile"),
        pytest.param({"capabilities": []}, "capabilities was ['use_fake']", id="capabilities"),
        pytest.param({}, "the policy was sha256:1", id="anything"),
    ],
)
def test_another_environment_is_refused_and_what_changed_is_named(changed: dict[str, t.Any], said: str) -> None:
    with pytest.raises(Refusal) as caught:
        resume.check_same(slot("sha256:2", **changed), RECORD, SESSION)
    assert caught.value.code == "resume-incompatible"
    assert said in caught.value.what and "slotctl policy a" in caught.value.cure


def test_the_same_policy_is_the_same_environment() -> None:
    resume.check_same(slot(), RECORD, SESSION)


def test_a_record_from_before_policies_were_recorded_is_no_match() -> None:
    with pytest.raises(Refusal, match="resume-incompatible"):
        resume.check_same(slot(), {"session": SESSION}, SESSION)


@pytest.mark.parametrize(("prompt", "key"), [(None, "resume"), ("x", "resume_headless")])
def test_a_cli_that_cannot_resume_is_not_started_anew(
    log: Log, monkeypatch: pytest.MonkeyPatch, prompt: str | None, key: str
) -> None:
    provider = {name: line for name, line in POLICY["provider"].items() if name != key}

    def start(name: str, workspace: str, made: run.Words, *, json: bool, resumes: str) -> int:
        made(slot(provider=provider))
        return 0

    monkeypatch.setattr(run, "run", start)
    assert "has no command line to resume with" in refused(SESSION, None, prompt, [])


def test_a_prompt_is_one_word_whatever_is_in_it() -> None:
    made = words.started("--help; $(id)\n{prompt}", ["--json"])(slot())
    assert made == ["-p", "--", "--help; $(id)\n{prompt}", "--json"]
    assert words.started(None, ["a", "b"])(slot()) == ["a", "b"]


def test_a_login_needs_a_network_and_a_command_line() -> None:
    assert words.login(["--more"])(slot()) == ["login", "--more"]
    with pytest.raises(Refusal, match=r"network-unavailable: slot a has no network, and a login needs one \[declare"):
        words.login([])(slot(network="none"))
    with pytest.raises(Refusal, match="policy-invalid: the profile of fake has no command line to log in; give it a"):
        words.login([])(slot(provider={"name": "fake"}))
    with pytest.raises(Refusal, match="no command line to run without a person"):
        words.started("x", [])(slot(provider={"name": "fake"}))
