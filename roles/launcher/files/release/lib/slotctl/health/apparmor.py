# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""AppArmor: the profiles of confined.slots are loaded and enforced, and a session really is held by one."""

from __future__ import annotations

from confined_slots._health import CouldNot, DoesNotApply, Outcome, critical, ok, warn
from confined_slots._refusals import printable

from ..selftest import PAYLOAD_PROFILE
from .confinement import PROFILE, SECONDS
from .context import Check, Context

ENABLED = "/sys/module/apparmor/parameters/enabled"
PROFILES = "/sys/kernel/security/apparmor/profiles"
WANTED = (
    "confined-slots-launcher",
    "confined-slots-slotctl",
    "confined-slots-bwrap",
    PAYLOAD_PROFILE,
)
CURE = "run the role confined.slots.apparmor; then 'aa-status' shows them"


def is_enabled() -> bool:
    """Return whether this kernel holds processes by AppArmor profiles."""
    try:
        with open(ENABLED, encoding="ascii") as file:
            return file.read(1) == "Y"
    except FileNotFoundError:
        return False


def loaded() -> dict[str, str]:
    """Return the mode (enforce, complain, …) of each loaded profile of confined.slots; CouldNot if none can be read."""
    if not is_enabled():
        return {}
    try:
        with open(PROFILES, encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 22).splitlines()
    except OSError as error:
        raise CouldNot(f"{PROFILES}: {error.strerror}") from None
    found = dict(line.rpartition(" (")[::2] for line in lines)
    return {name: mode.rstrip(")") for name, mode in found.items() if name.startswith("confined-slots-")}


def profiles(_context: Context) -> Outcome:
    """Return whether all profiles are loaded and enforced."""
    if not is_enabled():
        raise DoesNotApply("this kernel has no AppArmor")
    expected = f"{', '.join(WANTED)} are loaded and enforced"
    found = loaded()
    if not found:
        return warn("no profile of confined.slots is loaded", expected, CURE)
    missing = [name for name in WANTED if name not in found]
    if missing:
        return critical(f"not loaded: {', '.join(missing)}", expected, CURE)
    weak = [f"{name} is in {found[name]} mode" for name in WANTED if found[name] != "enforce"]
    if weak:
        return critical(printable("; ".join(weak)), expected, CURE)
    return ok(f"{len(found)} profiles", expected)


def attached(context: Context) -> Outcome:
    """Return whether a process in the sandbox is held by the profile: that it is loaded does not say so."""
    if not is_enabled():
        raise DoesNotApply("this kernel has no AppArmor")
    if PAYLOAD_PROFILE not in loaded():
        raise DoesNotApply(f"{PAYLOAD_PROFILE} is not loaded: see the check apparmor")
    expected = f"a process in the sandbox is held by {PAYLOAD_PROFILE}"
    broken = context.live.broken(PROFILE)
    if broken:
        return critical("; ".join(broken), expected, CURE)
    if "profile" not in (context.live.findings or {}):
        raise CouldNot("the probe did not say by which profile it is held")
    return ok("it is", expected)


HOST = (Check("apparmor", "AppArmor's profiles are loaded", profiles),)
SLOT = (Check("apparmor-attached", "sessions are held by AppArmor", attached, SECONDS),)
