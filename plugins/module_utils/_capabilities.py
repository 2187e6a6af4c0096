# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Capabilities: what a slot can be allowed, in words for people, and what that maps to.

A provider's profile maps its own to its state, credentials and hosts; a site maps its own to paths of its hosts,
variables and hosts of the network.
"""

from __future__ import annotations

import dataclasses
import typing as t

from . import _schema
from ._declarations import ExtraBind, Invalid, extra_bind
from ._profile_schema import CAPABILITIES

if t.TYPE_CHECKING:
    from ._profiles import Profile

# The compiler sets these itself.
OWN = ("CONFINED_SLOT", "HOME", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER")
# These have a program run other code than its own.
DENIED = (
    *("BASH_ENV", "BUN_OPTIONS", "ENV", "GCONV_PATH", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("NODE_OPTIONS", "NODE_PATH"),
)


@dataclasses.dataclass(frozen=True)
class Capability:
    """One thing that a slot can be allowed; required if nothing of its provider runs without it.

    state is relative to HOME, credentials are names, binds are of the host, variables have values, hosts are HOST:PORT.
    """

    key: str
    words: str
    why: str
    required: bool = False
    state: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    binds: tuple[ExtraBind, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    hosts: tuple[str, ...] = ()


def parse(declared: t.Mapping[str, t.Mapping[str, t.Any]]) -> dict[str, Capability]:
    """Return a site's capabilities by key; Invalid names the first value that cannot be."""
    _schema.check(declared, CAPABILITIES, "the site's capabilities", "mend its declaration")
    return {key: _site(key, entry) for key, entry in declared.items()}


def merge(site: t.Mapping[str, Capability], profile: Profile) -> dict[str, Capability]:
    """Return all that a slot of a provider can be allowed; Invalid if the site redefines what the profile says."""
    own = {capability.key: capability for capability in profile.capabilities}
    for key in sorted(set(own) & set(site)):
        raise Invalid(f"the site's capability '{key}' is one of the profile '{profile.name}' too [rename the site's]")
    for key, capability in site.items():
        refuse_variables((name for name, _unused in capability.variables), profile.denied, f"capability '{key}'")
    return {**own, **site}


def chosen(keys: t.Sequence[str], known: t.Mapping[str, Capability], where: str) -> tuple[Capability, ...]:
    """Return the capabilities of these keys, sorted; Invalid names a key that is unknown, or what two contradict in."""
    values: dict[str, tuple[str, str]] = {}
    for key in sorted(set(keys)):
        if key not in known:
            raise Invalid(f"{where}: capabilities has {key!r:.80}; it can have {', '.join(sorted(known))} [mend it]")
        for name, value in known[key].variables:
            first, other = values.setdefault(name, (value, key))
            if first != value:
                raise Invalid(f"{where}: capabilities {other} and {key} set {name} differently [take one away]")
    return tuple(known[key] for key in sorted(set(keys)))


def refuse_variables(names: t.Iterable[str], denied: t.Collection[str], where: str) -> None:
    """Raise Invalid for a variable that is denied, or the compiler's own."""
    for name in names:
        if name in denied:
            raise Invalid(f"{where} has {name}, which is denied [take it away]")
        if name in OWN:
            raise Invalid(f"{where} has {name}, which each session gets a value of its own for [take it away]")


def _site(key: str, entry: t.Mapping[str, t.Any]) -> Capability:
    where = f"capability '{key}'"
    variables = tuple(sorted(entry.get("variables", {}).items()))
    refuse_variables((name for name, _unused in variables), DENIED, where)
    binds = enumerate(entry.get("binds", ()))
    return Capability(
        key,
        entry["words"],
        entry["why"],
        binds=tuple(extra_bind(bind, f"{where}: binds[{index}]") for index, bind in binds),
        variables=variables,
        hosts=tuple(entry.get("hosts", ())),
    )
