# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Root's own files: walked without following links, written whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import stat
import time
import typing as t

from ._manifest import Untrusted, open_trusted


class UnsafePath(Exception):
    """A path that somebody other than root can redirect, so root keeps away from it."""


class Busy(Exception):
    """A lock that somebody else has held for too long."""


@dataclasses.dataclass(frozen=True)
class Owned:
    """Who owns a file or directory, and its permission bits."""

    uid: int
    gid: int
    mode: int

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid} {self.mode:04o}"


ROOT_DIRECTORY = Owned(0, 0, 0o755)


@dataclasses.dataclass(frozen=True)
class Found:
    """What stands at a path: `directory`, `file`, `link` or `other`, whose it is, and how many hard links it has."""

    kind: str
    owned: Owned
    names: int = 1

    @classmethod
    def of(cls, status: os.stat_result) -> Found:
        """Return it from what stat(2) says."""
        kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
        owned = Owned(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
        return cls(kinds.get(stat.S_IFMT(status.st_mode), "other"), owned, status.st_nlink)


@contextlib.contextmanager
def trusted_directory(path: str) -> t.Iterator[int]:
    """Yield a descriptor of the directory, once sure that only root can redirect any part of the way to it.

    Raises UnsafePath if a component is a link or can be written by others than root, FileNotFoundError if one is
    missing.
    """
    try:
        descriptor = open_trusted(path)
    except Untrusted as error:
        raise UnsafePath(str(error)) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read(path: str, limit: int = 1 << 24) -> bytes | None:
    """Return the bytes of one of root's files, None if there is none.

    Links are refused, at most limit bytes are read.
    """
    try:
        with trusted_directory(os.path.dirname(path)) as parent:
            descriptor = os.open(
                os.path.basename(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent
            )
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnsafePath(f"{path} is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UnsafePath(f"{path} is larger than {limit} bytes")
    return data


def look(path: str) -> Found | None:
    """Return what stands at path, None if nothing does; no link is followed, and one on the way raises UnsafePath."""
    try:
        with _way_to(path) as (parent, name):
            return Found.of(os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return None


def names(path: str) -> list[str]:
    """Return the sorted names in a directory, reached without following links; UnsafePath if one is in the way."""
    with _way_to(path) as (parent, name):
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except NotADirectoryError:
            raise UnsafePath(f"{path} is a link or no directory; root does not go through it") from None
    try:
        return sorted(os.listdir(descriptor))
    finally:
        os.close(descriptor)


def owned(path: str) -> Owned | None:
    """Return owner and mode of a file or directory, None if there is none; a link raises UnsafePath."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        raise UnsafePath(f"{path} is a link; it must be a file or directory of root's")
    return Owned(found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))


def write(path: str, data: bytes, wanted: Owned = Owned(0, 0, 0o644)) -> None:
    """Put data at path in one rename, so that a kill or a full disk leaves the old file.

    The parent must be root's alone.
    """
    with trusted_directory(os.path.dirname(path)) as parent:
        _write_into(parent, os.path.basename(path), data, wanted)


def publish(path: str, data: bytes, wanted: Owned = Owned(0, 0, 0o644)) -> None:
    """Put data at path as `write` does, where only the last directory is root's alone, and those above it may not be.

    No link is followed, and nothing is written but into that directory: who could put another in its place could only
    have one of root's there. UnsafePath if it is not root's alone.
    """
    with _way_to(path) as (above, name):
        parent = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
        try:
            found = os.fstat(parent)
            if found.st_uid != 0 or found.st_mode & 0o022:
                raise UnsafePath(f"{os.path.dirname(path)} is {Found.of(found).owned}; it must be root's alone")
            _write_into(parent, name, data, wanted)
        finally:
            os.close(parent)


def ensure_directory(path: str, wanted: Owned = ROOT_DIRECTORY) -> None:
    """Make the directory (parents too, as root's) and give it owner and mode; nothing below it is touched."""
    parent_path = os.path.dirname(path)
    if not os.path.isdir(parent_path):
        ensure_directory(parent_path)
    with trusted_directory(parent_path) as parent:
        name = os.path.basename(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except NotADirectoryError:
            raise UnsafePath(f"{path} is a link or no directory; root does not go through it") from None
        try:
            give(descriptor, wanted)
        finally:
            os.close(descriptor)


def give(descriptor: int, wanted: Owned) -> None:
    """Set owner and mode of an open file; chown first, since it clears bits of the mode."""
    os.fchown(descriptor, wanted.uid, wanted.gid)
    os.fchmod(descriptor, wanted.mode)


def remove(path: str) -> None:
    """Remove one of root's files, if it is there."""
    with contextlib.suppress(FileNotFoundError), trusted_directory(os.path.dirname(path)) as parent:
        os.unlink(os.path.basename(path), dir_fd=parent)


@contextlib.contextmanager
def exclusive(path: str, seconds: float) -> t.Iterator[None]:
    """Hold the lock at path, made as root's alone; Busy after seconds. The kernel frees it when its holder dies."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with trusted_directory(os.path.dirname(path)) as parent:
        descriptor = os.open(os.path.basename(path), flags, 0o600, dir_fd=parent)
    try:
        deadline = time.monotonic() + seconds
        while not _locked(descriptor):
            if time.monotonic() >= deadline:
                raise Busy(path)
            time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _write_into(parent: int, name: str, data: bytes, wanted: Owned) -> None:
    temporary = f".{name}.{secrets.token_hex(6)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchown(descriptor, wanted.uid, wanted.gid)
            os.fchmod(descriptor, wanted.mode)
            os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        raise
    os.fsync(parent)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _way_to(path: str) -> t.Iterator[tuple[int, str]]:
    """Yield a descriptor (to walk on only) of the directory that holds path, and the last name; follows no link."""
    *way, last = [part for part in path.split("/") if part]
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for position, name in enumerate(way, 1):
            try:
                step = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            except NotADirectoryError:
                walked = "/" + "/".join(way[:position])
                raise UnsafePath(f"{walked} is a link or no directory; root does not go through it") from None
            os.close(descriptor)
            descriptor = step
        yield descriptor, last
    finally:
        os.close(descriptor)
