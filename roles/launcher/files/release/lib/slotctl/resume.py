# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl resume`: go on with the conversation of one session, named by its id, in the environment that it had."""

from __future__ import annotations

import typing as t

from confined_slots import _sessions
from confined_slots._plan import value
from confined_slots._refusals import Refusal

from . import run, show
from .slots import Slot, known
from .transcripts import is_conversation


def resume(session: str, conversation: str | None, prompt: str | None, rest: list[str], *, json: bool) -> int:
    """Run a session that goes on with an earlier one; return the CLI's exit status. Refusal if it must not."""
    name, record = find(session)
    chosen = conversation or _only(record, session)
    if not is_conversation(chosen):
        what = f"{chosen!r:.80} is no id of a conversation"
        raise Refusal("resume-incompatible", what, "give the whole id, a lower-case UUID")

    def words(slot: Slot) -> list[str]:
        check_same(slot, record, session)
        key = "resume" if prompt is None else "resume_headless"
        pattern = slot.policy["provider"].get(key)
        if not pattern:
            what = f"the profile of {slot.policy['provider']['name']} has no command line to resume with"
            raise Refusal("resume-incompatible", what, "start a new session")
        filled = [word.replace("{session}", chosen) for word in pattern]
        return [word.replace("{prompt}", prompt or "") for word in filled] + rest

    return run.run(name, str(record.get("workspace", "")), words, json=json, resumes=session)


def find(session: str) -> tuple[str, dict[str, t.Any]]:
    """Return the slot and the record of a session that has ended; Refusal if there is none."""
    cure = "see 'slotctl sessions SLOT'"
    if not _sessions.is_session(session):
        raise Refusal("resume-incompatible", f"{session!r:.80} is no id of a session", cure)
    for name in known():
        for entry in show.sessions(name, _sessions.MOST_READ_BACK):
            if entry.get("session") == session:
                if entry["outcome"] == "running":
                    raise Refusal("resume-incompatible", f"session {session} runs", f"stop it: slotctl stop {name}")
                return name, entry
    raise Refusal("resume-incompatible", f"no session {session} is on record on this host", cure)


def check_same(slot: Slot, record: dict[str, t.Any], session: str) -> None:
    """Refuse if the slot's environment is no longer the one that the session ran in."""
    if record.get("policy") == value(slot.records, "fingerprint"):
        return
    keys = ("mode", "provider", "profile_version", "capabilities")
    now = {**slot.policy, "profile_version": slot.policy["provider"]["profile_version"]}
    now["capabilities"] = [each["key"] for each in slot.policy["capabilities"]]
    now["provider"] = {key: slot.policy["provider"][key] for key in ("name", "version", "identity")}
    differ = [f"{key} was {record.get(key)!r:.120}" for key in keys if record.get(key) != now[key]]
    what = "; ".join(differ) or f"the policy was {record.get('policy')}"
    raise Refusal(
        "resume-incompatible",
        f"session {session} ran in another environment: {what}",
        f"restore that, or start a new session; 'slotctl policy {slot.name}' shows what is now",
    )


def _only(record: dict[str, t.Any], session: str) -> str:
    found = [str(each) for each in record.get("conversations", ())]
    if len(found) == 1:
        return found[0]
    what = f"session {session} wrote {len(found) or 'no'} conversations{': ' if found else ''}{', '.join(found)}"
    raise Refusal("resume-incompatible", what, "name one with --conversation" if found else "start a new session")
