# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launch plan: what the launcher obeys, one file of NUL-ended words.

    confined-slots-plan 3 NUL sha256-of-the-rest NUL
    keyword NUL value NUL ...          (each keyword has a fixed number of values)

The order of the records that make mounts is the order of the mounts. Values are raw bytes on disk, so that any path
can stand in a plan. On the launcher's hot path: imports what _manifest needs, no more.
"""

from __future__ import annotations

from ._manifest import sha256

PLAN_FORMAT = 3
MAGIC = f"confined-slots-plan {PLAN_FORMAT}"

ARITY = {
    "slot": 1,  # name
    "enabled": 1,  # yes or no
    "fingerprint": 1,  # of the effective policy
    "ids": 2,  # uid and gid of the account
    "workspace": 2,  # name, path
    "own": 1,  # a directory that must be the slot's own
    "command": 1,  # one word of the fixed part of the command line, the executable first
    "identity": 3,  # path, sha256 or "distribution", stamp of the file when it was hashed
    "label": 1,  # the AppArmor profile that the launcher must run in
    "onexec": 1,  # the AppArmor profile that bwrap is to run in, where it is not the usual one
    "landlock": 1,  # scope that what runs in the sandbox is held in, as the kernel counts them
    "flag": 1,  # an option of bwrap without a value
    "network": 1,  # private
    "forward": 1,  # a port of the host's loopback that a private network reaches
    "hostname": 1,
    "bind": 3,  # ro or rw, source, target
    "bind-workspace": 1,  # the chosen workspace: ro or rw
    "run": 1,  # the session's run directory: size in bytes of the tmpfs
    "data": 2,  # content, target: a read-only file made of the plan itself
    "symlink": 2,  # content, target
    "tmpfs": 3,  # octal permissions, size in bytes, target
    "mask": 3,  # directory or file, the inode it must be or "", path: nothing is seen there
    "hold": 2,  # the inode it must be, path: a mount point of its own, so that it cannot be renamed
    "proc": 1,
    "dev": 1,
    "seal": 1,  # remounted read-only
    "set": 2,  # environment: name, value
    "pass": 1,  # environment: name taken from the caller if it is there
    "credential": 2,  # name that must be there and not empty; variable for a descriptor's number, or ""
    "approved": 1,  # fingerprint that the slot's approval must name
    "policy": 1,  # the effective policy as JSON, for people and slotctl
}
ONCE = ("slot", "enabled", "fingerprint", "ids", "policy")

Record = tuple[str, ...]


class BadPlan(ValueError):
    """The bytes are no launch plan; `tampered` tells a wrong hash from a plan of another format."""

    def __init__(self, message: str, *, tampered: bool) -> None:
        super().__init__(message)
        self.tampered = tampered


class Form:
    """One kind of file of records: its first word, how many values each keyword has, and which stand there once."""

    def __init__(self, magic: str, arity: dict[str, int], once: tuple[str, ...]) -> None:
        self.magic, self.arity, self.once = magic, arity, once


PLAN = Form(MAGIC, ARITY, ONCE)
_APPROVAL_ARITY = {
    "slot": 1,  # name
    "fingerprint": 1,  # of the policy that was approved
    "by": 1,  # the person
    "on": 1,  # the day, YYYY-MM-DD
    "about": 1,  # the approved policy and the evidence as JSON, for people and slotctl
}
APPROVAL = Form("confined-slots-approval 1", _APPROVAL_ARITY, tuple(_APPROVAL_ARITY))


def dump(records: list[Record], form: Form = PLAN) -> bytes:
    """Return the plan's bytes."""
    for record in records:
        if form.arity.get(record[0]) != len(record) - 1:
            raise ValueError(f"{record[0]!r} with {len(record) - 1} values is no record of a plan")
        if any("\0" in word for word in record):
            raise ValueError(f"a NUL cannot stand in a plan: {record!r}")
    body = b"".join(encoded(word) + b"\0" for record in records for word in record)
    return f"{form.magic}\0{sha256(body)}\0".encode() + body


def load(data: bytes, form: Form = PLAN) -> list[Record]:
    """Return the records of a plan; BadPlan unless every byte is as it was compiled."""
    magic, _unused, rest = data.partition(b"\0")
    if magic != form.magic.encode():
        raise BadPlan(f"it is not of format {form.magic.rpartition(' ')[2]}", tampered=False)
    digest, _unused, body = rest.partition(b"\0")
    if digest != sha256(body).encode():
        raise BadPlan("its bytes are not those that were compiled", tampered=True)
    words = decoded(body).split("\0")
    if words.pop() != "":
        raise BadPlan("it ends within a word", tampered=False)
    records: list[Record] = []
    position = 0
    while position < len(words):
        keyword = words[position]
        end = position + 1 + form.arity.get(keyword, len(words))
        if end > len(words):
            raise BadPlan(f"{keyword!r:.80} is no record, or ends too early", tampered=False)
        records.append(tuple(words[position:end]))
        position = end
    for keyword in form.once:
        if sum(record[0] == keyword for record in records) != 1:
            raise BadPlan(f"it needs {keyword!r} exactly once", tampered=False)
    return records


def encoded(text: str) -> bytes:
    """Return the bytes of a path or word, as `decoded` made text of them."""
    return text.encode("utf-8", "surrogateescape")


def decoded(data: bytes) -> str:
    """Return a path or word as text, whatever its bytes are."""
    return data.decode("utf-8", "surrogateescape")


def values(records: list[Record], keyword: str) -> list[Record]:
    """Return the values of each record with this keyword, in order."""
    return [record[1:] for record in records if record[0] == keyword]


def value(records: list[Record], keyword: str) -> str:
    """Return the first value of the only record with this keyword."""
    return values(records, keyword)[0][0]
