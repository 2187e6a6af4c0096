# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The transient units of a session, and what is asked of systemd about them.

Two units stand for a session. The service is the session. The scope holds nothing but the systemd-run that waits for it
and that the kernel kills when slotctl dies; the service is bound to the scope, so PID 1 stops a session whose caller is
gone, however it went.
"""

from __future__ import annotations

import os

from confined_slots import _layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

SYSTEMD_RUN = "/usr/bin/systemd-run"
SYSTEMCTL = "/usr/bin/systemctl"
SETPRIV = "/usr/bin/setpriv"
SHELL = "/bin/sh"
STOP_SECONDS = 10
TERMINAL = ("TERM", "COLORTERM")

# The death signal is set after the fork: without the look at $PPID a slotctl that dies in between would go unnoticed.
IF_PARENT_LIVES = '[ "$PPID" = "$1" ] || exit 1; shift; exec "$@"'

_TERMINAL_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+_-")


def scope_unit(slot: str, session: str) -> str:
    """Return the scope that lives as long as the session's caller."""
    return _layout.session_unit(slot, session).removesuffix(".service") + ".scope"


def properties(
    slot: str, session: str, release: str, credential: str | None, session_max: str | None, *, terminal: bool
) -> list[tuple[str, str]]:
    """Return the properties of a session's service; credential is the path of its EnvironmentFile."""
    account = _layout.account(slot)
    scope = scope_unit(slot, session).replace("\\", "\\\\")  # systemd-run takes lists of units apart as a shell would
    found = [
        ("Type", "exec"),
        ("BindsTo", scope),
        ("After", scope),
        ("Slice", _layout.slice_unit(slot)),
        ("User", account),
        ("Group", account),
        ("UMask", "0077"),
        ("WorkingDirectory", "/"),
        ("RuntimeDirectory", f"confined-slots/{slot}/{session}"),
        ("RuntimeDirectoryMode", "0700"),
        ("LimitCORE", "0"),
        ("KillMode", "control-group"),
        # an interactive shell ignores SIGTERM and ends with its terminal; others SIGHUP would only cut short
        ("SendSIGHUP", "yes" if terminal else "no"),
        ("TimeoutStopSec", str(STOP_SECONDS)),
        # a build that runs out of memory is the CLI's to report; the session goes on
        ("OOMPolicy", "continue"),
        ("ExecStopPost", f"+{release}/bin/slotctl session-ended {slot} {session}"),
    ]
    if credential is not None:
        found.append(("EnvironmentFile", credential))
    if session_max is not None:
        found.append(("RuntimeMaxSec", session_max))
    return found


def terminal_environment(environ: t.Mapping[str, str]) -> dict[str, str]:
    """Return the caller's TERM and COLORTERM, if they look like ones."""
    found = {name: environ.get(name, "") for name in TERMINAL}
    return {name: word for name, word in found.items() if 0 < len(word) <= 64 and _TERMINAL_CHARACTERS.issuperset(word)}


def client(slot: str, session: str, words: list[str], *, parent: int) -> list[str]:
    """Return the command line that runs words in the session's scope, killed when the process parent ends."""
    return [
        *(SETPRIV, "--pdeathsig", "KILL", SHELL, "-c", IF_PARENT_LIVES, "slotctl", str(parent)),
        *(SYSTEMD_RUN, "--quiet", "--collect", "--scope", f"--unit={scope_unit(slot, session)}"),
        *(f"--description=Caller of session {session} of slot {slot}", "--", *words),
    ]


def service(
    slot: str,
    session: str,
    wanted: t.Iterable[tuple[str, str]],
    environment: t.Mapping[str, str],
    words: list[str],
    *,
    terminal: bool,
) -> list[str]:
    """Return the command line that starts a session's service and waits for its end."""
    return [
        *(SYSTEMD_RUN, "--quiet", "--wait", "--collect", "--pty" if terminal else "--pipe"),
        *(f"--unit={_layout.session_unit(slot, session)}", f"--description=Session {session} of slot {slot}"),
        *(f"--property={name}={text}" for name, text in wanted),
        *(f"--setenv={name}={text}" for name, text in environment.items()),
        *("--", *words),
    ]


def tool_environment(environ: t.Mapping[str, str]) -> dict[str, str]:
    """Return the environment of systemd's tools: no bus of the caller's choice, nothing drawn on the terminal."""
    quiet = {"SYSTEMD_ADJUST_TERMINAL_TITLE": "0", "SYSTEMD_TINT_BACKGROUND": "0", "SYSTEMD_COLORS": "0"}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **quiet, **terminal_environment(environ)}


def spawn(words: list[str], streams: t.Sequence[int] = (0, 1, 2)) -> int:
    """Start a program with these descriptors as its standard streams and no other; return its process id."""
    import signal

    actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(streams)]
    environment = tool_environment(os.environ)
    return os.posix_spawn(words[0], words, environment, file_actions=actions, setsigdef=[signal.SIGPIPE])


def start_stopping(slot: str, sessions: list[str]) -> int:
    """Have systemd stop sessions: SIGTERM, after STOP_SECONDS SIGKILL; return the pid of systemctl, which waits."""
    return _start_stopping([_layout.session_unit(slot, session) for session in sessions])


def drop_scope(slot: str, session: str) -> None:
    """Drop the scope of a caller that was killed before PID 1 had put it there: PID 1 waits for it for ever."""
    os.waitpid(_start_stopping([scope_unit(slot, session)]), 0)


def _start_stopping(units: list[str]) -> int:
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        return spawn([SYSTEMCTL, "stop", "--quiet", "--", *units], (null, null, null))
    finally:
        os.close(null)


def stop(slot: str, sessions: list[str]) -> None:
    """Stop sessions and wait until none of their processes is left; `runs` tells whether it could be done."""
    os.waitpid(start_stopping(slot, sessions), 0)


def runs(slot: str, session: str) -> bool:
    """Return whether the session's unit is starting, running or stopping."""
    return show(_layout.session_unit(slot, session), ["ActiveState"]).get("ActiveState") not in ("inactive", "failed")


def show(name: str, wanted: t.Sequence[str]) -> dict[str, str]:
    """Return properties of a unit as systemd has them."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    words = [SYSTEMCTL, "show", f"--property={','.join(wanted)}", "--", name]
    child = spawn(words, (null, write_end, null))
    os.close(write_end)
    os.close(null)
    with open(read_end, encoding="utf-8", errors="replace") as file:
        found = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
    os.waitpid(child, 0)
    return found
