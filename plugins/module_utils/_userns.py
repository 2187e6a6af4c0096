# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's own settings about user namespaces: read, named and respected, never written."""

from __future__ import annotations

import os

SYS = "/proc/sys"
CLONE = "kernel/unprivileged_userns_clone"
MOST = {kind: f"user/max_{kind}_namespaces" for kind in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")}
RESTRICTED = "kernel/apparmor_restrict_unprivileged_userns"
UNCONFINED = "kernel/apparmor_restrict_unprivileged_unconfined"
ALL = (CLONE, *MOST.values(), RESTRICTED, UNCONFINED)

# A session makes one or two of each kind; fewer than this leaves no room for the sessions of a slot.
FEWEST = 16


def read(root: str = SYS) -> dict[str, int]:
    """Return the settings that this kernel has, by their name below /proc/sys."""
    found = {}
    for name in ALL:
        try:
            with open(os.path.join(root, name), encoding="ascii") as file:
                found[name] = int(file.read())
        except (OSError, ValueError):
            continue
    return found


def obstacles(found: dict[str, int], *, profiles: bool) -> list[str]:
    """Return in words what keeps slots from running; profiles says whether those of this project are in force."""
    words = []
    if found.get(CLONE, 1) == 0:
        words.append(
            f"{_dotted(CLONE)} is 0: only root may make user namespaces, AppArmor cannot except anybody, and slots"
            " cannot run on such a host [decide whether this host is for slots, and set it to 1 where it was set to 0]"
        )
    for name in MOST.values():
        if found.get(name, FEWEST) < FEWEST:
            cure = f"raise it to at least {FEWEST} where it was set"
            words.append(f"{_dotted(name)} is {found[name]}: each session needs one or two [{cure}]")
    if found.get(RESTRICTED, 0) and not profiles:
        words.append(
            f"{_dotted(RESTRICTED)} is 1: only what an AppArmor profile allows may make user namespaces, and no profile"
            " of this project is in force [run the role confined.slots.apparmor; leave the setting as it is]"
        )
    return words


def _dotted(name: str) -> str:
    return name.replace("/", ".")
