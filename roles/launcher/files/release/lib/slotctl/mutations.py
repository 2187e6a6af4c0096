# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `slotctl selftest` takes away, one thing at a time, and which probe must speak then."""

from __future__ import annotations

import dataclasses
import os
import typing as t

from confined_slots import _layout
from confined_slots._plan import Record, values

DID_NOT_START = "start"
SOCKET_DIRECTORIES = ("/run/dbus", "/run/systemd/journal")
STAND_IN = "/usr/share"
# BPF of one instruction: allow.
ALLOW_ALL = "0600000000" + "00ff7f"
# The launcher refuses a source in a directory that the slot can write.
UNCHECKED_MOUNTS = "_launch.check_mounts = lambda records, workspace: None"
UNCHECKED_LABEL = "_launch.check_label = lambda records: None"
# What the seccomp filter stops.
FILTERED = frozenset({"kernel-doors", "keyrings", "odd-sockets", "terminal"})

PATCHES = {
    "descriptors": "_launch.close_all_but = lambda keep: None",
    "environment": "real = _launch.os.execve; _launch.os.execve = lambda f, a, e: real(f, a, dict(_launch.os.environ))",
    "groups": "_launch.check_account = lambda records: None",
    "signals": "_launch.reset_signals = lambda: None",
    "terminal": "real = _launch.read_checked; _launch.read_checked = "
    f"lambda p: bytes.fromhex('{ALLOW_ALL}') if p.endswith('seccomp.bpf') else real(p)",
}


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One thing taken away, and the probes that must speak then.

    without_start: nothing can run without it, so a session that does not start is as good. patch: Python that takes a
    check out of the launcher. groups: supplementary groups the process is started with. profile: the AppArmor profile
    that a patched launcher starts in, since its path gives it none. among: others may speak too, since in compatibility
    mode the host shows through wherever something is taken away.
    """

    name: str
    expected: frozenset[str]
    records: tuple[Record, ...]
    without_start: bool = False
    patch: str = ""
    groups: str = ""
    profile: str = ""
    among: bool = False

    def caught(self, failing: frozenset[str]) -> bool:
        """Return whether exactly the right probes spoke."""
        if self.among and failing and self.expected <= failing:
            return True
        return failing == self.expected or (self.without_start and failing == {DID_NOT_START})


def mutations(
    slot: str, workspace: str, plan: t.Sequence[Record], other_session: str, marker: str
) -> t.Iterator[Mutation]:
    """Yield every mutation of a plan and of its launcher."""
    records = tuple(plan)
    yield from _taken_away(records)
    yield from _opened(records)
    for source, target, probe in _leaks(slot, workspace, other_session):
        yield Mutation(f"bind {target}", frozenset([probe]), _before_seals(records, ("bind", "ro", source, target)))
    ((profile,),) = values(list(records), "label") or [("",)]
    leak = _before_seals(records, ("bind", "ro", marker, marker))
    scratch = f"bind {os.path.dirname(marker)}"
    yield Mutation(scratch, frozenset(["host-scratch"]), leak, patch=UNCHECKED_MOUNTS, profile=profile)
    yield Mutation(
        "hold capabilities", frozenset(["privileges"]), _before_seals(records, ("flag", "--cap-add"), ("flag", "ALL"))
    )
    for probe, patch in PATCHES.items():
        expected = FILTERED if probe == "terminal" else frozenset([probe])
        groups = "adm" if probe == "groups" else ""
        without = Mutation(f"launcher without its check of {probe}", expected, records, patch=patch, groups=groups)
        if probe == "environment":  # the other walls hide as well what the sandbox's first process has in it
            without = _without_landlock(without)
        yield outside(without) if probe == "environment" and profile else dataclasses.replace(without, profile=profile)
    if profile:
        yield Mutation("launcher outside of its profile", frozenset(), records, without_start=True, patch="pass")
        seen = frozenset() if ("flag", "--disable-userns") in records else frozenset(["nested-namespaces"])
        yield outside(Mutation("no AppArmor", seen, records))


def outside(mutation: Mutation) -> Mutation:
    """Return the mutation without AppArmor, which would hold what is taken away."""
    return dataclasses.replace(
        mutation,
        expected=mutation.expected | {"label"},
        records=tuple(record for record in mutation.records if record[0] != "onexec"),
        patch=f"{mutation.patch or 'pass'}; {UNCHECKED_LABEL}",
    )


def _taken_away(records: tuple[Record, ...]) -> t.Iterator[Mutation]:
    for index, (keyword, *words) in enumerate(records):
        rest = records[:index] + records[index + 1 :]
        if keyword in ("bind", "data", "symlink", "tmpfs", "seal"):
            yield Mutation(
                f"no {keyword} {words[-1]}",
                frozenset([f"{keyword}:{words[-1]}"]),
                rest,
                without_start=keyword in ("bind", "symlink"),
            )
        elif keyword == "run":
            yield Mutation("no run directory", frozenset(["run-directory"]), rest)
        elif keyword == "landlock" and not offline(rest):
            yield _without_landlock(Mutation("no Landlock", frozenset(), records))
        elif keyword == "network":
            yield Mutation("no way out of its network", frozenset(["private-network"]), rest)
        elif keyword in ("bind-workspace", "proc", "dev"):
            yield Mutation(f"no {keyword}", frozenset(), rest, without_start=True)
        elif keyword in ("mask", "hold"):
            open_again = tuple(record for record in rest if record != ("seal", words[-1]))
            expected = frozenset([f"{keyword}:{words[-1]}"])
            yield Mutation(f"no {keyword} {words[-1]}", expected, open_again, without_start=True)
        elif keyword == "hostname":
            yield Mutation("no name of its own", frozenset(["own-name"]), rest)
        elif keyword == "flag" and (words[0] != "--unshare-user" or ("flag", "--disable-userns") in rest):
            # bwrap makes a user namespace anyhow; --disable-userns asks for it in so many words
            yield _without_flag(words[0], rest)


def _without_landlock(mutation: Mutation) -> Mutation:
    """Return the mutation without Landlock; where the network is the host's, abstract sockets answer then."""
    rest = tuple(record for record in mutation.records if record[0] != "landlock")
    more = frozenset() if rest == mutation.records or offline(rest) else frozenset(["abstract-sockets"])
    return dataclasses.replace(mutation, expected=mutation.expected | more, records=rest)


def _without_flag(flag: str, rest: tuple[Record, ...]) -> Mutation:
    kind = flag.removeprefix("--unshare-")
    expected = {
        "--disable-userns": {"nested-namespaces"},
        "--unshare-pid": {"namespace:pid", "host-process"},
        "--unshare-net": {"namespace:net", "host-network"},
    }.get(flag, {f"namespace:{kind}"})
    # bwrap itself refuses --disable-userns and --hostname without these, pasta joins no network of the host's
    without_start = flag in ("--unshare-user", "--unshare-uts") or ("network", "private") in rest
    without = Mutation(f"no {flag}", frozenset(expected), rest, without_start=without_start)
    if not values(list(rest), "label"):
        return without
    if flag == "--unshare-pid":  # the first process is the host's then
        return dataclasses.replace(without, expected=without.expected | {"label"})
    return outside(without) if flag == "--disable-userns" else without


def _opened(records: tuple[Record, ...]) -> t.Iterator[Mutation]:
    for index, (keyword, *words) in enumerate(records):
        if keyword == "bind" and words[0] == "ro":
            changed = (*records[:index], ("bind", "rw", *words[1:]), *records[index + 1 :])
            yield Mutation(f"writable {words[-1]}", frozenset([f"bind:{words[-1]}"]), changed)
        elif keyword == "bind-workspace" and words[0] == "ro":
            changed = (*records[:index], ("bind-workspace", "rw"), *records[index + 1 :])
            yield Mutation("writable workspace", frozenset(["read-only-workspace"]), changed)


def _leaks(slot: str, workspace: str, other_session: str) -> t.Iterator[tuple[str, str, str]]:
    """Yield source and target of binds that must not be, and the probe that sees them.

    Stand-ins where there is no other.
    """
    state = _layout.state(slot)
    for directory, own, probe in (
        (_layout.SLOTS, slot, "other-slots"),
        (f"{state}/workspaces", workspace, "other-workspaces"),
    ):
        others = sorted(set(os.listdir(directory)) - {own})
        yield (
            (f"{directory}/{others[0]}", f"{directory}/{others[0]}", probe)
            if others
            else (STAND_IN, f"{directory}/other", probe)
        )
    yield f"{state}/home", f"{state}/home", "account-home"
    yield other_session, other_session, "other-sessions"
    yield _layout.SLOTS_D, _layout.SLOTS_D, "configuration"
    yield "/home", "/home", "homes"
    yield _layout.RELEASES, _layout.RELEASES, "releases"
    yield _layout.LOG, _layout.LOG, "logs"
    for directory in SOCKET_DIRECTORIES:
        if os.path.isdir(directory):
            yield directory, directory, "sockets"
            break


def _before_seals(records: tuple[Record, ...], *added: Record) -> tuple[Record, ...]:
    first = next(index for index, record in enumerate(records) if record[0] == "seal")
    return (*records[:first], *added, *records[first:])


def read_only(records: t.Sequence[Record]) -> bool:
    """Return whether the plan gives its workspace to be read only."""
    return ("ro",) in values(list(records), "bind-workspace")


def offline(records: t.Sequence[Record]) -> bool:
    """Return whether the plan takes the network away."""
    return ("--unshare-net",) in values(list(records), "flag")
