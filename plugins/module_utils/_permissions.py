# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tree of docs/architecture.md as data, and the steps from what stands on a host to it.

Root-side directories are walked by descriptors without following links. Nothing below a directory that a slot can write
is ever looked at: of a home and of a workspace the directory itself is kept, its contents are the slot's business.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import struct
import typing as t

from . import _layout
from ._accounts import Found as Accounts
from ._accounts import parse_group, parse_passwd
from ._declarations import Slot
from ._files import Found, Owned, UnsafePath, ensure_directory, give, look, names, trusted_directory
from ._host import UNKNOWN, Account
from ._ledger import Span
from ._refusals import printable
from ._sessions import RECORDS
from ._steps import Step

DOCKER_SOCKET = "/run/docker.sock"

Kind = t.Literal["directory", "record", "input"]

_DEEPEST = 8
_ACL_USER, _ACL_OWNING_GROUP, _ACL_GROUP, _ACL_MASK = 0x02, 0x04, 0x08, 0x10


@dataclasses.dataclass(frozen=True)
class Contents:
    """How everything below a directory of root's is kept: files as said, directories like the one at the top."""

    kind: Kind
    owned: Owned


@dataclasses.dataclass(frozen=True)
class Node:
    """One directory or file that is kept.

    A record is what root writes down: its mode is repaired always. An input is what root or the launcher obeys: once
    others could write it, a repaired mode would vouch for their words, so that is a problem and not a step.
    """

    path: str
    owned: Owned
    kind: Kind = "directory"
    made: bool = True
    contents: Contents | None = None
    span: Span = (0, 0)

    def is_of(self, uid: int) -> bool:
        """Return whether an owner is the wanted one, root, or one that the slot's containers have: a subordinate id."""
        return uid in (0, self.owned.uid) or self.span[0] <= uid < self.span[1]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that only a person (or, `mended`, an earlier role of the site) can put right."""

    code: str
    what: str
    cure: str
    mended: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.what} [{self.cure}]"


@dataclasses.dataclass(frozen=True)
class Change:
    """One node and what it had before: None if it has to be made."""

    node: Node
    before: Owned | None

    def step(self) -> Step:
        """Return it as the step that check mode, diff and result show."""
        before = None if self.before is None else as_text(self.before)
        return Step(self.node.path, "create" if self.before is None else "repair", before, as_text(self.node.owned))


Sight = t.Union[Found, UnsafePath, None]  # noqa: UP007  (pylint takes | between classes for arithmetic)


def wanted(
    slots: t.Sequence[Slot], accounts: t.Mapping[str, Account], spans: t.Mapping[str, Span] | None = None
) -> tuple[Node, ...]:
    """Return the tree of a host with these slots, parents first; a slot without an account gets UNKNOWN ids.

    spans are the slots' subordinate ids.
    """
    nodes = list(_SHARED)
    for slot in slots:
        nodes += _of_slot(slot, accounts.get(slot.name, UNKNOWN), (spans or {}).get(slot.name, (0, 0)))
    return tuple(nodes)


def plan(sights: t.Iterable[tuple[Node, Sight]]) -> tuple[list[Change], list[Problem]]:
    """Return the changes that lead to the wanted tree, and what stands in the way; below a problem nothing is done."""
    changes: list[Change] = []
    problems: list[Problem] = []
    blocked: set[str] = set()
    for node, sight in sights:
        if os.path.dirname(node.path) in blocked:
            blocked.add(node.path)
            continue
        problem = unsafe(str(sight)) if isinstance(sight, UnsafePath) else fault(node, sight)
        if problem is not None:
            problems.append(problem)
            blocked.add(node.path)
        elif sight is None:
            if node.made:
                changes.append(Change(node, None))
        elif isinstance(sight, Found) and sight.owned != node.owned:
            changes.append(Change(node, sight.owned))
    return changes, problems


def fault(node: Node, found: Found | None) -> Problem | None:
    """Return why root keeps its hands off what stands at a node, None if it may be given the wanted owner and mode."""
    if found is None:
        return None
    path = node.path
    right = "directory" if node.kind == "directory" else "file"
    if found.kind != right:
        noun = "a link" if found.kind == "link" else f"a {found.kind}" if found.kind != "other" else "no file"
        return unsafe(f"{path} is {noun}; it must be a {right}, and root follows no link")
    if node.kind == "directory":
        if node.owned.uid != 0 and not node.is_of(found.owned.uid):
            return unsafe(f"{path} belongs to uid {found.owned.uid}, not to the slot; what is in it may be another's")
        return None
    if found.names > 1:
        return unsafe(f"{path} has {found.names} names; a change of owner or mode would reach the others too")
    if found.owned.uid != 0:
        return unsafe(f"{path} belongs to uid {found.owned.uid}; it must be root's", mended=node.kind == "input")
    if node.kind == "input" and found.owned.mode & 0o022:
        what = f"{path} could be written by others (mode {found.owned.mode:04o}); its content may not be root's"
        return unsafe(what, mended=True)
    return None


def unsafe(what: str, *, mended: bool = False) -> Problem:
    """Return the problem of a path that somebody other than root may have laid out."""
    cure = "find out who put it there, move it away, and converge again"
    if mended:
        cure = "converge with the playbook confined.slots.site, which writes it anew"
    return Problem("unsafe-path", printable(what), cure, mended)


def as_text(owned: Owned) -> str:
    """Return `uid:gid mode`, with ? for ids that are not given out yet."""
    uid, gid = ("?" if number == UNKNOWN.uid else str(number) for number in (owned.uid, owned.gid))
    return f"{uid}:{gid} {owned.mode:04o}"


def read_accounts(passwd: bytes, group: bytes, slots: t.Sequence[Slot]) -> tuple[dict[str, Account], list[Problem]]:
    """Return the slots' accounts out of the bytes of /etc/passwd and /etc/group, and what is wrong with them."""
    users, groups = parse_passwd(passwd), parse_group(group)
    found = Accounts(accounts=users, groups=groups)
    holders = collections.Counter(user.uid for user in users)
    accounts: dict[str, Account] = {}
    problems: list[Problem] = []
    for slot in slots:
        name = _layout.account(slot.name)
        if name not in found.account:
            problems.append(Problem("account-missing", f"slot {slot.name} has no account {name}", _ACCOUNTS_CURE, True))
            continue
        uid, gid = found.account[name].uid, found.account[name].gid
        if uid == 0 or gid == 0 or holders[uid] > 1 or name not in found.group or found.group[name].gid != gid:
            what = f"{name} has uid {uid} and gid {gid}; it must have both to itself, the group being {name}"
            problems.append(Problem("account-unsafe", what, _ACCOUNTS_CURE))
            continue
        accounts[slot.name] = Account(uid, gid)
        extra = [group for group in found.memberships.get(name, []) if group != name]
        if extra:
            code = "rootful-docker-reachable" if "docker" in extra else "account-unsafe"
            what = f"{name} is in other groups than its own: {', '.join(extra)}; it must be in none"
            problems.append(Problem(code, printable(what), _ACCOUNTS_CURE, True))
    return accounts, problems


def may_write(account: Account, owned: Owned, acl: bytes) -> bool:
    """Return whether an account in no group but its own can write a file (connect to a socket) with this mode and ACL.

    The ACL is the kernel's `system.posix_acl_access`: a version, then (tag, permissions, id) each; empty for none.
    """
    entries = list(struct.iter_unpack("<HHI", acl[4:])) if len(acl) % 8 == 4 else []
    mask = next((bits for tag, bits, _unused in entries if tag == _ACL_MASK), 7)
    if account.uid == owned.uid:
        return bool(owned.mode & 0o200)
    for tag, bits, number in entries:
        if tag == _ACL_USER and number == account.uid:
            return bool(bits & mask & 2)
    of_groups = [bits for tag, bits, number in entries if tag == _ACL_GROUP and number == account.gid]
    if owned.gid == account.gid:
        of_groups += [bits for tag, bits, _unused in entries if tag == _ACL_OWNING_GROUP] or [owned.mode >> 3 & 7]
    if of_groups:
        return any(bits & mask & 2 for bits in of_groups)
    return bool(owned.mode & 0o002)


def find(nodes: t.Iterable[Node]) -> t.Iterator[tuple[Node, Sight]]:
    """Yield each node with what stands there, and after a directory with kept contents those contents as nodes."""
    known: set[str] = set()
    for node in nodes:
        known.add(node.path)
        sight = _sight(node, known)
        yield node, sight
        if node.contents is not None and isinstance(sight, Found) and sight.kind == "directory":
            yield from _contents(node, node.path, known, 0)


def apply(change: Change) -> None:
    """Make or mend one node; UnsafePath if it is no longer what was found, or if others can redirect the way to it."""
    node, name = change.node, os.path.basename(change.node.path)
    directory = os.path.dirname(node.path)
    if change.before is None and look(directory) is None:
        ensure_directory(directory)
    with trusted_directory(directory) as parent:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        if node.kind == "directory":
            flags |= os.O_DIRECTORY
            if change.before is None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=parent)
        elif change.before is None:
            flags |= os.O_CREAT | os.O_EXCL
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            problem = fault(node, Found.of(os.fstat(descriptor)))
            if problem is not None:
                raise UnsafePath(problem.what)
            give(descriptor, node.owned)
        finally:
            os.close(descriptor)


def docker_problems(accounts: t.Mapping[str, Account]) -> list[Problem]:
    """Return a problem for each account that can open the rootful Docker socket by its mode or ACL, and so be root."""
    found = look(DOCKER_SOCKET)
    if found is None or found.kind == "link":
        return []
    try:
        acl = os.getxattr(DOCKER_SOCKET, "system.posix_acl_access", follow_symlinks=False)
    except OSError:  # none is set, or the file system knows no ACLs
        acl = b""
    return [
        Problem(
            "rootful-docker-reachable",
            f"{_layout.account(slot)} can open {DOCKER_SOCKET} ({as_text(found.owned)}{', ACL' if acl else ''})",
            f"close it: 'setfacl -b {DOCKER_SOCKET}; chmod 0660 {DOCKER_SOCKET}'",
        )
        for slot, account in accounts.items()
        if may_write(account, found.owned, acl)
    ]


_ACCOUNTS_CURE = "converge with the playbook confined.slots.site, whose role accounts sees to it"
_ROOT = Owned(0, 0, 0o755)
_PRIVATE = Owned(0, 0, 0o700)
_SECRET = Owned(0, 0, 0o600)

_SHARED = (
    Node(_layout.OPT, _ROOT),
    Node(_layout.RELEASES, _ROOT),
    Node(_layout.PROVIDERS, _ROOT),
    Node(_layout.ETC, _ROOT),
    Node(_layout.SLOTS_D, _ROOT),
    Node(_layout.CREDENTIALS, _PRIVATE),
    Node(_layout.LEDGER, _SECRET, "input", made=False),
    Node(_layout.STATE, _ROOT),
    Node(_layout.SLOTS, _ROOT),
    Node(_layout.ARCHIVE, _PRIVATE),
    Node(_layout.DISCOVERIES, _PRIVATE),
    Node(_layout.RUN, _ROOT),
    Node(_layout.LOG, _ROOT),
)


def _of_slot(slot: Slot, account: Account, span: Span) -> tuple[Node, ...]:
    own = Owned(account.uid, account.gid, 0o700)
    read = Owned(0, account.gid, 0o640)
    enter = Owned(0, account.gid, 0o750)
    name = slot.name
    homes = os.path.dirname(_layout.private_home(name, slot.provider))
    workspaces = f"{_layout.state(name)}/workspaces"
    return (
        Node(_layout.policy(name), enter, contents=Contents("input", read)),
        Node(f"{_layout.CREDENTIALS}/{name}", _PRIVATE, made=False, contents=Contents("input", _SECRET)),
        Node(_layout.state(name), _ROOT),
        Node(_layout.account_home(name), own),
        Node(workspaces, _ROOT),
        *(Node(_layout.workspace(name, workspace), own, span=span) for workspace in slot.workspaces),
        *([Node(_layout.docker_data(name), own, span=span)] if slot.docker else []),
        Node(homes, _ROOT),
        Node(_layout.private_home(name, slot.provider), own),
        Node(os.path.dirname(_layout.kept(name, slot.provider)), _ROOT),
        Node(_layout.kept(name, slot.provider), own),
        # The launcher reaches its session's files by name; who runs what, and when, is nobody else's to list.
        Node(f"{_layout.RUN}/{name}", Owned(0, 0, 0o711)),
        Node(_layout.log(name), enter, contents=Contents("record", read)),
        Node(f"{_layout.log(name)}/{RECORDS}", read, "record"),
    )


def _sight(node: Node, known: t.Container[str]) -> Sight:
    parent = os.path.dirname(node.path)
    try:
        if parent not in known:  # a directory of the distribution's: nobody here may mend it, so it must be right
            with contextlib.suppress(FileNotFoundError), trusted_directory(parent):
                pass
        return look(node.path)
    except UnsafePath as error:
        return error


def _contents(top: Node, directory: str, known: set[str], depth: int) -> t.Iterator[tuple[Node, Sight]]:
    if top.contents is None:
        return
    for name in names(directory):
        # Our own half-written files begin with a dot; the records in use are a node of their own.
        if name.startswith(".") or name == RECORDS:
            continue
        path = f"{directory}/{name}"
        sight = look(path)
        if sight is not None and sight.kind == "directory" and depth < _DEEPEST:
            known.add(path)
            yield Node(path, top.owned, made=False), sight
            yield from _contents(top, path, known, depth + 1)
        else:
            yield Node(path, top.contents.owned, top.contents.kind, made=False), sight
