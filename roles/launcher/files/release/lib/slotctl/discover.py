# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl discover`, `replay` and `review`: what a session tried, and what a person makes of it. None of it grants."""

from __future__ import annotations

import json
import os
import sys
import typing as t

from confined_slots import _discovery, _layout
from confined_slots._files import UnsafePath, read, write
from confined_slots._manifest import sha256
from confined_slots._refusals import Refusal, printable

from . import observer
from .approve import asked
from .run import run
from .slots import check_known, check_shape
from .tables import pairs, say, table

if t.TYPE_CHECKING:
    from .run import Words

    Json = dict[str, t.Any]

SHAPE = {
    "slot": str,
    "session": str,
    "workspace": str,
    "start": str,
    "launcher": str,
    "policy": {"mode": str, "mounts": [{"kind": str, "target": str, "reason": str, "mode?": str}]},
    "tracer?": {"status": int, "said": str, "fault": str},
    "trace?": str,
    "host?": dict,  # of paths: see _discovery.candidate
    "beyond?": str,
}


def discover(slot: str, workspace: str | None, words: Words, *, json: bool) -> int:
    """Run a session that is traced, keep the evidence, and let a person review it.

    Returns the CLI's exit status; Refusal `discovery-incomplete` if the session ran, and not all of it was seen.
    """
    observer.check()
    looking = observer.Observer()
    try:
        status = run(slot, workspace, words, json=json, observer=looking)
    finally:
        if looking.tracer or looking.fault:
            looking.finish()
    session = looking.about["session"]
    found = candidate(slot, session)
    refuse_partial(found)
    if os.isatty(0) and os.isatty(1):
        review(slot, session)
    else:
        say(f"slotctl: session {session} was traced [see 'slotctl review {slot} {session}']")
    return status


def candidate(slot: str, session: str | None) -> Json:
    """Return the candidate of a discovery (of the newest, if None), made of what was kept; Refusal if there is none."""
    check_known(slot)
    known = observer.names(slot)
    if not known or (session is not None and session not in known):
        there = f"it has {', '.join(known)}" if known else "it has none"
        what = f"slot {slot} has no discovery {printable(session or '')[:80]}".rstrip()
        raise Refusal("discovery-incomplete", f"{what}; {there}", f"slotctl discover {slot}")
    session = session or known[-1]
    directory = _layout.discovery(slot, session)
    try:
        about, trace = (
            json.loads(read(f"{directory}/about.json") or b""),
            read(f"{directory}/trace", observer.MOST_TRACE),
        )
        check_shape(about, SHAPE, "it")
    except (UnsafePath, ValueError, RecursionError) as error:
        raise Refusal("discovery-incomplete", f"{directory}: {error}", f"slotctl discover {slot}") from None
    seen = _discovery.read_trace(trace or b"", about["launcher"])
    faults = (*_faults(about, trace or b""), *seen.faults)
    seen = _discovery.Trace(seen.accesses, faults)
    words = {key: about[key] for key in ("slot", "session", "workspace", "start")}
    try:
        found = _discovery.candidate(seen, about["policy"], about.get("host", {}))
    except (KeyError, TypeError) as error:
        what = f"{directory}/about.json does not say what stood on the host: {error!r:.80}"
        raise Refusal("discovery-incomplete", what, f"slotctl discover {slot}") from None
    return {**words, "mode": about["policy"]["mode"], **found}


def replay(slot: str, session: str | None) -> tuple[Json, str]:
    """Return the candidate of a discovery, and the overlay that it comes to; Refusal unless all was seen."""
    found = candidate(slot, session)
    refuse_partial(found)
    return found, _discovery.overlay(found, slot, found["session"])


def review(slot: str, session: str | None) -> Json:
    """Show a person the candidate of a discovery, and write the overlay if they say so; Refusal unless all was seen."""
    found = candidate(slot, session)
    sys.stdout.write(show(found))
    sys.stdout.flush()
    refuse_partial(found)
    if not (os.isatty(0) and os.isatty(1)):
        return found | {"overlay": None}
    path = f"{_layout.discovery(slot, found['session'])}/overlay.yml"
    if asked("To have this as an overlay for the inventory, type the slot's name: ").strip() != slot:
        sys.stdout.write("no overlay was written; the evidence is kept\n")
        return found | {"overlay": None}
    text = _discovery.overlay(found, slot, found["session"])
    write(path, text.encode(), observer.SECRET)
    sys.stdout.write(f"{path}:\n{text}")
    return found | {"overlay": path}


def refuse_partial(found: Json) -> None:
    """Refuse to go on with a discovery that has not seen everything: who reads it would think that it had."""
    if not found["complete"]:
        slot, session = found["slot"], found["session"]
        what = f"session {session} was not seen whole: {'; '.join(found['faults'])}"
        raise Refusal(
            "discovery-incomplete", what, f"slotctl review {slot} {session} shows what was; discover it again"
        )


def show(found: Json) -> str:
    """Return a candidate for people."""
    whole = "complete" if found["complete"] else f"PARTIAL: {'; '.join(found['faults'])}"
    about = [
        ("session", f"{found['session']} of slot {found['slot']}, workspace {found['workspace']}"),
        ("mode", found["mode"]),
        ("trace", whole),
    ]
    text = pairs(about) + "A program that is out for it can keep things from a trace. Nothing below grants anything.\n"
    wanted = [(each["path"], each["mode"], "; ".join(each["tried"])) for each in found["wanted"]]
    barred = [(each["path"], each["why"], "; ".join(each["tried"])) for each in found["barred"]]
    network = [(each["what"], each["error"] or "reached") for each in found["network"]]
    unused = [(each["path"], each["reason"]) for each in found["unused"]]
    for title, heads, rows in (
        ("Refused, and on this host: to be declared, if the slot is to have it", ("PATH", "MODE", "TRIED"), wanted),
        ("Refused, on this host, and not to be had", ("PATH", "WHY", "TRIED"), barred),
        ("Connected to", ("ADDRESS", "RESULT"), network),
        (
            "Written into a HOME that is gone by now (a capability may keep it)",
            ("NAME",),
            [(n,) for n in found["forgotten"]],
        ),
        ("Granted, and not used", ("PATH", "GRANTED FOR"), unused),
    ):
        if rows:
            text += f"\n{title}\n{table(heads, rows)}"
    return text


def _faults(about: Json, trace: bytes) -> t.Iterator[str]:
    if "tracer" not in about:
        yield "its end was not recorded: slotctl was killed, or there was no room"
        return
    tracer = about["tracer"]
    if tracer["fault"]:
        yield tracer["fault"]
    if tracer["status"]:
        how = f"was killed by signal {-tracer['status']}" if tracer["status"] < 0 else f"ended with {tracer['status']}"
        yield f"strace {how}"
    if tracer["said"]:
        yield f"strace said: {tracer['said']}"
    if about.get("beyond"):
        yield about["beyond"]
    if about.get("trace") != sha256(trace):
        yield "the trace is not the one that was recorded"
