# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases on a host: built beside the old ones, verified as read back, made current by one rename, kept for rollback.

Layout and names are in _layout; `releases.json` beside the releases records in which order they were made current and
which were withdrawn by a rollback, since neither names nor times of files tell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import subprocess
import typing as t

from . import _archive, _files, _layout, _manifest
from ._in_use import in_use
from ._manifest import MANIFEST, Untrusted
from ._plan import MAGIC, PLAN_FORMAT
from ._refusals import Refusal, printable
from ._steps import Step

PYTHON = "/usr/bin/python3"
BWRAP = "/usr/bin/bwrap"
COMMAND = "/usr/local/sbin/slotctl"
BWRAP_SAFE = (0, 12)
BWRAP_LEAST = (0, 8)  # the first with --disable-userns
BWRAP_WARNING = (
    "bubblewrap {version} is older than 0.12 and has CVE-2026-87766: slots are compiled so that no mount point lies"
    " below a path they can write [upgrade the package bubblewrap when the distribution has 0.12]"
)
LOCK = ".lock"
LOCK_SECONDS = 60
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~]*-[0-9a-f]{12}\Z")
_INCOMING, _ASIDE, _LINK = ".incoming-", ".tampered-", ".current-"
_UNKNOWN = "unknown"
_NO_LINK = "(no link)"


class ReleaseError(Exception):
    """Something that cannot be done with the releases: one sentence, the cure in brackets."""


class Lacking(ReleaseError):
    """A package that the host lacks: a converge would have installed it, a check run has not."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a release is made of; a converge makes a new one when any of it differs."""

    source: str
    bwrap_digest: str
    bwrap_version: str
    bwrap_package: str
    python: str


@dataclasses.dataclass(frozen=True)
class Release:
    """One release as it stands on the host; fault says why it cannot be trusted."""

    name: str
    version: str = ""
    plan_format: int = 0
    sequence: int = 0
    withdrawn: bool = False
    active: bool = False
    origin: Origin | None = None
    fault: str | None = None


@dataclasses.dataclass(frozen=True)
class Found:
    """All releases, the newest activation first, what killed runs have left, and where the operators' command leads."""

    releases: tuple[Release, ...] = ()
    leftovers: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()

    command: str | None = None

    @property
    def active(self) -> Release | None:
        """Return the release that `current` leads to, None if it leads to none."""
        return next((release for release in self.releases if release.active), None)

    def match(self, origin: Origin) -> Release | None:
        """Return the intact release that is made of exactly this, the active one first."""
        fit = [release for release in self.releases if release.fault is None and release.origin == origin]
        return max(fit, key=lambda release: (release.active, release.sequence), default=None)


def list_releases(root: str = _layout.OPT) -> list[Release]:
    """Return the releases of the host, each verified, the newest activation first."""
    return list(find(root).releases)


def verify_release(name: str | None = None, root: str = _layout.OPT) -> dict[str, str]:
    """Return the digest of every file of a release (by default the active one); Refusal if one is not as listed."""
    if name is None:
        name = _current(root)
        if name is None:
            raise Refusal("launcher-tampered", f"{root}/current leads to no release", "converge again")
    if not _NAME.match(name) or not os.path.isdir(f"{root}/releases/{name}"):
        raise ReleaseError(f"there is no release {printable(name)} [see `slotctl release list`]")
    return _manifest.verify_release(f"{root}/releases/{name}")


def rollback(target: str | None = None, root: str = _layout.OPT, slots_d: str = _layout.SLOTS_D) -> list[Step]:
    """Make the previous release that is not withdrawn (or the named one) current; return the steps taken.

    The release left for an older one is marked as withdrawn. ReleaseError says why it cannot be done.
    """
    with lock(root):
        found = find(root)
        steps = plan_rollback(found, target, plan_formats(slots_d))
        apply_rollback(found, steps, root)
        return steps


def plan_rollback(found: Found, target: str | None, formats: t.Mapping[str, int]) -> list[Step]:
    """Return the steps of a rollback; formats are those of the slots' present plans, by slot."""
    active = found.active
    if active is None:
        raise ReleaseError("no release is active, so there is none to leave [converge first]")
    if target is None:
        earlier = [one for one in found.releases if one.sequence < active.sequence and not one.withdrawn]
        chosen = max((one for one in earlier if one.fault is None), key=lambda one: one.sequence, default=None)
        if chosen is None:
            why = f"{earlier[0].name} was tampered with" if earlier else "there is none, or all are withdrawn"
            raise ReleaseError(f"no release before {active.name} can be used: {why} [see `slotctl release list`]")
    else:
        chosen = next((one for one in found.releases if one.name == target), None)
        if chosen is None:
            raise ReleaseError(f"there is no release {printable(target)} [see `slotctl release list`]")
        if chosen.fault is not None:
            raise ReleaseError(f"release {chosen.name} was tampered with: {chosen.fault} [converge again]")
    if chosen.active:
        return []
    for slot, number in sorted(formats.items()):
        if number != chosen.plan_format:
            raise ReleaseError(
                f"release {chosen.name} reads plans of format {chosen.plan_format}, the plan of slot {printable(slot)}"
                f" has format {number} [check out the collection {chosen.version} and converge with it]"
            )
    steps = [Step(f"release {chosen.name}", "restore", "withdrawn", "usable")] if chosen.withdrawn else []
    steps.append(Step("release", "switch", active.name, chosen.name))
    if chosen.sequence < active.sequence:
        steps.append(Step(f"release {active.name}", "withdraw", "usable", "withdrawn"))
    return steps


def apply_rollback(found: Found, steps: t.Iterable[Step], root: str = _layout.OPT) -> None:
    """Take the steps of a rollback: the switch first, so that a kill leaves a release that works."""
    record = {release.name: (release.sequence, release.withdrawn) for release in found.releases}
    switched = next((step for step in steps if step.action == "switch"), None)
    if switched is None:
        return
    _switch(root, switched.after)
    for step in steps:
        if step.action in ("restore", "withdraw"):
            name = step.subject.partition(" ")[2]
            record[name] = (record[name][0], step.action == "withdraw")
    _write_record(root, record)


def find(root: str = _layout.OPT) -> Found:
    """Return what stands below root, every release verified; nothing at all if there is no root yet."""
    directory = f"{root}/releases"
    current = _current(root)
    record = _read_record(root)
    releases, leftovers, aside = [], [], []
    for name in _names(directory):
        if name.startswith(_INCOMING):
            leftovers.append(f"{directory}/{name}")
        elif name.startswith(_ASIDE):
            aside.append(f"{directory}/{name}")
        elif _NAME.match(name):
            sequence, withdrawn = record.get(name, (0, False))
            releases.append(_look(directory, name, sequence, withdrawn, name == current))
    leftovers += [f"{root}/{name}" for name in _names(root) if name.startswith((_LINK, ".releases.json."))]
    releases.sort(key=lambda release: (release.sequence, release.active, release.name), reverse=True)
    return Found(tuple(releases), tuple(leftovers), tuple(aside), _link_at(COMMAND))


def plan(wanted: Release, found: Found, keep: int, busy: t.Callable[[t.Iterable[str]], set[str]]) -> list[Step]:
    """Return the steps that make wanted (found, or to be installed) the active release and prune to keep others.

    busy tells which of the named releases are in use; those stay, as does what is active.
    """
    steps = [Step("leftovers of killed runs", "remove", "\n".join(found.leftovers))] if found.leftovers else []
    faulty = [release for release in found.releases if release.fault is not None]
    here = wanted in found.releases
    for release in faulty:
        if not here and release.name == wanted.name:
            steps.append(Step(f"release {release.name}", "set aside", release.fault))
    if not here:
        steps.append(Step(f"release {wanted.name}", "install", None, _as_text(wanted)))
    if wanted.withdrawn:
        steps.append(Step(f"release {wanted.name}", "restore", "withdrawn", "usable"))
    active = found.active
    switches = active is None or active.name != wanted.name
    if switches:
        steps.append(Step("release", "switch", active.name if active else None, wanted.name))
    rest = [release for release in found.releases if release.name != wanted.name]
    others = sorted((r for r in rest if r.fault is None), key=lambda r: (r.withdrawn, -r.sequence))
    used = busy([r.name for r in rest if r.fault is not None or r in others[keep:]]) if rest else set()
    wanted_command = f"{_layout.CURRENT}/bin/slotctl"
    if found.command == _NO_LINK:
        raise ReleaseError(f"{COMMAND} is no link, so it is not ours to replace [move it away]")
    if found.command != wanted_command:
        steps.append(Step(COMMAND, "link", found.command, wanted_command))
    for release in rest:
        if release.fault is not None and release.name not in used:
            steps.append(Step(f"release {release.name}", "set aside", release.fault))
    for release in others[keep:]:
        if release.name not in used:
            steps.append(Step(f"release {release.name}", "prune", _as_text(release)))
    return steps


def build(archive: str, version: str, origin: Origin, directory: str) -> str:
    """Make a release in an empty directory of root's; return its name, once every file is verified as read back."""
    try:
        header, listed = _archive.unpack(archive, origin.source, directory)
        if any(value.startswith(_manifest.LINK) for value in listed.values()):
            raise Untrusted("a release holds no links")
        made = {"bin/bwrap": (0o555, _bwrap(origin)), "lib/seccomp.bpf": (0o444, _seccomp(directory))}
        made.update({path: (0o444, data) for path, data in _bytecode(directory).items()})
        for path, (mode, data) in made.items():
            _archive.write_file(directory, path, data, mode)
            listed[path] = f"{mode:04o} {_manifest.sha256(data)}"
        header.update(
            source=origin.source,
            version=version,
            bwrap={"package": origin.bwrap_package, "version": origin.bwrap_version},
            python=origin.python,
        )
        manifest = _archive.dumps(listed, header)
        _archive.write_file(directory, MANIFEST, manifest, _manifest.MANIFEST_MODE)
        os.chmod(directory, _manifest.DIRECTORY_MODE)
        _archive.settle(directory)
        digest = _manifest.sha256(manifest)
        _manifest.check_tree(directory, digest)
    except (Untrusted, _files.UnsafePath) as error:
        raise ReleaseError(f"the release cannot be installed: {error} [converge again]") from None
    return f"{version}-{digest[: _manifest.SHORT]}"


def source_manifest(listed: t.Mapping[str, str], version: str) -> bytes:
    """Return the manifest of the controller's part of a release; its digest is the release's `source`."""
    return _archive.dumps(listed, {"plan_format": PLAN_FORMAT, "version": version})


def origin_on_host(source: str) -> Origin:
    """Return what a release made now on this host would be made of; ReleaseError if the host lacks a part."""
    try:
        data = _files.read(BWRAP)
    except _files.UnsafePath as error:
        raise ReleaseError(f"{error} [mend it]") from None
    if data is None:
        raise Lacking(f"{BWRAP} is missing [install the package bubblewrap; the role launcher does]")
    version = _run([BWRAP, "--version"]).decode("ascii", "replace").strip().rpartition(" ")[2]
    if _numbers(version) < BWRAP_LEAST:
        what = f"bubblewrap {printable(version)} is older than 0.8 and cannot keep sandboxes from making namespaces"
        raise ReleaseError(f"{what} [use a distribution that has 0.8: Debian 12, Ubuntu 24.04, or newer]")
    tag = _run([PYTHON, "-IS", "-c", "import sys; print(sys.implementation.cache_tag, sys.version_info >= (3, 10))"])
    python, _unused, recent = tag.decode("ascii", "replace").strip().partition(" ")
    if recent != "True":
        raise ReleaseError(f"{PYTHON} is {python}; it must be Python 3.10 or later [upgrade the host]")
    return Origin(source, _manifest.sha256(data), printable(version), _package(), printable(python))


def bwrap_is_old(version: str) -> bool:
    """Return whether a bubblewrap of this version has CVE-2026-87766."""
    return _numbers(version) < BWRAP_SAFE


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, () if it has none."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return numbers if len(numbers) == 2 else ()


def apply(steps: t.Iterable[Step], found: Found, built: str | None, root: str = _layout.OPT) -> None:
    """Take the steps; built is the directory in which a release to be installed stands ready."""
    record = {release.name: (release.sequence, release.withdrawn) for release in found.releases}
    aside: dict[str, int] = {}
    top = max((sequence for sequence, _unused in record.values()), default=0) + 1
    for step in steps:
        name = step.subject.partition(" ")[2]
        path = f"{root}/releases/{name}"
        if step.subject == "leftovers of killed runs":
            for leftover in found.leftovers:
                _remove(leftover)
        elif step.action == "install" and built is not None:
            os.rename(built, path)
            _sync(f"{root}/releases")
            # one made anew in the place of a tampered one keeps its place in the order
            record[name] = (aside.get(name, 0), False)
        elif step.action == "set aside":
            os.rename(path, f"{root}/releases/{_ASIDE}{name}-{secrets.token_hex(4)}")
            aside[name] = record.pop(name, (0, False))[0]
        elif step.action == "restore":
            record[name] = (record[name][0], False)
        elif step.action == "switch":
            record[step.after] = (top, False)
            _write_record(root, record)
            _switch(root, step.after)
        elif step.action == "link":
            _link(step.after, COMMAND)
        elif step.action == "prune":
            # renamed first: a kill while it is being removed leaves no half release under a release's name
            gone = f"{root}/releases/{_INCOMING}{secrets.token_hex(6)}"
            os.rename(path, gone)
            _remove(gone)
            record.pop(name, None)
    if record != _read_record(root):
        _write_record(root, record)


@contextlib.contextmanager
def incoming(directory: str) -> t.Iterator[str]:
    """Yield a new directory of root's beside the releases, gone afterwards unless it was renamed."""
    path = f"{directory}/{_INCOMING}{secrets.token_hex(6)}"
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        _remove(path)


@contextlib.contextmanager
def lock(root: str = _layout.OPT, seconds: float = LOCK_SECONDS) -> t.Iterator[None]:
    """Keep other converges and rollbacks out; ReleaseError if one stays at work for longer than seconds."""
    # a file that only root can open: a lock on the directory itself could be held by every account of the host
    try:
        with _files.exclusive(f"{root}/{LOCK}", seconds):
            yield
    except _files.Busy:
        raise ReleaseError(f"another converge or rollback holds {root} [wait for it to end]") from None


@contextlib.contextmanager
def kept(directory: str, *, predict: bool) -> t.Iterator[None]:
    """Hold the lock over a directory of ours that is made first; a check run before the first converge has neither."""
    if not predict:
        for each in (_layout.OPT, directory):
            _files.ensure_directory(each)
    if os.path.isdir(_layout.OPT):
        with lock():
            yield
    else:
        yield


def busy_releases(names: t.Iterable[str], root: str = _layout.OPT) -> set[str]:
    """Return those of the named releases that a process needs."""
    return {os.path.basename(path) for path in in_use(f"{root}/releases/{name}" for name in names)}


def plan_formats(slots_d: str = _layout.SLOTS_D) -> dict[str, int]:
    """Return the format of each slot's plan; a file that is no plan has format 0."""
    word = MAGIC.partition(" ")[0]
    formats = {}
    for slot in _names(slots_d):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(f"{slots_d}/{slot}/plan", "rb") as file:
            name, _unused, number = file.read(64).partition(b"\0")[0].decode("ascii", "replace").partition(" ")
            formats[slot] = int(number) if name == word and number.isdecimal() else 0
    return formats


def _look(directory: str, name: str, sequence: int, withdrawn: bool, active: bool) -> Release:
    plain = Release(name, name.rpartition("-")[0], 0, sequence, withdrawn, active)
    try:
        _manifest.verify_release(f"{directory}/{name}")
        data = _manifest.read_checked(f"{directory}/{name}/{MANIFEST}")
        header, listed = _archive.loads(data)
        bwrap = header["bwrap"]
        origin = Origin(header["source"], listed["bin/bwrap"][5:], bwrap["version"], bwrap["package"], header["python"])
        return dataclasses.replace(plain, version=header["version"], plan_format=header["plan_format"], origin=origin)
    except Refusal as refusal:
        return dataclasses.replace(plain, fault=refusal.what)
    except (Untrusted, OSError, KeyError, TypeError) as error:
        return dataclasses.replace(plain, fault=printable(f"{MANIFEST} cannot be used: {error}"))


def _as_text(release: Release) -> str:
    origin = release.origin
    if origin is None:
        return release.version
    return f"version {release.version}\nsource {origin.source}\nbwrap {origin.bwrap_package or origin.bwrap_version}\n"


def _current(root: str) -> str | None:
    try:
        target = os.readlink(f"{root}/current")
    except (FileNotFoundError, OSError):
        return None
    directory, _unused, name = target.rpartition("/")
    known = directory in ("releases", f"{root}/releases") and _NAME.match(name)
    return name if known and os.path.isdir(f"{root}/releases/{name}") else None


def _link_at(path: str) -> str | None:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return None
    except OSError:
        return _NO_LINK


def _switch(root: str, name: str) -> None:
    _link(f"releases/{name}", f"{root}/current")


def _link(target: str, path: str) -> None:
    directory, _unused, name = path.rpartition("/")
    temporary = f"{directory}/.{name}-{secrets.token_hex(6)}"
    os.symlink(target, temporary)
    try:
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync(directory)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read_record(root: str) -> dict[str, tuple[int, bool]]:
    data = _files.read(f"{root}/releases.json") if os.path.isdir(root) else None
    try:
        entries = json.loads(data or b"{}")
        return {name: (int(entry["sequence"]), bool(entry["withdrawn"])) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        # Without the record the order is lost, not the releases: the next switch begins it anew.
        return {}


def _write_record(root: str, record: t.Mapping[str, tuple[int, bool]]) -> None:
    entries = {name: {"sequence": sequence, "withdrawn": withdrawn} for name, (sequence, withdrawn) in record.items()}
    _files.write(f"{root}/releases.json", (json.dumps(entries, sort_keys=True, indent=1) + "\n").encode())


def _bwrap(origin: Origin) -> bytes:
    data = _files.read(BWRAP)
    if data is None or _manifest.sha256(data) != origin.bwrap_digest:
        raise Untrusted(f"{BWRAP} was changed meanwhile")
    return data


def _seccomp(directory: str) -> bytes:
    if _run([PYTHON, "-I", "-c", "import importlib.util as u; print(u.find_spec('seccomp') is None)"]) == b"True\n":
        raise Lacking(f"{PYTHON} lacks the module seccomp [install the package python3-seccomp]")
    data = _run([PYTHON, "-I", f"{directory}/lib/confined_slots/_seccomp.py"])
    if not data or len(data) % 8:
        raise Untrusted("the seccomp filter is no sequence of instructions")
    return data


def _bytecode(directory: str) -> dict[str, bytes]:
    """Return the compiled modules of a release: they save much of the launcher's start, and nobody adds any later."""
    options = ["--invalidation-mode", "unchecked-hash", "-q", "-f", "-s", directory]
    _run([PYTHON, "-sSB", "-m", "compileall", *options, f"{directory}/lib"])
    compiled = {}
    for parent, directories, names in os.walk(f"{directory}/lib"):
        if os.path.basename(parent) == "__pycache__":
            for name in names:
                path = os.path.join(parent, name)
                with open(path, "rb") as file:
                    compiled[os.path.relpath(path, directory)] = file.read()
                os.unlink(path)
            os.rmdir(parent)
        directories.sort()
    return compiled


def _package() -> str:
    try:
        return printable(_run(["dpkg-query", "-W", "-f", "${Version}", "bubblewrap"]).decode("utf-8", "replace"))
    except ReleaseError:
        return _UNKNOWN


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(
            command, env=ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(f"`{command[0]}` cannot be run: {printable(str(error))} [mend the host]") from None
    if done.returncode:
        said = printable(done.stderr.decode("utf-8", "replace").strip())[-300:]
        raise ReleaseError(f"`{printable(' '.join(command))}` failed with {done.returncode}: {said} [mend the host]")
    return done.stdout
