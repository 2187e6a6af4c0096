# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees on their way from the controller to a host: listed, packed the same way every time, unpacked by the list only.

The first member of an archive is the tree's manifest, whose digest the host is told beforehand; every other member
must be a file or link that the manifest lists. Owners, times and modes of the controller do not travel.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tarfile
import typing as t

from . import _manifest
from ._manifest import LINK, MANIFEST, Untrusted
from ._refusals import printable

_CHUNK = 1 << 20
_MANIFEST_LIMIT = 1 << 26
_IMAGE = re.compile(r"bin/[a-z-]+\Z|lib/(?:[a-z_]+/)+[a-z_]+\.py\Z")


@dataclasses.dataclass(frozen=True)
class Tree:
    """What stands in a directory of the controller: manifest values by path, and where each file is read."""

    listed: dict[str, str]
    sources: dict[str, str] = dataclasses.field(repr=False)


def collect(root: str, *, image: bool = False) -> Tree:
    """Return the tree below root; Untrusted names a special file.

    A provider's tree is taken whole, its links kept (`check_links` is the caller's care), a file being executable if
    its owner may execute it. With image it is a release's: links are read as what they lead to, only `bin/*` and
    `lib/**/*.py` are taken (no left-overs of tools), and the place says what is executable, whatever a checkout did.
    """
    listed: dict[str, str] = {}
    sources: dict[str, str] = {}
    pending = [("", root)]
    while pending:
        prefix, directory = pending.pop()
        for name in sorted(os.listdir(directory)):
            path, source = prefix + name, os.path.join(directory, name)
            status = os.stat(source) if image else os.lstat(source)
            if stat.S_ISDIR(status.st_mode):
                pending.append((path + "/", source))
            elif stat.S_ISLNK(status.st_mode):
                listed[path] = LINK + os.readlink(source)
            elif not stat.S_ISREG(status.st_mode):
                raise Untrusted(f"{printable(source)} is no file, directory or link")
            elif not image or _IMAGE.match(path):
                executable = path.startswith("bin/") if image else status.st_mode & stat.S_IXUSR
                mode = "0555" if executable else "0444"
                listed[path] = f"{mode} {digest_of(source)}"
                sources[path] = source
    check_links(listed)
    return Tree(listed, sources)


def check_links(listed: t.Mapping[str, str]) -> None:
    """Raise Untrusted if a listed link is absolute, leads out of the tree, or stands where a directory must."""
    for path, value in listed.items():
        if value.startswith(LINK):
            target = value[len(LINK) :]
            depth = path.count("/")
            for part in target.split("/"):
                depth += -1 if part == ".." else part not in ("", ".")
                if depth < 0:
                    break
            if target.startswith("/") or not target or "\0" in target or depth < 0:
                raise Untrusted(f"the link {printable(path)} leads out of its tree, to {printable(target)!r}")
        parent = path.rpartition("/")[0]
        while parent:
            if parent in listed:
                raise Untrusted(f"{printable(path)} stands below {printable(parent)}, which is no directory")
            parent = parent.rpartition("/")[0]


def dumps(listed: t.Mapping[str, str], header: t.Mapping[str, t.Any]) -> bytes:
    """Return the manifest of a tree in its canonical form; header is what it says beside the files."""
    return (json.dumps({**header, "files": dict(listed)}, sort_keys=True, indent=1) + "\n").encode("ascii")


def loads(manifest: bytes) -> tuple[dict[str, t.Any], dict[str, str]]:
    """Return header and files of a manifest; Untrusted unless it is in its canonical form."""
    listed = _manifest.entries(manifest)
    try:
        header = json.loads(manifest)
    except ValueError:
        raise Untrusted(f"{MANIFEST} is not JSON") from None
    if header.pop("files", None) != listed or dumps(listed, header) != manifest:
        raise Untrusted(f"{MANIFEST} is not in its canonical form")
    return header, listed


def pack(tree: Tree, manifest: bytes, out: t.IO[bytes], level: int = 6) -> None:
    """Write the archive of a tree; the same tree and manifest always give the same bytes.

    Untrusted names a file that has changed since it was listed.
    """
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=level, fileobj=out, mtime=0) as compressed,
        tarfile.open(
            mode="w|", fileobj=compressed, format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
        ) as tar,
    ):
        tar.addfile(_member(MANIFEST, 0o444, len(manifest)), io.BytesIO(manifest))
        for path, value in sorted(tree.listed.items()):
            if value.startswith(LINK):
                link = _member(path, 0o777, 0)
                link.type, link.linkname = tarfile.SYMTYPE, value[len(LINK) :]
                tar.addfile(link)
                continue
            with open(tree.sources[path], "rb") as file:
                reader = _Hashing(file)
                member = _member(path, int(value[:4], 8), os.fstat(file.fileno()).st_size)
                tar.addfile(member, t.cast(t.IO[bytes], reader))
            if reader.hash.hexdigest() != value[5:]:
                raise Untrusted(f"{printable(tree.sources[path])} was changed while it was being packed")


def unpack(archive: str, digest: str, directory: str) -> tuple[dict[str, t.Any], dict[str, str]]:
    """Lay an archive's tree into an empty directory of root's; return header and files of its manifest.

    The manifest must have the digest told. Only what it lists is written, links last, so that nothing is ever written
    through one. Untrusted names what is wrong with the archive; the caller verifies the result as read back.
    """
    with _reading(), tarfile.open(archive, "r|gz", encoding="utf-8", errors="surrogateescape") as tar:
        first = tar.next()
        file = tar.extractfile(first) if first and first.isreg() and first.name == MANIFEST else None
        if first is None or file is None or first.size > _MANIFEST_LIMIT:
            raise Untrusted(f"the archive does not begin with {MANIFEST}")
        manifest = file.read()
        if _manifest.sha256(manifest) != digest:
            raise Untrusted(f"the archive's {MANIFEST} has not the digest {digest}")
        header, listed = loads(manifest)
        check_links(listed)
        _unpack_members(tar, listed, directory)
    for path, value in sorted(listed.items()):
        if value.startswith(LINK):
            with parent_of(directory, path) as (parent, name):
                os.symlink(value[len(LINK) :], name, dir_fd=parent)
    return header, listed


def digest_told(archive: str) -> str:
    """Return the digest of the manifest with which an archive begins."""
    with _reading(), tarfile.open(archive, "r|gz") as tar:
        first = tar.next()
        file = tar.extractfile(first) if first and first.isreg() and first.name == MANIFEST else None
        if file is None:
            raise Untrusted(f"{printable(archive)} does not begin with {MANIFEST}")
        return _manifest.sha256(file.read())


def extract(archive: str, directory: str) -> None:
    """Lay any tar archive (compressed or not) into an empty directory: files, directories and links, links last.

    Untrusted names a member that leads out of the directory, stands there twice, or is something else.
    """
    links: dict[str, str] = {}
    with _reading(), tarfile.open(archive, "r:*", encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            path = "/".join(part for part in member.name.split("/") if part not in ("", "."))
            if member.name.startswith("/") or ".." in path.split("/"):
                raise Untrusted(f"the archive holds {printable(member.name)}, which leads out of it")
            if member.issym():
                links[path] = member.linkname
            elif member.isreg() or member.islnk():
                try:
                    content = tar.extractfile(member) if path else None
                except KeyError:  # a hard link to what the archive does not hold
                    content = None
                if content is None:
                    raise Untrusted(f"the archive holds {printable(member.name)}, which has no content")
                mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
                with (
                    _once(path),
                    parent_of(directory, path) as (parent, name),
                    _new_file(parent, name, mode) as out,
                ):
                    shutil.copyfileobj(content, out, _CHUNK)
            elif not member.isdir():
                raise Untrusted(f"the archive holds {printable(member.name)}, which is no file, directory or link")
    for path, target in sorted(links.items()):
        with _once(path), parent_of(directory, path) as (parent, name):
            os.symlink(target, name, dir_fd=parent)


def write_file(directory: str, path: str, data: bytes, mode: int = 0o444) -> None:
    """Write one new file of root's below directory, its parents too; nothing is followed or written over."""
    with parent_of(directory, path) as (parent, name):  # noqa: SIM117  (in one, pylint takes parent for unset)
        with _new_file(parent, name, mode) as out:
            out.write(data)


def settle(directory: str) -> None:
    """Have the file system that holds directory write everything to the disk; OSError if it cannot."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), directory)
    finally:
        os.close(descriptor)


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file's content in hex."""
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK):
            hashed.update(piece)
    return hashed.hexdigest()


@contextlib.contextmanager
def parent_of(directory: str, path: str) -> t.Iterator[tuple[int, str]]:
    """Yield a descriptor of the directory that holds path below directory (made if need be), and the last name."""
    *parts, name = path.split("/")
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=descriptor)
                os.chmod(part, 0o755, dir_fd=descriptor)
            step = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = step
        yield descriptor, name
    finally:
        os.close(descriptor)


def _unpack_members(tar: tarfile.TarFile, listed: t.Mapping[str, str], directory: str) -> None:
    seen = set()
    for member in iter(tar.next, None):
        value = listed.get(member.name)
        if value is None or member.name in seen or member.issym() is not value.startswith(LINK):
            raise Untrusted(f"the archive holds {printable(member.name)}, which its {MANIFEST} does not list so")
        seen.add(member.name)
        if member.issym():
            continue
        content = tar.extractfile(member) if member.isreg() else None
        if content is None:
            raise Untrusted(f"the archive holds {printable(member.name)}, which is no regular file")
        hashed = hashlib.sha256()
        with (
            parent_of(directory, member.name) as (parent, name),
            _new_file(parent, name, int(value[:4], 8)) as out,
        ):
            while piece := content.read(_CHUNK):
                hashed.update(piece)
                out.write(piece)
        if hashed.hexdigest() != value[5:]:
            raise Untrusted(f"the archive's {printable(member.name)} has not the content that its {MANIFEST} lists")
    missing = sorted(set(listed) - seen)
    if missing:
        raise Untrusted(f"the archive lacks {printable(missing[0])}")


@contextlib.contextmanager
def _new_file(parent: int, name: str, mode: int) -> t.Iterator[t.IO[bytes]]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb") as out:
        yield out
        out.flush()
        os.fchmod(out.fileno(), mode)


@contextlib.contextmanager
def _once(path: str) -> t.Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise Untrusted(f"the archive holds {printable(path)} twice, or below a file or link") from None


@contextlib.contextmanager
def _reading() -> t.Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise Untrusted(f"the archive is broken: {printable(str(error))}") from None


def _member(path: str, mode: int, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode, member.size = mode, size
    return member


class _Hashing:
    """A reader that keeps the digest of what went through it."""

    def __init__(self, file: t.IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return at most size bytes."""
        piece = self._file.read(size)
        self.hash.update(piece)
        return piece
