# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where everything stands on a host (docs/architecture.md); the only place that spells these paths."""

from __future__ import annotations

OPT = "/opt/confined-slots"
RELEASES = f"{OPT}/releases"
CURRENT = f"{OPT}/current"
PROVIDERS = f"{OPT}/providers"

ETC = "/etc/confined-slots"
SLOTS_D = f"{ETC}/slots.d"
CREDENTIALS = f"{ETC}/credentials"
LEDGER = f"{ETC}/ledger.json"

STATE = "/var/lib/confined-slots"
SLOTS = f"{STATE}/slots"
ARCHIVE = f"{STATE}/archive"
DISCOVERIES = f"{STATE}/discoveries"

RUN = "/run/confined-slots"
LOG = "/var/log/confined-slots"
DOCKER_RUN = "/run/confined-slots-docker"
UNITS = "/etc/systemd/system"
CGROUPS = "/sys/fs/cgroup"


def account(slot: str) -> str:
    """Return the name of the slot's Unix account (and of its primary group)."""
    return f"slot-{slot}"


def state(slot: str) -> str:
    """Return the slot's directory of homes and workspaces."""
    return f"{SLOTS}/{slot}"


def account_home(slot: str) -> str:
    """Return the home of the account itself, which no session of a strict mode sees."""
    return f"{SLOTS}/{slot}/home"


def private_home(slot: str, provider: str) -> str:
    """Return the HOME of the slot's sessions in isolated mode."""
    return f"{SLOTS}/{slot}/homes/{provider}"


def approved_state(slot: str, provider: str, path: str) -> str:
    """Return a directory of the provider's state in verified mode; what is above it is root's."""
    return f"{SLOTS}/{slot}/states/{provider}/{path}"


def kept(slot: str, provider: str) -> str:
    """Return the directory of dated copies of the provider's small state files, which no session sees."""
    return f"{SLOTS}/{slot}/kept/{provider}"


def workspace(slot: str, name: str) -> str:
    """Return a workspace's directory, the same on the host and inside."""
    return f"{SLOTS}/{slot}/workspaces/{name}"


def policy(slot: str) -> str:
    """Return the directory of the slot's compiled policy."""
    return f"{SLOTS_D}/{slot}"


def plan(slot: str, workspace: str = "") -> str:
    """Return the launch plan, the one file that the launcher obeys; a workspace that is narrower has its own."""
    return f"{SLOTS_D}/{slot}/plan{'-' if workspace else ''}{workspace}"


def approval(slot: str) -> str:
    """Return the approval of the slot's policy, for verified mode."""
    return f"{SLOTS_D}/{slot}/approval"


def discoveries(slot: str) -> str:
    """Return the directory with the evidence of the slot's discoveries, root's alone."""
    return f"{DISCOVERIES}/{slot}"


def discovery(slot: str, session: str) -> str:
    """Return the directory with the evidence of one discovery."""
    return f"{DISCOVERIES}/{slot}/{session}"


def schedules(slot: str) -> str:
    """Return the directory with what the slot's schedules are to do."""
    return f"{SLOTS_D}/{slot}/schedules"


def schedule(slot: str, name: str) -> str:
    """Return the file that says what one schedule is to do."""
    return f"{schedules(slot)}/{name}.json"


def credential(slot: str, provider: str) -> str:
    """Return the slot's credential file for one provider, read by PID 1 only."""
    return f"{CREDENTIALS}/{slot}/{provider}.env"


def run_directory(slot: str, session: str) -> str:
    """Return the session's private scratch, made and removed by PID 1."""
    return f"{RUN}/{slot}/{session}"


def log(slot: str) -> str:
    """Return the directory of the slot's session records."""
    return f"{LOG}/{slot}"


def docker_data(slot: str) -> str:
    """Return the directory of the slot's Docker daemon: images, containers, volumes."""
    return f"{SLOTS}/{slot}/docker"


def docker_etc(slot: str) -> str:
    """Return the directory with what the slot's Docker daemon sees in place of the host's /etc/passwd and the like."""
    return f"{SLOTS_D}/{slot}/docker"


def docker_socket_directory(slot: str) -> str:
    """Return the directory that holds the socket of the slot's Docker daemon, and nothing else."""
    return f"{DOCKER_RUN}/{slot}"


def docker_socket(slot: str) -> str:
    """Return the socket of the slot's Docker daemon."""
    return f"{DOCKER_RUN}/{slot}/docker.sock"


def docker_unit(slot: str) -> str:
    """Return the service of the slot's Docker daemon; no slot's own units have an @ there, so none can be called so."""
    return f"confined-slots-docker@{slot}.service"


def prune_unit(slot: str) -> str:
    """Return the timer that has the slot's Docker daemon drop what nothing uses."""
    return f"confined-slots-prune@{slot}.timer"


def escaped(slot: str) -> str:
    """Return the slot's name for use in a unit name: systemd reads a plain dash in a slice's name as nesting."""
    return slot.replace("-", r"\x2d")


def slice_unit(slot: str) -> str:
    """Return the slice that holds all of the slot's sessions and daemons."""
    return f"confined-slots-{escaped(slot)}.slice"


def slice_group(slot: str) -> str:
    """Return the control group of the slot's slice, as the kernel names it: systemd nests a-b.slice in a.slice."""
    parts = slice_unit(slot).removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(parts[: number + 1])}.slice" for number in range(len(parts)))


def schedule_unit(slot: str, name: str) -> str:
    """Return a schedule's service and timer, without their suffix; the empty name gives what all the slot's begin with.

    No slot's name and no session's id can make another unit of that name: a plain dash ends the escaped slot, and an id
    begins with a digit.
    """
    return f"confined-slots-{escaped(slot)}-schedule-{name}"


def session_unit(slot: str, session: str) -> str:
    """Return the transient service of one session."""
    return f"confined-slots-{escaped(slot)}-{session}.service"
