# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The slots' accounts: what the host's files say, and the changes that make it what was declared.

The files are read, not the name service: useradd could not change an account of a directory server. Changes are made
with the tools of shadow, which lock and write those files as every other tool expects.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import typing as t

from . import _files, _layout, _ledger
from ._declarations import Invalid, Slot
from ._ledger import Ids, Ledger, Pool, Span
from ._programs import Failed, run
from ._steps import Step

PASSWD, SHADOW, GROUP = "/etc/passwd", "/etc/shadow", "/etc/group"
SUBUID, SUBGID = "/etc/subuid", "/etc/subgid"
LOCKED = "!"
REMOVE_SECONDS = 6 * 3600  # a slot may have made tens of millions of files


@dataclasses.dataclass(frozen=True)
class Account:
    """A line of passwd; shadowed says that its password is in shadow."""

    name: str
    shadowed: bool
    uid: int
    gid: int
    home: str
    shell: str


@dataclasses.dataclass(frozen=True)
class Group:
    """A line of group."""

    name: str
    gid: int
    members: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Range:
    """A line of subuid or subgid; the owner is a name or a uid in digits."""

    owner: str
    span: Span

    def is_of(self, account: str, uid: int) -> bool:
        """Say whether the line gives its ids to the account."""
        return self.owner in (account, str(uid))


@dataclasses.dataclass(frozen=True)
class Found:
    """The host's accounts; passwords, by account, are in no representation of it, ranges are None without a file."""

    accounts: tuple[Account, ...] = ()
    passwords: t.Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    groups: tuple[Group, ...] = ()
    subuids: tuple[Range, ...] | None = ()
    subgids: tuple[Range, ...] | None = ()
    ledger: Ledger = dataclasses.field(default_factory=Ledger)
    directories: t.Mapping[str, _files.Owned | None] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def account(self) -> dict[str, Account]:
        """The accounts by name; the first line counts, as it does for getpwnam."""
        return {account.name: account for account in reversed(self.accounts)}

    @functools.cached_property
    def group(self) -> dict[str, Group]:
        """The groups by name."""
        return {group.name: group for group in reversed(self.groups)}

    @functools.cached_property
    def memberships(self) -> dict[str, list[str]]:
        """The groups that list an account as a member, by account."""
        lists: dict[str, list[str]] = {}
        for group in self.groups:
            for member in group.members:
                lists.setdefault(member, []).append(group.name)
        return lists


@dataclasses.dataclass(frozen=True)
class Change:
    """A step and how it is made: a command, or one of the few things done without (command is None)."""

    step: Step
    command: tuple[str, ...] | None = None


def parse_passwd(data: bytes) -> tuple[Account, ...]:
    """Return the accounts of a passwd file; comments and lines of another form are no accounts."""
    return tuple(
        Account(name, password == "x", int(uid), int(gid), home, shell)
        for name, password, uid, gid, _comment, home, shell in _records(data, 7)
        if _is_number(uid) and _is_number(gid)
    )


def parse_shadow(data: bytes) -> dict[str, str]:
    """Return the password field of each account of a shadow file."""
    return {fields[0]: fields[1] for fields in reversed(list(_records(data, 9)))}


def parse_group(data: bytes) -> tuple[Group, ...]:
    """Return the groups of a group file."""
    return tuple(
        Group(name, int(gid), tuple(member for member in members.split(",") if member))
        for name, _password, gid, members in _records(data, 4)
        if _is_number(gid)
    )


def parse_ranges(data: bytes) -> tuple[Range, ...]:
    """Return the ranges of a subuid or subgid file, without empty ones, comments and lines of another form."""
    return tuple(
        Range(owner, (int(first), int(first) + int(count)))
        for owner, first, count in _records(data, 3)
        if _is_number(first) and _is_number(count) and int(count) > 0
    )


def find(slots: t.Sequence[Slot]) -> Found:
    """Return what this host has, reading each file once."""
    subuids, subgids = _files.read(SUBUID), _files.read(SUBGID)
    return Found(
        accounts=parse_passwd(_files.read(PASSWD) or b""),
        passwords=parse_shadow(_files.read(SHADOW) or b""),
        groups=parse_group(_files.read(GROUP) or b""),
        subuids=None if subuids is None else parse_ranges(subuids),
        subgids=None if subgids is None else parse_ranges(subgids),
        ledger=_ledger.load(),
        directories={path: _files.owned(path) for slot in slots for path in _directories(slot.name)},
    )


def with_ids(
    slots: t.Sequence[Slot], found: Found, pool: Pool, in_use: t.Callable[[int], bool] = lambda _uid: False
) -> Ledger:
    """Return the ledger in which every declared slot has ids; Invalid if one can have none or is not to be touched."""
    new = [slot.name for slot in slots if slot.name not in found.ledger.slots]
    for name in new:
        _check_free(name, found)
    for slot in slots:
        if slot.name in found.ledger.slots and found.ledger.slots[slot.name].leaving:
            raise Invalid(
                f"slot '{slot.name}' is being removed [finish it with the playbook confined.slots.remove_slot]"
            )
    ids = {account.uid for account in found.accounts} | {account.gid for account in found.accounts}
    ids |= {group.gid for group in found.groups}
    ids |= {int(entry.owner) for entry in (*(found.subuids or ()), *(found.subgids or ())) if _is_number(entry.owner)}
    spans = {entry.span for entry in (*(found.subuids or ()), *(found.subgids or ()))}
    return found.ledger.with_slots(_ledger.allocate(new, pool, found.ledger, ids, spans, in_use))


def check(ledger: Ledger, slots: t.Sequence[Slot], found: Found) -> None:
    """Raise Invalid if a slot shares an id with anybody, or if the host gave it other ids than the ledger says."""
    mine = {_layout.account(slot.name): ledger.slots[slot.name].ids for slot in slots}
    for name, ids in mine.items():
        account, group = found.account.get(name), found.group.get(name)
        if account is not None and account.uid != ids.uid:
            raise Invalid(
                f"account '{name}' has uid {account.uid} and the ledger says {ids.uid}; a uid in use is never changed"
                f" [give it {ids.uid} back]"
            )
        if account is not None and not account.shadowed:
            raise Invalid(f"account '{name}' has its password in {PASSWD}, for all to read [run pwconv]")
        if group is not None and group.gid != ids.uid:
            raise Invalid(
                f"group '{name}' has gid {group.gid} and the ledger says {ids.uid}; a gid in use is never changed"
                f" [give it {ids.uid} back]"
            )
    uids = {ids.uid: name for name, ids in mine.items()}
    for other in found.accounts:
        for number, kind in ((other.uid, "uid"), (other.gid, "gid")):
            if uids.get(number, other.name) != other.name:
                raise Invalid(
                    f"account '{other.name}' has the {kind} {number} of slot account '{uids[number]}' [give it another]"
                )
    for group in found.groups:
        if uids.get(group.gid, group.name) != group.name:
            raise Invalid(
                f"group '{group.name}' has the gid {group.gid} of slot account '{uids[group.gid]}' [give it another]"
            )
    check_ranges(mine, found)


def changes(slots: t.Sequence[Slot], found: Found, ledger: Ledger, shell: str) -> t.Iterator[Change]:
    """Yield what turns the found accounts into the declared ones, in the order in which it is safe to be killed.

    The ledger comes first: whatever happens then, the next converge gives a slot the ids that it was promised.
    """
    if ledger != found.ledger:
        names = sorted(set(ledger.slots) - set(found.ledger.slots))
        yield Change(
            Step(
                _layout.LEDGER, "record", after="\n".join(f"{name}: {_words(ledger.slots[name].ids)}" for name in names)
            )
        )
    for path, ranges in ((SUBUID, found.subuids), (SUBGID, found.subgids)):
        if ranges is None:
            yield Change(Step(path, "create", after="no ranges"))
    for slot in slots:
        yield from _account_changes(slot, found, ledger.slots[slot.name].ids, shell)


def apply(planned: t.Sequence[Change], slots: t.Sequence[Slot], ledger: Ledger) -> None:
    """Make the changes; Failed names the tool that did not."""
    directories = {
        path: wanted
        for slot in slots
        for path, wanted in _directories(slot.name, ledger.slots[slot.name].ids.uid).items()
    }
    passwords = []
    for change in planned:
        if change.command is not None:
            run(change.command)
        elif change.step.action == "record":
            _ledger.save(ledger)
        elif change.step.action == "create":
            _files.write(change.step.subject, b"")
        elif change.step.action.endswith("directory"):
            _files.ensure_directory(change.step.subject, directories[change.step.subject])
        else:
            passwords.append(change.step.subject)
    if passwords:
        hashes = {_layout.account(slot.name): slot.console_password_hash or LOCKED for slot in slots}
        run(("chpasswd", "--encrypted"), "".join(f"{name}:{hashes[name]}\n" for name in passwords))


def verify(slots: t.Sequence[Slot], ledger: Ledger, shell: str) -> None:
    """Raise Failed or Invalid unless the host's files now say what was declared, whatever the tools reported."""
    found = find(slots)
    check(ledger, slots, found)
    for left in changes(slots, found, ledger, shell):
        code = "subid-missing" if "subordinate" in left.step.action else "account-unchanged"
        raise Failed(
            f"{code}: {left.step.subject}: '{left.step.action}' succeeded and had no effect"
            " [see the journal for what useradd and usermod did]"
        )


def remove_tree(path: str) -> None:
    """Remove a tree by rm, which walks by descriptors, follows no link and is stopped by no depth of directories."""
    with _files.trusted_directory(os.path.dirname(path)):
        run(("rm", "--recursive", "--force", "--one-file-system", "--", path), seconds=REMOVE_SECONDS)


def _account_changes(slot: Slot, found: Found, ids: Ids, shell: str) -> t.Iterator[Change]:
    name, home = _layout.account(slot.name), _layout.account_home(slot.name)
    account, group = found.account.get(name), found.group.get(name)
    uid = str(ids.uid)
    if account is not None and group is None:
        yield Change(Step(name, "create group", after=f"gid {uid}"), ("groupadd", "--gid", uid, name))
    if account is None:
        own_group = ("--user-group",) if group is None else ("--gid", name, "--no-user-group")
        yield Change(
            Step(name, "create account", after=f"uid {uid}, gid {uid}, home {home}, shell {shell}, password locked"),
            (
                *("useradd", "--uid", uid, *own_group, "--groups", "", "--comment", f"confined slot {slot.name}"),
                *("--home-dir", home, "--no-create-home", "--shell", shell, "--expiredate", "", "--inactive", "-1"),
                *("--no-log-init", "--key", "SUB_UID_COUNT=0", "--key", "SUB_GID_COUNT=0", name),
            ),
        )
    else:
        if account.gid != ids.uid:
            yield Change(Step(name, "set primary group", account.gid, ids.uid), ("usermod", "--gid", uid, name))
        if account.home != home:
            yield Change(Step(name, "set home", account.home, home), ("usermod", "--home", home, name))
        if account.shell != shell:
            yield Change(Step(name, "set shell", account.shell, shell), ("usermod", "--shell", shell, name))
    for other in dict.fromkeys(found.memberships.get(name, ())):
        yield Change(Step(name, "leave group", other), ("gpasswd", "--delete", name, other))
    for member in dict.fromkeys(group.members if group else ()):
        if member != name:
            yield Change(Step(name, "put out of its group", member), ("gpasswd", "--delete", member, name))
    yield from _password_changes(slot, name, found)
    yield from _range_changes(name, found, ids)
    for path, wanted in _directories(slot.name, ids.uid).items():
        have = found.directories.get(path)
        if have != wanted:
            yield Change(
                Step(path, "mend directory" if have else "make directory", str(have) if have else None, str(wanted))
            )


def _password_changes(slot: Slot, name: str, found: Found) -> t.Iterator[Change]:
    have = found.passwords.get(name, LOCKED if name not in found.account else "")
    want = slot.console_password_hash or LOCKED
    if have != want:
        action = "set console password" if slot.console_password_hash else "lock password"
        yield Change(Step(name, action, _presence(have), _presence(want)))


def _range_changes(name: str, found: Found, ids: Ids) -> t.Iterator[Change]:
    span = f"{ids.span[0]}-{ids.span[1] - 1}"
    lacking = [
        (option, kind)
        for option, kind, ranges in (("--add-subuids", "uids", found.subuids), ("--add-subgids", "gids", found.subgids))
        if not any(entry.is_of(name, ids.uid) and entry.span == ids.span for entry in ranges or ())
    ]
    if lacking:
        kinds = " and ".join(kind for _option, kind in lacking)
        command = ["usermod", *(word for option, _kind in lacking for word in (option, span)), name]
        yield Change(Step(name, f"give subordinate {kinds}", after=span), tuple(command))


def _check_free(slot: str, found: Found) -> None:
    """Raise Invalid if the name of a new slot's account is in use: what is not in the ledger is somebody else's."""
    name, state = _layout.account(slot), _layout.state(slot)
    for kind, there, cure in (
        ("account", name in found.account, f"rename the slot, or remove the account yourself: userdel {name}"),
        ("group", name in found.group, f"rename the slot, or remove the group yourself: groupdel {name}"),
    ):
        if there:
            raise Invalid(f"{kind} '{name}' exists and is not in {_layout.LEDGER}, so it is left alone [{cure}]")
    for path, ranges in ((SUBUID, found.subuids), (SUBGID, found.subgids)):
        if any(entry.owner == name for entry in ranges or ()):
            raise Invalid(
                f"{path} has a line for '{name}', an account that does not exist yet [remove the line yourself]"
            )
    if found.directories.get(state) is not None:
        raise Invalid(
            f"{state} exists and no slot '{slot}' is in {_layout.LEDGER};"
            " a new slot inherits nothing [move it away yourself]"
        )


def check_ranges(mine: t.Mapping[str, Ids], found: Found) -> None:
    """Raise Invalid if ids of these accounts are anybody else's too, or if they have more than the ledger says."""
    by_uid = {str(account.uid): account.name for account in found.accounts}
    by_uid |= {str(ids.uid): name for name, ids in mine.items()}
    accounts = [(account.uid, account.name) for account in found.accounts]
    groups = [(group.gid, group.name if group.name in mine else f"group {group.name}") for group in found.groups]
    groups += [(account.gid, account.name) for account in found.accounts]
    for path, ranges, singles in ((SUBUID, found.subuids, accounts), (SUBGID, found.subgids, groups)):
        holders = [(entry.span, _owner(entry, by_uid), path) for entry in ranges or ()]
        holders += [((number, number + 1), name, "its id") for number, name in singles]
        claims = [(ids.span, name, "subordinate ids") for name, ids in mine.items()]
        claims += [((ids.uid, ids.uid + 1), name, "uid") for name, ids in mine.items()]
        for (span, name, what), (other_span, other, where) in _overlaps(claims, holders):
            if other != name:
                raise Invalid(
                    f"subid-overlap: {what} {_dash(span)} of '{name}' and {_dash(other_span)} of '{other}' ({where})"
                    " overlap; one would own files of the other, and a range in use is never moved"
                    f" [take the range from '{other}']"
                )
        for entry in ranges or ():
            name = _owner(entry, by_uid)
            if name in mine and entry.span != mine[name].span:
                raise Invalid(
                    f"{path} gives '{name}' {_dash(entry.span)} besides the {_dash(mine[name].span)} of the ledger;"
                    f" a range in use is never taken away [remove the line yourself]"
                )


Holding = tuple[Span, str, str]


def _overlaps(claims: t.Sequence[Holding], holders: t.Sequence[Holding]) -> t.Iterator[tuple[Holding, Holding]]:
    """Yield each claim with each holder whose span it meets, in one sweep over both, sorted by their first id."""
    open_claims: list[Holding] = []
    open_holders: list[Holding] = []
    events = sorted(
        [(holding[0][0], 0, holding) for holding in claims] + [(holding[0][0], 1, holding) for holding in holders]
    )
    for first, kind, holding in events:
        open_claims = [claim for claim in open_claims if claim[0][1] > first]
        open_holders = [holder for holder in open_holders if holder[0][1] > first]
        if kind == 0:
            yield from ((holding, holder) for holder in open_holders)
            open_claims.append(holding)
        else:
            yield from ((claim, holding) for claim in open_claims)
            open_holders.append(holding)


def _directories(slot: str, uid: int = -1) -> dict[str, _files.Owned]:
    """Return the directories that an account needs, with their owners; the rest of a slot's tree is the policy's."""
    return {_layout.state(slot): _files.ROOT_DIRECTORY, _layout.account_home(slot): _files.Owned(uid, uid, 0o700)}


def _owner(entry: Range, by_uid: t.Mapping[str, str]) -> str:
    return by_uid.get(entry.owner, entry.owner)


def _presence(password: str) -> str:
    if password == "":
        return "no password needed"
    return "locked" if password.startswith(("!", "*")) else "a password is set"


def _words(ids: Ids) -> str:
    return f"uid {ids.uid}, subordinate ids {_dash(ids.span)}"


def _dash(span: Span) -> str:
    return str(span[0]) if span[1] == span[0] + 1 else f"{span[0]}-{span[1] - 1}"


def _records(data: bytes, count: int) -> t.Iterator[list[str]]:
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        fields = line.split(":")
        if len(fields) == count and fields[0] and not fields[0].startswith(("#", "+", "-")):
            yield fields


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10
