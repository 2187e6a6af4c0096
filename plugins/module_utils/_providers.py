# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provider trees on a host: laid beside the old ones, verified as read back, chosen by a record of root's.

`providers.json` beside the trees records which version each provider's sessions use, and the digest of the manifest of
every tree. A tree is laid under a name that no session looks at, and renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import typing as t

from . import _archive, _files, _layout, _manifest, _profiles
from ._declarations import Invalid
from ._host import UNKNOWN_DIGEST, Identity, Provider
from ._in_use import in_use
from ._launch import stamp_of
from ._manifest import MANIFEST, Untrusted
from ._refusals import Refusal, printable
from ._steps import Step

CURE = "run the role confined.slots.providers with it"
SOURCES = {"builtin": ("builtin",), "npm": ("npm", "archive"), "archive": ("archive",)}

_INCOMING = ".incoming-"


class ProviderError(Exception):
    """Something that cannot be done with the providers: one sentence, the cure in brackets."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """One provider as it is to be: origin says where its tree comes from, tree pins the digest of its manifest."""

    profile: _profiles.Profile
    version: str
    origin: str
    tree: str | None = None

    @property
    def name(self) -> str:
        """Return the provider's name."""
        return self.profile.name

    @property
    def executables(self) -> tuple[str, ...]:
        """Return the files of the tree that a session executes, or has executed."""
        return tuple(path for path in (self.profile.interpreter, self.profile.executable) if path)


@dataclasses.dataclass(frozen=True)
class Record:
    """What is recorded of one provider: the version that sessions use; digest and place in the order of each tree."""

    chosen: str
    trees: t.Mapping[str, tuple[str, int]]


@dataclasses.dataclass(frozen=True)
class Found:
    """How one wanted provider stands: the digest of its tree if it is there and intact, otherwise what is wrong."""

    tree: str | None = None
    fault: str | None = None
    there: bool = False


def parse(
    declared: t.Sequence[t.Mapping[str, t.Any]], names: t.Iterable[str], profiles: t.Mapping[str, _profiles.Profile]
) -> list[dict[str, t.Any]]:
    """Return the providers wanted (name, version, source, archive, sha256, tree), each checked and complete.

    names are providers that must be there as their profiles pin them, unless they are declared. Invalid names the first
    value that cannot be.
    """
    wanted: dict[str, dict[str, t.Any]] = {}
    for index, entry in enumerate(declared):
        where = f"providers[{index}]"
        profile = _profiles.named(str(entry.get("name")), profiles, f"{where}.name")
        if profile.name in wanted:
            raise Invalid(f"{where}.name is '{profile.name}', which is there twice [name each once]")
        wanted[profile.name] = _complete(entry, profile, where)
    for name in sorted(set(names) - set(wanted)):
        wanted[name] = _complete({}, _profiles.named(name, profiles, "names"), f"provider '{name}'")
    return [wanted[name] for name in sorted(wanted)]


def packages_of(entry: t.Mapping[str, t.Any], profile: _profiles.Profile) -> list[str]:
    """Return what npm is asked for: the profile's packages, the first in the version wanted."""
    (main, _unused), *others = profile.packages
    return [f"{main}@{entry['version']}", *(f"{name}@{version}" for name, version in others)]


def wanted_of(
    entries: t.Iterable[t.Mapping[str, t.Any]],
    profiles: t.Mapping[str, _profiles.Profile],
    machine: str | None = None,
) -> list[Wanted]:
    """Return the providers that `parse` gave, with profiles and sources for a machine (by default this one)."""
    wanted = []
    for entry in entries:
        profile = profiles[entry["name"]].of_machine(machine)
        origin = f"archive sha256:{entry['sha256']}"
        if entry["source"] == "npm":
            origin = f"npm {' '.join(packages_of(entry, profile))}"
        elif entry["source"] == "builtin":
            origin = "builtin"
        wanted.append(Wanted(profile, entry["version"], origin, entry.get("tree")))
    return wanted


def records(root: str = _layout.OPT) -> dict[str, Record]:
    """Return what is recorded of the providers; nothing if the record is lost (a converge then lays the trees anew)."""
    data = _files.read(f"{root}/providers.json") if os.path.isdir(root) else None
    try:
        return {
            name: Record(
                str(entry["chosen"]),
                {version: (str(tree["digest"]), int(tree["sequence"])) for version, tree in entry["trees"].items()},
            )
            for name, entry in json.loads(data or b"{}").items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def find(wanted: Wanted, record: Record | None, root: str = _layout.OPT) -> Found:
    """Return how a provider stands on this host; every file of its tree is read."""
    if wanted.profile.kind == "builtin":
        return _find_builtin(wanted)
    directory = directory_of(wanted.name, wanted.version, root)
    there = os.path.lexists(directory)
    known = record.trees.get(wanted.version) if record else None
    if known is None or not there:
        return Found(fault="laid by a run that did not end" if there else None, there=there)
    try:
        _manifest.check_tree(directory, known[0])
        header = _archive.loads(_manifest.read_checked(f"{directory}/{MANIFEST}", limit=1 << 26))[0]
    except Untrusted as error:
        return Found(fault=str(error), there=True)
    except OSError as error:
        return Found(fault=printable(f"{error.filename or directory}: {error.strerror}"), there=True)
    if header.get("origin") != wanted.origin or wanted.tree not in (None, known[0]):
        return Found(fault=f"it is from {printable(str(header.get('origin')))}, tree {known[0]}", there=True)
    return Found(tree=known[0], there=True)


def plan(wanted: Wanted, found: Found, record: Record | None, keep: int, unused: t.Callable[[str], bool]) -> list[Step]:
    """Return the steps for one provider; unused tells which directories neither a process nor a plan needs."""
    if wanted.profile.kind == "builtin":
        return []
    subject = f"provider {wanted.name}"
    steps = []
    if found.tree is None:
        action = "replace" if found.there else "install"
        steps.append(Step(subject, action, found.fault, f"{wanted.version} from {wanted.origin}"))
    if record is None or record.chosen != wanted.version:
        steps.append(Step(subject, "choose", record.chosen if record else None, wanted.version))
    trees = record.trees if record else {}
    # The version that was in use comes first: plans name it until they are compiled anew.
    chosen = record.chosen if record else ""
    others = sorted(
        (v for v in trees if v != wanted.version), key=lambda version: (version != chosen, -trees[version][1])
    )
    steps += [Step(subject, "prune", version) for version in others[keep:] if unused(version)]
    return steps


def lay(archive: str, digest: str, wanted: Wanted, directory: str) -> None:
    """Lay a provider's tree into an empty directory of root's, every file verified as read back.

    ProviderError says what is wrong with the archive.
    """
    try:
        header, listed = _archive.unpack(archive, digest, directory)
        if header.get("origin") != wanted.origin:
            raise Untrusted(f"the archive is from {header.get('origin')!r}, not from {wanted.origin!r}")
        for number, path in enumerate(wanted.executables, 1):
            value = listed[_manifest.resolve(path, listed)]
            if number == 1 and not value.startswith("0555"):
                raise Untrusted(f"{path} is not executable")
        _archive.write_file(directory, MANIFEST, _archive.dumps(listed, header), _manifest.MANIFEST_MODE)
        os.chmod(directory, _manifest.DIRECTORY_MODE)
        _archive.settle(directory)
        _manifest.check_tree(directory, digest)
    except Untrusted as error:
        raise ProviderError(
            f"provider '{wanted.name}' {wanted.version} cannot be installed: {printable(str(error))}"
            " [mend the archive, or the paths in the provider's profile]"
        ) from None


def apply(steps: t.Sequence[Step], wanted: Wanted, laid: tuple[str, str] | None, root: str = _layout.OPT) -> None:
    """Take the steps for one provider; laid is the directory of a new tree that stands ready, and its digest."""
    if not steps:
        return
    everything = records(root)
    record = everything.get(wanted.name) or Record("", {})
    trees, chosen = dict(record.trees), record.chosen
    directory = directory_of(wanted.name, wanted.version, root)
    gone = []
    for step in steps:
        if step.action in ("install", "replace") and laid is not None:
            _files.ensure_directory(os.path.dirname(directory))
            if os.path.lexists(directory):
                gone.append(_out_of_the_way(directory, root))
            os.rename(laid[0], directory)
            trees[wanted.version] = (laid[1], max((sequence for _unused, sequence in trees.values()), default=0) + 1)
        elif step.action == "choose":
            chosen = wanted.version
        elif step.action == "prune":
            del trees[step.before]
    # The record never names what is not there: written after a tree is laid, before one is taken away.
    _write_records({**everything, wanted.name: Record(chosen, trees)}, root)
    gone += [
        _out_of_the_way(directory_of(wanted.name, step.before, root), root) for step in steps if step.action == "prune"
    ]
    for path in gone:
        remove(path)


def result_of(wanted: Wanted, found: Found, laid: str | None, root: str = _layout.OPT) -> dict[str, str | None]:
    """Return what the module says of a provider: version, path, and digest of the tree (None if there is none yet)."""
    if wanted.profile.kind == "builtin":
        return {"version": wanted.version, "path": wanted.profile.executable, "tree": None}
    path = directory_of(wanted.name, wanted.version, root)
    return {"version": wanted.version, "path": path, "tree": laid or found.tree}


def directory_of(name: str, version: str, root: str = _layout.OPT) -> str:
    """Return where the tree of a provider's version stands."""
    return f"{root}/providers/{name}/{version}"


def leftovers(wanted: t.Iterable[Wanted], root: str = _layout.OPT, slots_d: str = _layout.SLOTS_D) -> list[str]:
    """Return what killed runs have left: half-laid and replaced trees, and unrecorded ones that nobody needs."""
    directory = f"{root}/providers"
    left = [f"{directory}/{name}" for name in _names(directory) if name.startswith(_INCOMING)]
    known = records(root)
    for one in wanted:
        record = known.get(one.name) or Record("", {})
        is_unused = unused(one.name, root, slots_d)
        left += [
            directory_of(one.name, version, root)
            for version in _names(f"{directory}/{one.name}")
            if version not in record.trees and version != one.version and is_unused(version)
        ]
    return left


@contextlib.contextmanager
def incoming(directory: str) -> t.Iterator[str]:
    """Yield a new directory of root's, gone afterwards unless it was renamed."""
    path = f"{directory}/{_INCOMING}{secrets.token_hex(6)}"
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        remove(path)


def remove(path: str) -> None:
    """Remove a tree of root's, if it is there."""
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif os.path.isdir(path):
        shutil.rmtree(path)


def unused(name: str, root: str = _layout.OPT, slots_d: str = _layout.SLOTS_D) -> t.Callable[[str], bool]:
    """Return a function that tells whether neither a process nor a slot's plan needs a version of a provider."""

    def is_unused(version: str) -> bool:
        directory = directory_of(name, version, root)
        return not in_use([directory]) and not _planned(os.fsencode(directory), slots_d)

    return is_unused


def on_host(
    name: str, profiles: t.Sequence[t.Mapping[str, t.Any]], root: str = _layout.OPT, *, predict: bool = False
) -> Provider:
    """Return a provider as it stands on this host, its executables verified.

    Invalid if there is no such profile, or if it is not installed as recorded; with predict (a check run) one that is
    not installed yet is given with unknown digests.
    """
    profile = _profiles.named(name, _profiles.parse(profiles), "provider").of_machine()
    paths = tuple(path for path in (profile.interpreter, profile.executable) if path)
    if profile.kind == "builtin":
        return _provider(profile, profile.version, "", tuple(Identity(path, "distribution") for path in paths))
    record = records(root).get(name)
    tree = record.trees.get(record.chosen) if record else None
    if record is None or tree is None:
        if not predict:
            raise Invalid(f"provider '{name}' is not installed on this host [{CURE}]")
        directory = directory_of(name, profile.version, root)
        unknown = tuple(Identity(f"{directory}/{path}", UNKNOWN_DIGEST) for path in paths)
        return _provider(profile, profile.version, directory, unknown)
    directory = directory_of(name, record.chosen, root)
    try:
        listed = _manifest.verify_tree(directory, tree[0], paths)
        files = [_manifest.resolve(path, listed) for path in paths]
    except (Refusal, Untrusted) as error:
        raise Invalid(f"provider '{name}': {error} [{CURE}]") from None
    found = [(f"{directory}/{path}", listed[path][5:]) for path in files]
    if profile.identity == "tree":
        found.append((f"{directory}/{MANIFEST}", tree[0]))
    identities = tuple(Identity(path, digest, stamp_of(os.stat(path))) for path, digest in found)
    return _provider(profile, record.chosen, directory, identities)


def _provider(profile: _profiles.Profile, version: str, directory: str, identities: tuple[Identity, ...]) -> Provider:
    prefix = f"{directory}/" if directory else ""
    words = (profile.interpreter, profile.executable) if profile.interpreter else (profile.executable,)
    return Provider(
        profile=profile,
        version=version,
        command=(*(f"{prefix}{word}" for word in words), *profile.arguments),
        identities=identities,
        trees=((directory, profile.reasons["tree"]),) if directory else (),
        path=tuple(f"{prefix}{path}" for path in profile.path),
    )


def _complete(entry: t.Mapping[str, t.Any], profile: _profiles.Profile, where: str) -> dict[str, t.Any]:
    source = entry.get("source") or profile.kind
    archive, digest = entry.get("archive"), entry.get("sha256")
    if source not in SOURCES[profile.kind]:
        can = " or ".join(SOURCES[profile.kind])
        raise Invalid(f"{where}: source is {source!r:.80}; for {profile.name} it can be {can}")
    if profile.kind == "archive" and not archive:
        raise Invalid(f"{where}: archive is {archive!r}; no registry has {profile.name} [give an archive of it]")
    if bool(archive) is not (source == "archive"):
        raise Invalid(f"{where}: source is {source} and archive is {archive!r:.120}; they must go together [mend one]")
    for key in ("sha256", "tree"):
        if entry.get(key) and not _is_digest(entry[key]):
            raise Invalid(f"{where}: {key} is {entry[key]!r:.80}; it must be 64 digits and letters a-f")
    version = entry.get("version") or profile.version
    if source != "builtin":
        _profiles.exact_version(version, f"{where}: version")
    elif version != profile.version:
        raise Invalid(f"{where}: version is {version!r:.80}; {profile.name} has the distribution's [leave it out]")
    return {
        "name": profile.name,
        "version": version,
        "source": source,
        "archive": archive,
        "sha256": digest,
        "tree": entry.get("tree"),
    }


def _is_digest(value: t.Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set("0123456789abcdef").issuperset(value)


def _find_builtin(wanted: Wanted) -> Found:
    for path in wanted.executables:
        real = os.path.realpath(path)
        owned = _files.owned(real)
        if owned is None:
            return Found(fault=f"{path} is missing [install its package]")
        if owned.uid != 0 or owned.mode & 0o022 or not owned.mode & 0o111:
            return Found(fault=f"{real} can be written by others than root, or is no program [reinstall its package]")
    return Found(there=True)


def _planned(directory: bytes, slots_d: str) -> bool:
    for slot in _names(slots_d):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(f"{slots_d}/{slot}/plan", "rb") as file:
            if directory + b"/" in file.read():
                return True
    return False


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _out_of_the_way(path: str, root: str) -> str:
    gone = f"{root}/providers/{_INCOMING}{secrets.token_hex(6)}"
    os.rename(path, gone)
    return gone


def _write_records(everything: t.Mapping[str, Record], root: str) -> None:
    entries = {
        name: {
            "chosen": record.chosen,
            "trees": {version: {"digest": d, "sequence": number} for version, (d, number) in record.trees.items()},
        }
        for name, record in everything.items()
    }
    _files.write(f"{root}/providers.json", (json.dumps(entries, sort_keys=True, indent=1) + "\n").encode())
