# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The AppArmor profiles: who may make a user namespace, and that what runs inside of one may not.

    confined-slots-launcher    by the path of slot-launcher, a root-owned script in a release
      -> confined-slots-bwrap  builds the sandbox: namespaces, mounts, capabilities in its own namespace
           -> …-bwrap//&confined-slots-payload   the CLI: none of these

A transition at each exec is named, never left to the path of what is executed, so that a profile which somebody else
attaches to /usr/bin/bwrap changes nothing here. The payload is stacked on its sandbox's profile since bwrap sets
no_new_privs, under which the kernel allows nothing but narrower. Files are not this wall's subject: mounts are.
"""

from __future__ import annotations

import typing as t

from . import _layout

LAUNCHER = "confined-slots-launcher"
SLOTCTL = "confined-slots-slotctl"
BWRAP = "confined-slots-bwrap"
PAYLOAD = "confined-slots-payload"
NETWORK = "confined-slots-network"
NESTING_BWRAP = "confined-slots-nesting-bwrap"
NESTING_PAYLOAD = "confined-slots-nesting-payload"
INNER_BWRAP = "confined-slots-inner-bwrap"
ACCOUNT = "confined-slots-account"

ALL = (LAUNCHER, SLOTCTL, BWRAP, PAYLOAD, NETWORK, NESTING_BWRAP, NESTING_PAYLOAD, INNER_BWRAP, ACCOUNT)

# Written for these; a newer one could mediate what no rule here speaks of, and refuse it.
ABIS = ("3.0", "4.0")
# The first that knows the rule `userns`.
MEDIATES_NAMESPACES = "4.0"

BIN = f"{_layout.RELEASES}/*/bin"
INNER = "/usr/bin/bwrap"
SHELL = f"{_layout.OPT}/slot-shell"  # the accounts' login shell where logins are to be held

# A descriptor that the session was given is looked at again at each exec, so each profile has to name all files.
_FILES = "file rwlkm /{**,},"
# slotctl discover has strace look on.
_OBSERVED = f"ptrace (readby, tracedby) peer={{unconfined,{SLOTCTL}}},"
_BUILDS = "capability, mount, umount, pivot_root,"


def label(*, nested: bool) -> str:
    """Return the label of what runs in a session."""
    return f"{NESTING_BWRAP}//&{NESTING_PAYLOAD}" if nested else f"{BWRAP}//&{PAYLOAD}"


def text(abi: str) -> str:
    """Return the file of profiles for an ABI of ABIS: without rules that the host's parser does not know."""
    new = abi == MEDIATES_NAMESPACES
    talks = "network, unix, signal, dbus, mqueue, io_uring," if new else "network, unix, signal, dbus,"
    builds = f"{_BUILDS} userns," if new else _BUILDS
    common = (_FILES, talks)
    return "\n".join(
        [
            "# Made by confined.slots; the role apparmor keeps it.",
            f"abi <abi/{abi}>,",
            "",
            # the checks and the exec of bwrap; python3 is its own interpreter
            *_profile(
                LAUNCHER,
                f"{BIN}/slot-launcher",
                *common,
                # to find the namespaces of a sandbox that it has made, for pasta
                "ptrace, capability sys_ptrace,",
                "/usr/bin/python3* ix,",
                f"{BIN}/bwrap px -> {BWRAP},",
                f"/usr/bin/{{pasta,passt}}{{,.avx2}} px -> {NETWORK},",
                f"/usr/bin/nsenter px -> {NETWORK},",
                f"change_profile -> {NESTING_BWRAP},",
            ),
            # pasta and ip(8), in the network namespace of a sandbox that waits for them
            *_profile(NETWORK, "", *common, "ptrace,", builds, "/{usr/,}{s,}bin/* ix,"),
            *_profile(BWRAP, "", *common, "ptrace,", builds, f"/** px -> {label(nested=False)},"),
            # without `peer` a payload could trace a bwrap, its sandbox's or one that it starts, which may do all that
            *_profile(PAYLOAD, "", *common, f"ptrace peer={label(nested=False)},", _OBSERVED, "/** ix,"),
            # nested_sandbox: what /usr/bin/bwrap runs in there is held as any payload is
            *_profile(
                NESTING_BWRAP,
                "",
                *common,
                "ptrace,",
                builds,
                f"/** px -> {label(nested=True)},",
                f"{INNER} px -> {NESTING_BWRAP}//&{INNER_BWRAP},",
            ),
            *_profile(
                NESTING_PAYLOAD,
                "",
                *common,
                f"ptrace peer={label(nested=True)},",
                _OBSERVED,
                "/** ix,",
                f"{INNER} px -> {INNER_BWRAP},",
            ),
            *_profile(INNER_BWRAP, "", *common, "ptrace,", builds, f"/** px -> {PAYLOAD},"),
            # root's tool, which reads what slots have written: it has no use for namespaces, mounts and modules
            *_profile(
                SLOTCTL,
                f"{BIN}/slotctl",
                *common,
                "ptrace,",
                "capability, deny capability sys_module,",
                "/** ix,",
            ),
            # what runs as a slot's account in another way than by a session: logins, its user manager
            *_profile(ACCOUNT, SHELL, *common, "ptrace,", "capability, mount, umount, pivot_root,", "/** ix,"),
        ]
    )


def _profile(name: str, path: str, *rules: str) -> t.Iterator[str]:
    """Yield the lines of one profile."""
    yield f"profile {name} {path}{' ' if path else ''}flags=(attach_disconnected, mediate_deleted) {{"
    yield from (f"  {rule}" for rule in rules)
    yield from ("}", "")
