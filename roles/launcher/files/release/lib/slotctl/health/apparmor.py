# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""AppArmor: the profiles of confined.slots are loaded and enforced, and a session really is held by one."""

from __future__ import annotations

from confined_slots import _apparmor, _apparmor_profiles
from confined_slots._health import CouldNot, DoesNotApply, Outcome, critical, ok, warn
from confined_slots._plan import values
from confined_slots._refusals import printable

from .confinement import PROFILE, SECONDS
from .context import CONVERGE, Check, Context

WANTED = (_apparmor_profiles.LAUNCHER, _apparmor_profiles.SLOTCTL, _apparmor_profiles.BWRAP, _apparmor_profiles.PAYLOAD)
CURE = "run the role confined.slots.apparmor; then 'aa-status' shows them"


def loaded() -> dict[str, str]:
    """Return the mode of each profile of confined.slots that the kernel has."""
    return {name: mode for name, mode in _apparmor.modes().items() if name in _apparmor_profiles.ALL}


def profiles(_context: Context) -> Outcome:
    """Return whether all profiles are loaded and enforced."""
    if not _apparmor.active():
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
    if not _apparmor.active():
        raise DoesNotApply("this kernel has no AppArmor")
    if not values(context.slot.records, "label"):
        if not loaded():
            raise DoesNotApply("no profile of confined.slots is loaded: see the check apparmor")
        return warn("its plan was compiled without AppArmor", "a session is held by a profile", CONVERGE)
    expected = "a process in the sandbox is held by its profile, enforced"
    broken = context.live.broken(PROFILE)
    if broken:
        return critical("; ".join(broken), expected, CURE)
    if "label" not in (context.live.findings or {}):
        raise CouldNot("the probe did not say by which profile it is held")
    return ok("it is", expected)


HOST = (Check("apparmor", "AppArmor's profiles are loaded", profiles),)
SLOT = (Check("apparmor-attached", "sessions are held by AppArmor", attached, SECONDS),)
