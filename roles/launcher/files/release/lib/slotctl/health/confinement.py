# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds of a real process in the slot's sandbox, found by the probes of `slotctl selftest`, and of one outside it.

A marker that the slot's account can read from outside must not be there inside: what is only believed is not health.
"""

from __future__ import annotations

import dataclasses
import json
import re

from confined_slots._as_slot import as_slot
from confined_slots._health import CouldNot, DoesNotApply, Outcome, critical, ok, unknown, warn
from confined_slots._host import landlock_abi
from confined_slots._landlock import SCOPE_ABI
from confined_slots._plan import Record, values
from confined_slots._refusals import printable

from .. import checks, probe, selftest, slots
from ..mutations import Mutation
from .context import CONVERGE, Check, Context, refusing
from .policy import SHOWN, promised

SECONDS = 25.0
# What the probes say about the view that the policy promises; the others are about what must not be reached.
VIEW = frozenset({"bind", "data", "symlink", "tmpfs", "mask", "hold", "seal", "read-only-workspace", "workspace"})
VIEW = VIEW | {"run-directory", "private-network"}
OUTSIDE = frozenset({"account-home", "configuration", "homes", "host-network", "host-process", "host-scratch", "logs"})
OUTSIDE = OUTSIDE | {"other-sessions", "other-slots", "other-workspaces", "releases", "sockets"}

PROFILE = frozenset({"label"})
_ACCEPTS = 0x10000  # __SO_ACCEPTCON
_SOCKET = re.compile(rb"[0-9a-fA-F]+: [0-9A-F]{8} [0-9A-F]{8} ([0-9A-F]{8}) [0-9A-F]{4} [0-9A-F]{2} +[0-9]+ (@.*)")
MOST_SOCKETS = 200_000


@dataclasses.dataclass(frozen=True)
class Live:
    """What the probes found inside: by probe "" or what is wrong, None if no process came to be, with what was said.

    reached: what the same account reaches of the markers without a sandbox.
    """

    findings: dict[str, str] | None
    said: str
    reached: str

    def broken(self, which: frozenset[str], *, among: bool = True) -> list[str]:
        """Return what is wrong among the probes of these kinds (or of all others); CouldNot if none has run."""
        if self.findings is None:
            raise CouldNot("no process came to be in the sandbox: see the check sandbox")
        bad = {name: what for name, what in self.findings.items() if what}
        return [f"{name}: {what}" for name, what in bad.items() if (name.partition(":")[0] in which) is among]


def live(slot: slots.Slot) -> Live:
    """Start a process in the sandbox of the slot's first workspace, by its plan, and compare with what it is shown."""
    shown = [*(record for record in slot.records if record[0] not in SHOWN), *promised(slot)]
    with selftest.bench(slot.name, shown) as stands:
        run = selftest.Run(slot.name, next(iter(slot.base["workspaces"])), slots.current_release(), shown, stands)
        findings = run.confined(Mutation("none", frozenset(), tuple(slot.records)))
        outside = as_slot(slot.uid, slot.gid, lambda: json.dumps(probe.invisible(*stands.markers)).encode(), 4096)
    return Live(findings, run.said, str(json.loads(outside or b'""')))


def sandbox(context: Context) -> Outcome:
    """A process really starts as the slot, in namespaces of its own, without privilege and with nothing inherited."""
    found = context.live
    expected = "a process starts in namespaces of its own, holds no privilege and inherits nothing"
    cure = f"slotctl selftest {context.name}"
    if found.findings is None:
        return critical(f"no process came to be: {found.said}", expected, cure)
    broken = found.broken(VIEW | OUTSIDE | PROFILE, among=False)
    if broken:
        return critical("; ".join(broken), expected, cure)
    return ok(f"{len(found.findings)} probes ran in it", expected)


def marker(context: Context) -> Outcome:
    """A fresh marker outside is not reached from inside, and is reached by the same account without a sandbox."""
    found = context.live
    expected = "what was laid outside is reached without the sandbox, and not from inside"
    broken = found.broken(OUTSIDE)
    if broken:
        return critical("; ".join(broken), expected, f"slotctl selftest {context.name}")
    if not found.reached:
        what = "the marker was not reached without the sandbox either, so that the probe proves nothing"
        return unknown(what, f"slotctl selftest {context.name}")
    return ok("three fresh markers: reached outside, not inside", expected)


def view(context: Context) -> Outcome:
    """What is seen inside is what the policy lists: each bind, mask, file and size, its mode included."""
    expected = "each mount is as the policy lists it"
    broken = context.live.broken(VIEW)
    if broken:
        return critical("; ".join(broken), expected, f"slotctl binds {context.name}; then converge the host")
    return ok(f"{len(values(context.slot.records, 'bind'))} binds as listed", expected)


def mode(context: Context) -> Outcome:
    """The plan is one of the mode that the policy names, and of the one that the inventory declares."""
    policy, records = context.policy, context.slot.records
    name = str(policy["mode"])
    shown = f"{name} ({policy['note']})" if policy.get("note") else name
    declared = context.declared.mode if context.declared else None
    expected = f"mode {declared or name}"
    if declared and declared != name:
        return critical(f"mode {shown}", expected, slots.CONVERGE)
    why = _weaker(name, records)
    if why:
        return critical(f"mode {shown}, but {why}", expected, slots.CONVERGE)
    return ok(f"mode {shown}", expected)


def _weaker(name: str, records: list[Record]) -> str:
    """Return what in a plan belongs to a weaker mode than it says, "" if nothing does."""
    targets = [target for _mode, _source, target in values(records, "bind")]
    if name != "compatibility" and "/" in targets:
        return "its plan shows the host's root"
    if name == "verified" and not values(records, "approved"):
        return "its plan needs no approval"
    homes = [text for variable, text in values(records, "set") if variable == "HOME"]
    if name == "verified" and any(home in targets for home in homes):
        return "its plan keeps all of HOME"
    return ""


def abstract_sockets(context: Context) -> Outcome:
    """ES-04: on the host's network a session reaches abstract sockets, whoever listens there."""
    if context.policy["network"] != "host":
        raise DoesNotApply("its network is its own")
    if values(context.slot.records, "landlock"):
        raise DoesNotApply("Landlock's scope keeps its sessions from them")
    if landlock_abi() >= SCOPE_ABI:
        what = "its plan was compiled without Landlock's scope, which this kernel has"
        return warn(what, "no abstract socket of the host is in reach", CONVERGE)
    expected = "no abstract socket listens on the host's network"
    found = context.host.listeners
    if found is None:
        raise CouldNot("the kernel's table of Unix sockets could not be read to its end")
    if found:
        what = f"the slot is on the host's network and reaches {', '.join(found[:5])}"
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        return warn(what + more, expected, "declare network: private, or stop what listens there")
    return ok("none listens", expected)


def listeners(path: str = "/proc/net/unix") -> list[str] | None:
    """Return the names of abstract sockets that listen, by the kernel's table; None if that has no end.

    The kernel writes names as they are, line breaks included: what is no line of its own is left out.
    """
    found = set()
    with open(path, "rb") as file:
        for number, line in enumerate(file):
            if number == MOST_SOCKETS:
                return None
            if (match := _SOCKET.match(line)) and int(match[1], 16) & _ACCEPTS:
                found.add(printable(match[2].decode("utf-8", "replace")))
    return sorted(found)


def network(context: Context) -> Outcome:
    """Return whether what makes a private network is there."""
    if context.slot.base["network"] != "private":
        raise DoesNotApply("its network is not private")
    return refusing(checks.network, "pasta, ip and /dev/net/tun for a private network")(context)


HOST: tuple[Check, ...] = ()
SLOT = (
    Check("sandbox", "a process starts in the slot's sandbox", sandbox, SECONDS),
    Check("marker", "what is outside is not reached from inside", marker, SECONDS),
    Check("view", "inside is what the policy lists", view, SECONDS),
    Check("mode", "the slot has its mode", mode),
    Check("network", "the slot's network can be made", network),
    Check("abstract-sockets", "no abstract socket of others is in reach", abstract_sockets),
)
