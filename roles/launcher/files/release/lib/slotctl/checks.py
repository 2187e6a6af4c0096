# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must be true before a session starts: one function a check, returning what was found, or a Refusal."""

from __future__ import annotations

import grp
import os
import pwd

from confined_slots import _approvals, _layout, _network
from confined_slots._manifest import EXPIRES, VOUCHING, vouched
from confined_slots._plan import value, values
from confined_slots._refusals import Refusal

from . import unit
from .slots import CONVERGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .slots import Slot

MOST_CREDENTIAL = 1 << 17
_NAME = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def account(slot: Slot) -> str:
    """Refuse if the slot's account is not the one that the plan was compiled for, or is in other groups."""
    name = _layout.account(slot.name)
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise Refusal("policy-invalid", f"there is no account {name}", CONVERGE) from None
    found = f"{entry.pw_uid}:{entry.pw_gid}"
    if (entry.pw_uid, entry.pw_gid) != (slot.uid, slot.gid):
        raise Refusal("policy-invalid", f"{name} is {found}, its plan was compiled for {slot.uid}:{slot.gid}", CONVERGE)
    extra = sorted(group.gr_name for group in grp.getgrall() if name in group.gr_mem and group.gr_gid != slot.gid)
    if extra:
        raise Refusal("sandbox-unavailable", f"{name} is in other groups: {', '.join(extra)}", CONVERGE)
    return f"{name} {found}"


def approval(slot: Slot) -> str:
    """Refuse if the slot's policy needs a person's approval and has none, or one of another policy."""
    if not values(slot.records, "approved"):
        return "none needed"
    return _approvals.check({**slot.base, "fingerprint": value(slot.records, "approved")}, _approvals.read(slot.name))


def network(slot: Slot) -> str:
    """Refuse if the slot has a private network and what makes it is not there."""
    if values(slot.records, "network"):
        _network.check()
    return str(slot.policy["network"])


def docker(slot: Slot) -> str:
    """Refuse if the slot has a Docker daemon of its own and it does not answer."""
    if not slot.policy.get("docker"):
        return "none declared"
    from confined_slots import _docker  # as slow to import as it is seldom needed
    from confined_slots._host import Account

    if _docker.answers(slot.name, Account(slot.uid, slot.gid)):
        return _layout.docker_socket(slot.name)
    name = _layout.docker_unit(slot.name)
    state = unit.show(name, ["ActiveState"]).get("ActiveState") or "unknown to systemd"
    what = f"the slot's Docker daemon does not answer at {_layout.docker_socket(slot.name)}; {name} is {state}"
    raise Refusal("docker-unavailable", what, f"systemctl restart {name}, or see journalctl -b -u {name}")


def credential_file(slot: Slot) -> str | None:
    """Return the path of the file with the slot's credential, None if it was declared without one."""
    if not values(slot.records, "credential"):
        return None
    return _layout.credential(slot.name, slot.policy["provider"]["name"])


def credential(slot: Slot) -> str:
    """Refuse if the credential that the plan asks for is not there, could have come from others, or is not just one."""
    path = credential_file(slot)
    if path is None:
        return "none declared"
    data = _credential_bytes(path)
    ((name, _unused),) = values(slot.records, "credential")
    rest = data.partition(b"\n")[2] if data.startswith(VOUCHING) else data
    lines = (rest.partition(b"\n")[2] if rest.startswith(EXPIRES) else rest).split(b"\n")
    if len(lines) != 2 or lines[1] or not lines[0].startswith(name.encode() + b"="):
        names = ", ".join(sorted({each for each in map(_name_set_by, lines) if each})) or "no variable"
        what = f"{path} must be one line, ended by LF, that sets {name}; it has {len(lines) - 1} and sets {names}"
        raise Refusal("credential-malformed", what, CONVERGE)
    for offset, byte in enumerate(lines[0]):
        if not 0x21 <= byte <= 0x7E:
            what = f"{path} has a byte at offset {offset} that is no printable ASCII"
            raise Refusal("credential-malformed", what, CONVERGE)
    if data != vouched(rest):
        raise Refusal("credential-malformed", f"{path} has not the bytes that were declared", CONVERGE)
    return path


def credential_end(slot: Slot) -> str:
    """Return the day, YYYY-MM-DD, on which the slot's credential is declared to end, "" if none is."""
    path = credential_file(slot)
    lines = [] if path is None else _credential_bytes(path).split(b"\n")[:2]
    return next((line[len(EXPIRES) :].decode("ascii", "replace") for line in lines if line.startswith(EXPIRES)), "")


def _credential_bytes(path: str) -> bytes:
    """Return what a credential file holds; Refusal unless it is root's own and holds something."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refusal("credential-missing", f"{path}: {error.strerror}", CONVERGE) from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != 0 or found.st_mode & 0o177777 != 0o100600:
            raise Refusal("credential-missing", f"{path} is not root's own file with mode 0600", CONVERGE)
        data = os.read(descriptor, MOST_CREDENTIAL)
    finally:
        os.close(descriptor)
    if not data:
        raise Refusal("credential-missing", f"{path} is empty", CONVERGE)
    return data


def _name_set_by(line: bytes) -> str:
    """Return the variable that a line sets, "" if it may be a piece of a token: base64 ends in '=' as well."""
    name, _unused, rest = line.partition(b"=")
    is_name = 0 < len(name) <= 64 and name[:1].isalpha() and _NAME.issuperset(name)
    return name.decode("ascii") if is_name and rest.strip(b'="') else ""
