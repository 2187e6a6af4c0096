# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of slotctl, and the one place where errors become messages."""

from __future__ import annotations

import json
import os
import sys

from confined_slots._refusals import EXIT_REFUSED, Refusal, printable

from .tables import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    import typing as t

EXIT_FAILED = 1
EXIT_INTERNAL = 70
EXIT_NOT_ROOT = 77

ABOUT = "See and start the slots of this host: accounts in which a coding CLI works and sees only what it was given."
EXITS = """\
exit status:
  0      done (run: that of the CLI; 128+N if signal N ended it)
  1      it could not be done, or a check failed
  2      the command line is wrong
  70     an error in slotctl itself
  77     not run as root
  125    refused: the message is CODE: WHAT [CURE], with --json an object {"refusal", "what", "cure"} on standard error
"""
EXAMPLES = """\
examples:
  sudo slotctl list                          which slots are there
  sudo slotctl status coder                  would a session start? if not, why, and what mends it
  sudo slotctl policy coder                  what may it do, in words
  sudo slotctl login coder                   log its CLI in, inside its own HOME
  sudo slotctl run coder                     start its CLI in the first workspace, on this terminal
  sudo slotctl run coder --workspace review -- --continue
  sudo slotctl stop coder                    end its sessions
  sudo slotctl health                        is all as it was made, and does the confinement hold?
"""
RUN = """\
What stands after -- goes to the CLI as it is. Standard input and output that are both terminals give the session a
terminal of its own; otherwise its output is byte for byte what the CLI wrote.
With --json the messages of slotctl and the end record are JSON objects, one a line, on standard error.

examples:
  sudo slotctl run coder
  sudo slotctl run coder --workspace review -- --continue
  sudo slotctl run coder --prompt 'run the tests' < /dev/null > out.txt
  sudo slotctl run coder --unattended --prompt 'run the tests'      # for timers: it asks nothing, and waits for nobody
"""
RESUME = """\
The session is named by its own id, as `slotctl sessions` shows it, and runs in the workspace that it had. It is refused
if anything of its environment has changed: mode, provider, profile, capabilities, policy. What stands after -- goes to
the CLI too.

examples:
  sudo slotctl resume 20261129t101530-1a2b3c4d
  sudo slotctl resume 20261129t101530-1a2b3c4d --prompt 'and now the documentation' < /dev/null
"""
APPROVE = """\
Verified mode runs nothing without it. It needs a person on a terminal, never one in a slot. A change of provider,
profile, capabilities or policy asks for a new one.
"""
RESTORE = """\
Before each session the small files that its CLI rewrites (settings, login) are copied if they have changed; the newest
five copies stay. A login that rotates its tokens may have to be done anew after an older one was put back.
"""
HEALTH = """\
It looks at the host and its slots, starts a process in each sandbox to see what is reached from there, and changes
nothing. A check that could not run is `unknown`, never ok. docs/monitoring.md says what each check means.

exit status: 0 ok or warn, 1 critical or unknown; with --nagios 0 ok, 1 warn, 2 critical, 3 unknown

examples:
  sudo slotctl health                        # what is not ok, with the cure
  sudo slotctl health coder --all            # each check of one slot
  sudo slotctl health --check marker --json
"""
DISCOVER = """\
The session is like any other of the slot, guards and all; strace looks on from outside. What is kept (names, results,
never what was read) is root's alone, and grants nothing: `slotctl review` shows what would have to be declared.
Exit status: that of the CLI, or 125 (discovery-incomplete) if not all of the session was seen.
"""
TAKES_MORE = ("run", "resume", "login", "discover")


def main(release: str, argv: list[str]) -> int:
    """Run slotctl's command line; return the exit status. No traceback reaches a user."""
    as_json = "--json" in argv[: argv.index("--") if "--" in argv else len(argv)]
    try:
        try:
            return _dispatch(release, argv)
        finally:
            _print("")
    except Refusal as refusal:
        say(refusal.as_json() if as_json else f"slotctl: {refusal}")
        return EXIT_REFUSED
    except Failed as failed:
        say(json.dumps({"error": str(failed)}) if as_json else f"slotctl: {failed}")
        return failed.status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `slotctl list | head`
        _give_up_output()
        return EXIT_FAILED
    except Exception as error:
        say(f"slotctl: internal error: {_place(error)} [report it; nothing weaker was started]")
        return EXIT_INTERNAL


class Failed(Exception):
    """Something that could not be done: one sentence, the cure in brackets."""

    def __init__(self, message: str, status: int = EXIT_FAILED) -> None:
        self.status = status
        super().__init__(printable(message))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    import argparse

    form = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser("slotctl", description=ABOUT, epilog=f"{EXAMPLES}\n{EXITS}", formatter_class=form)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, about: str, epilog: str = "", *, of_slot: bool = True) -> argparse.ArgumentParser:
        words: dict[str, t.Any] = {"epilog": epilog, "formatter_class": form, "allow_abbrev": False}
        added = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.", **words)
        if of_slot:
            added.add_argument("slot", metavar="SLOT", help="the slot's name, as `slotctl list` shows it")
        added.add_argument("--json", action="store_true", help="for programs: JSON instead of text")
        return added

    command("list", "list the slots of this host", of_slot=False)
    command(
        "status",
        "check whether a session would start, and say what stands in its way",
        "exit status 1 if it would be refused",
    )
    shown = command("policy", "show what a slot may do, in words", "as it was compiled; it holds no secret")
    shown.add_argument("--details", action="store_true", help="every path, program and variable too")
    command("binds", "show every path that a session sees, with the reason")
    started = command("run", "start a session of a slot's CLI and wait for its end", RUN)
    started.usage = "slotctl run SLOT [--workspace W] [--prompt TEXT] [--unattended] [--json] [-- CLI-ARGS]"
    started.add_argument("--workspace", metavar="W", help="the workspace to work in (default: the slot's first)")
    started.add_argument("--prompt", metavar="TEXT", help="have the CLI do this one thing, asking nothing, and end")
    started.add_argument(
        "--unattended", action="store_true", help="without a person: all that is missing is refused first, no input"
    )
    again = command("resume", "go on with the conversation of an earlier session", RESUME, of_slot=False)
    again.usage = "slotctl resume SESSION [--prompt TEXT] [--conversation ID] [--json] [-- CLI-ARGS]"
    again.add_argument("session", metavar="SESSION", help="the session's id, as `slotctl sessions` shows it")
    again.add_argument("--prompt", metavar="TEXT", help="have the CLI do this one thing, asking nothing, and end")
    again.add_argument("--conversation", metavar="ID", help="which of several that the session wrote")
    entered = command("login", "log the slot's CLI in, inside its own HOME", "what stands after -- goes to it too")
    entered.usage = "slotctl login SLOT [--json] [-- CLI-ARGS]"
    again = command("restore", "list the copies of its CLI's state files, or put one back", RESTORE)
    again.add_argument("date", metavar="DATE", nargs="?", help="the copy to put back, as the list shows it")
    traced = command("discover", "run a session that is traced, to see what it would need", DISCOVER)
    traced.usage = "slotctl discover SLOT [--workspace W] [--prompt TEXT] [--json] [-- CLI-ARGS]"
    traced.add_argument("--workspace", metavar="W", help="the workspace to work in (default: the slot's first)")
    traced.add_argument("--prompt", metavar="TEXT", help="have the CLI do this one thing, asking nothing, and end")
    for name, about in (
        ("replay", "derive the overlay of a discovery anew from the evidence that was kept"),
        ("review", "show what a discovery saw, and write its overlay if you say so"),
    ):
        kept = command(name, about, "an overlay grants nothing: put what is meant into the inventory, and converge")
        kept.add_argument("session", metavar="SESSION", nargs="?", help="which discovery (default: the newest)")
    command("approve", "approve the policy of a slot in verified mode", APPROVE)
    looked = command(
        "preflight", "say what a session without a person would lack", "exit status 1 if anything is missing"
    )
    looked.add_argument("--workspace", metavar="W", help="the workspace of that session (default: the slot's first)")
    looked.add_argument("--schedule", metavar="NAME", help="the session of one of the slot's schedules")
    tested = command("selftest", "prove the confinement of a slot from inside, and prove the proof")
    tested.add_argument("--workspace", metavar="W", help="where the probes run (default: the slot's first workspace)")
    tested.add_argument("--no-mutations", action="store_true", help="only the probes, not the proof that they can fail")
    tested.add_argument("--only", metavar="WORDS", default="", help="only the mutations with these words in their name")
    asked = command("health", "check this host and its slots, by looking and by trying", HEALTH, of_slot=False)
    asked.add_argument("slot", metavar="SLOT", nargs="*", help="only these slots, and nothing of the host itself")
    asked.add_argument("--check", metavar="ID", action="append", default=[], help="only this check; * stands for any")
    asked.add_argument("--all", action="store_true", help="show what is ok too")
    asked.add_argument("--nagios", action="store_true", help="one line and the exit status of a Nagios plugin")
    asked.add_argument("--options", metavar="FILE", help="a JSON file of root's with what is compared with")
    asked.add_argument("--textfile", metavar="FILE", help="write it for Prometheus' node exporter too")
    asked.add_argument("--state", metavar="FILE", help="keep the last result there, and tell changes to the journal")
    asked.add_argument("--failed", metavar="WHY", help="look at nothing, and write that the run has failed")
    asked.add_argument("--budget", metavar="S", type=float, default=120.0, help="seconds for all of it (default: 120)")
    stopped = command(
        "stop", "end a slot's sessions: SIGTERM, then SIGKILL", "when it returns, no process of theirs is left"
    )
    stopped.add_argument("session", metavar="SESSION", nargs="?", help="only this one, as `slotctl sessions` shows it")
    shown = command("sessions", "list the slot's sessions, running and ended, the newest first")
    shown.add_argument("--most", metavar="N", type=int, default=20, help="at most so many (default: 20)")
    release = command("release", "list, verify or roll back the releases of launcher and slotctl", of_slot=False)
    release.add_argument("action", choices=("list", "verify", "rollback"), help="verify: every file against its hash")
    release.add_argument(
        "name", metavar="NAME", nargs="?", help="a release (default: verify the active one, roll back to the previous)"
    )
    return top


def _dispatch(release: str, argv: list[str]) -> int:
    if argv[:1] == ["session-ended"] and len(argv) == 3 and os.geteuid() == 0:  # PID 1's, not for people
        from .ended import session_ended

        return session_ended(argv[1], argv[2], os.environ)
    if argv[:1] == ["scheduled"] and len(argv) == 3 and os.geteuid() == 0:  # the unit's of a schedule
        from .scheduled import scheduled

        return scheduled(argv[1], argv[2])
    cut = argv.index("--") if "--" in argv else len(argv)
    options, rest = parser().parse_args(argv[:cut]), argv[cut + 1 :]
    if cut < len(argv) and options.command not in TAKES_MORE:
        raise Failed(f"'{options.command}' takes nothing after -- [see 'slotctl {options.command} --help']", 2)
    if os.geteuid() != 0:
        raise Failed("only root can look into slots [run it with sudo]", EXIT_NOT_ROOT)
    if options.command == "run":
        from . import words
        from .run import run

        if options.unattended and options.prompt is None and not rest:
            raise Failed("--unattended needs something to do [add --prompt TEXT, or the CLI's arguments after --]", 2)
        alone = {"unattended": True} if options.unattended else None
        given = words.started(options.prompt, rest)
        return run(options.slot, options.workspace, given, json=options.json, unattended=alone)
    if options.command == "discover":
        from . import words
        from .discover import discover

        given = words.started(options.prompt, rest)
        return discover(options.slot, options.workspace, given, json=options.json)
    if options.command == "login":
        from . import words
        from .run import run

        return run(options.slot, None, words.login(rest), json=options.json)
    if options.command == "resume":
        from .resume import resume

        return resume(options.session, options.conversation, options.prompt, rest, json=options.json)
    return COMMANDS[options.command](release, options)


def _show(options: argparse.Namespace, found: t.Any, text: t.Callable[[t.Any], str]) -> None:
    _print(json.dumps(found, indent=1) + "\n" if options.json else text(found))


def _print(text: str) -> None:
    """Write text and what was written before to standard output; Failed if that takes no more."""
    if sys.stdout is None:  # the caller closed it
        if text:
            raise Failed("standard output is closed [open it]")
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_output()
        raise Failed(f"standard output: {error.strerror}") from None


def _give_up_output() -> None:
    """Let what is left in the buffer go nowhere: Python would try it again at exit, and complain."""
    os.dup2(os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC), 1)


def _list(release: str, options: argparse.Namespace) -> int:
    from . import show

    _show(options, show.listed(), show.show_list)
    return 0


def _status(release: str, options: argparse.Namespace) -> int:
    from . import show

    found = show.status(options.slot)
    _show(options, found, show.show_status)
    return 0 if found["ready"] else EXIT_FAILED


def _policy(release: str, options: argparse.Namespace) -> int:
    from . import show

    _show(options, show.policy(options.slot), show.show_details if options.details else show.show_policy)
    return 0


def _approve(release: str, options: argparse.Namespace) -> int:
    from .approve import approve

    given = approve(options.slot)
    _show(options, given, lambda given: f"{given['by']} approved {given['fingerprint']} for slot {given['slot']}\n")
    return 0


def _replay(release: str, options: argparse.Namespace) -> int:
    from .discover import replay

    found, overlay = replay(options.slot, options.session)
    _show(options, found | {"overlay": overlay}, lambda _unused: overlay)
    return 0


def _review(release: str, options: argparse.Namespace) -> int:
    from .discover import candidate, review

    if options.json:
        _show(options, candidate(options.slot, options.session), str)
    else:
        review(options.slot, options.session)
    return 0


def _restore(release: str, options: argparse.Namespace) -> int:
    from . import ended, kept
    from .slots import load

    slot = load(options.slot)
    ended.sweep(options.slot)
    if options.date is None:
        _show(options, kept.listed(slot), lambda dates: "".join(f"{date}\n" for date in dates) or "no copies\n")
        return 0
    if _sessions_of(options.slot):
        raise Failed(f"sessions of slot {options.slot} run [stop them: slotctl stop {options.slot}]")
    found = kept.restore(slot, options.date)
    _show(
        options,
        {"restored": found},
        lambda _unused: "".join(f"{name.replace('%', '/')} was put back\n" for name in found),
    )
    return 0


def _sessions_of(name: str) -> list[t.Any]:
    from confined_slots import _sessions

    return _sessions.live_sessions(name)


def _preflight(release: str, options: argparse.Namespace) -> int:
    from . import preflight, scheduled

    if options.schedule is None:
        found = preflight.preflight(options.slot, options.workspace)
    elif options.workspace is None:
        found = scheduled.looked_at(options.slot, options.schedule)
    else:
        raise Failed("a schedule has a workspace of its own [leave out --workspace or --schedule]", 2)
    _show(options, found, preflight.show)
    return 0 if found["ready"] else EXIT_FAILED


def _binds(release: str, options: argparse.Namespace) -> int:
    from . import show

    found = show.policy(options.slot)
    _show(options, found["mounts"] if options.json else found, show.show_binds)
    return 0


def _sessions(release: str, options: argparse.Namespace) -> int:
    from . import show

    _show(options, show.sessions(options.slot, options.most), show.show_sessions)
    return 0


def _stop(release: str, options: argparse.Namespace) -> int:
    from .stop import NotStopped, stop

    try:
        ids = stop(options.slot, options.session)
    except NotStopped as error:
        raise Failed(str(error)) from None
    _show(
        options,
        {"stopped": ids},
        lambda _unused: "".join(f"session {each} was stopped\n" for each in ids) or "no session runs\n",
    )
    return 0


def _selftest(release: str, options: argparse.Namespace) -> int:
    import dataclasses

    from .selftest import selftest
    from .tables import table

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{printable(text)}")

    only = None if options.no_mutations else options.only
    rows = selftest(options.slot, release, options.workspace, only=only, progress=progress)
    progress("")
    cells = [("ok" if row.ok else "FAILED", row.kind, row.name, row.claim, row.found) for row in rows]
    _show(
        options,
        [dataclasses.asdict(row) for row in rows],
        lambda _unused: table(("RESULT", "KIND", "NAME", "CLAIM", "FOUND"), cells),
    )
    return 0 if all(row.ok for row in rows) else EXIT_FAILED


def _health(release: str, options: argparse.Namespace) -> int:
    from confined_slots import _health as core

    from . import report

    try:
        found = report.made(options)
    except report.Impossible as error:
        raise Failed(str(error), 2) from None
    if options.nagios:
        status, line = core.nagios(found)
        _print(f"{line}\n")
        return status
    _show(options, found, lambda found: report.show(found, everything=options.all))
    return EXIT_FAILED if found["state"] in core.FAILING["critical"] else 0


def _release(release: str, options: argparse.Namespace) -> int:
    from . import release as releases

    try:
        if options.action == "list":
            _show(options, releases.listed(), releases.show)
        elif options.action == "verify":
            found = releases.verified(options.name)
            _show(options, found, lambda found: f"{found['release']}: {len(found['files'])} files as listed\n")
        else:
            steps = releases.rolled_back(options.name)
            _show(
                options,
                steps,
                lambda steps: (
                    "".join(f"{step['subject']}: {step['action']} {step['after']}\n" for step in steps)
                    or "nothing to do\n"
                ),
            )
    except releases.ReleaseError as error:
        raise Failed(str(error)) from None
    return 0


def _place(error: Exception) -> str:
    """Return class, text and place of an error, on one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "?"
    return printable(f"{type(error).__name__}: {error} at {where}")[:500]


COMMANDS: dict[str, t.Callable[[str, argparse.Namespace], int]] = {
    "list": _list,
    "status": _status,
    "policy": _policy,
    "approve": _approve,
    "replay": _replay,
    "review": _review,
    "preflight": _preflight,
    "restore": _restore,
    "binds": _binds,
    "sessions": _sessions,
    "stop": _stop,
    "selftest": _selftest,
    "health": _health,
    "release": _release,
}
