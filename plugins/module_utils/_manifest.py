# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests of root-owned trees, and the check that a tree is what its manifest lists.

A manifest is canonical JSON in which every file is one line, `  "bin/bwrap": "0555 <sha256>"`, so that it can be read
without a JSON parser: each line must be, byte for byte, what this module would write for it.

On the launcher's hot path: imports posix, sys and a hash, nothing else.
"""

from __future__ import annotations

import posix as os  # os itself costs every session two milliseconds
import sys

from ._refusals import Refusal, printable

try:  # hashlib costs several milliseconds at start; these are its parts
    from _sha2 import sha256 as _sha256  # type: ignore[import-not-found, unused-ignore]  # Python 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256 as _sha256  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from hashlib import sha256 as _sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

    Chooser = t.Callable[[dict[str, str]], list[str]]

MANIFEST = "MANIFEST.json"
VOUCHING = b"# sha256 "
EXPIRES = b"# expires "  # the day, YYYY-MM-DD, on which a credential is good no more
LIBRARY = "lib/confined_slots"
LAUNCHER, BWRAP, SECCOMP = "bin/slot-launcher", "bin/bwrap", "lib/seccomp.bpf"
DIRECTORY_MODE = 0o755
MANIFEST_MODE = 0o444
LINK = "link "
SHORT = 12
RELEASE_CURE = "run 'slotctl release verify' and converge again"
PROVIDER_CURE = "converge again; the providers role lays the tree anew"

_FILE_MODES = ("0444 ", "0555 ")
_HEX = frozenset("0123456789abcdef")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\b": "\\b"}
_UNESCAPES = {escape[1]: character for character, escape in _ESCAPES.items()}
_CHUNK = 1 << 20
_LARGE = 8 << 20
_S_IFMT, _S_IFREG, _S_IFLNK, _S_IFDIR, _S_ISVTX = 0o170000, 0o100000, 0o120000, 0o040000, 0o1000


class Untrusted(Exception):
    """A file, directory or manifest that is not root's alone, or not what it should be; the text names it."""


def sha256(data: bytes) -> str:
    """Return the SHA-256 of data in lower-case hex."""
    return str(_sha256(data).hexdigest())


def vouched(lines: bytes) -> bytes:
    """Return lines, with a comment before them that has their digest: a changed byte of any is noticed."""
    return VOUCHING + sha256(lines).encode("ascii") + b"\n" + lines


def sha256_of(descriptor: int) -> str:
    """Return the SHA-256 in lower-case hex of what is left to read from descriptor."""
    hashed = _sha256()
    if os.fstat(descriptor).st_size > _LARGE:
        import hashlib  # five times as fast, which pays for its import here and not for a release's small files

        hashed = hashlib.sha256()
    while piece := os.read(descriptor, _CHUNK):
        hashed.update(piece)
    return str(hashed.hexdigest())


def quoted(text: str) -> str:
    """Return text as json.dumps writes it: ASCII, surrogate pairs beyond the basic plane."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    written = []
    for character in text:
        code = ord(character)
        if character in _ESCAPES:
            written.append(_ESCAPES[character])
        elif " " <= character <= "~":
            written.append(character)
        elif code < 0x10000:
            written.append(f"\\u{code:04x}")
        else:
            code -= 0x10000
            written.append(f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}")
    return '"' + "".join(written) + '"'


def line(path: str, mode: int, digest: str) -> str:
    """Return the manifest's line of a file (without the comma)."""
    return f'  {quoted(path)}: "{mode:04o} {digest}"'


def link_line(path: str, target: str) -> str:
    """Return the manifest's line of a symbolic link (without the comma)."""
    return f"  {quoted(path)}: {quoted(LINK + target)}"


def entries(manifest: bytes) -> dict[str, str]:
    """Return what a manifest lists, path to `MODE DIGEST` or `link TARGET`; Untrusted if a line is not canonical."""
    try:
        lines = manifest.decode("ascii").split("\n")
        start = lines.index(' "files": {')
    except ValueError:
        raise Untrusted(f"{MANIFEST} has no list of files") from None
    listed: dict[str, str] = {}
    last = ""
    for number in range(start + 1, len(lines)):
        text = lines[number]
        more = text.endswith(",")
        path, value = _parse(text[:-1] if more else text)
        if path <= last:
            break
        listed[path] = value
        last = path
        if not more:
            if lines[number + 1 : number + 2] in ([" }"], [" },"]):
                return listed
            break
    raise Untrusted(f"{MANIFEST} is not in its canonical form")


def read_checked(path: str, dir_fd: int | None = None, limit: int = 1 << 24) -> bytes:
    """Return the bytes of a file that only root can write.

    Untrusted if it is a link, no regular file, not root's, writable by group or others, or larger than limit bytes;
    OSError (FileNotFoundError, say) as open(2) gives it. The directories on the way are the caller's care.
    """
    descriptor = _open(path, dir_fd)
    try:
        size = _root_file(descriptor, path)[1]
        data = b""
        if size <= limit:
            data = os.read(descriptor, size + 1)
            while piece := os.read(descriptor, _CHUNK):
                data += piece
                if len(data) > limit:
                    break
        if size > limit or len(data) > limit:
            raise Untrusted(f"{printable(path)} is larger than {limit} bytes")
        return data
    finally:
        os.close(descriptor)


def open_trusted(directory: str) -> int:
    """Return a descriptor of a directory, once sure that only root can change it or redirect the way to it.

    The path must be absolute and free of links; Untrusted names the component at fault, OSError as open(2) gives it.
    A directory on the way may be writable by others if it is sticky (as /tmp), the last one may not; /var/log may be
    writable by its group, as Ubuntu has it: what stands in it is checked in turn.
    """
    if not directory.startswith("/"):
        raise Untrusted(f"{printable(directory)} is not an absolute path")
    parts = [part for part in directory.split("/") if part]
    descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts, 1):
            walked = "/" + "/".join(parts[:number])
            step = _open_directory(part, descriptor, walked)
            os.close(descriptor)
            descriptor = step
            check_directory(os.fstat(descriptor), walked, on_the_way=number < len(parts))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_directory(found: os.stat_result, path: str, *, on_the_way: bool) -> None:
    """Raise Untrusted if others than root can change a directory, by the rule of `open_trusted`."""
    sticky = found.st_mode & _S_ISVTX and on_the_way
    others = 0o002 if path == "/var/log" else 0o022
    if found.st_uid != 0 or (found.st_mode & others and not sticky):
        raise Untrusted(_writable(path, found))


def verify_release(directory: str, hot: frozenset[str] | None = None) -> dict[str, str]:
    """Return the digest of every file of a release, once each is what the release's manifest lists.

    With hot only what a launch executes: these modules, the launcher, the filter; bwrap's digest is returned too, whose
    bytes `open_listed` hashes.

    directory is the release's real path (no link on the way), `…/VERSION-SHA12`: its name vouches for MANIFEST.json,
    the manifest for the files. Refusal `launcher-tampered` names the file or directory at fault.
    """
    try:
        if hot is None:
            listed = check_tree(directory)
        else:
            listed = check_tree(directory, chosen=_all_but_bwrap, read=lambda manifest: _executed(manifest, hot))
    except Untrusted as error:
        raise Refusal("launcher-tampered", str(error), RELEASE_CURE) from None
    except OSError as error:
        raise Refusal("launcher-tampered", _unreadable(error, directory), RELEASE_CURE) from None
    return {path: value[5:] for path, value in listed.items()}


def verify_tree(directory: str, tree: str, paths: tuple[str, ...] | None = None) -> dict[str, str]:
    """Return what a provider's tree lists (as `entries`), once its files are what the manifest with digest tree lists.

    With paths only those are read (links on the way are followed inside the tree), otherwise every file, and nothing
    unlisted may stand there. Refusal `provider-missing` or `provider-changed` names the file or directory at fault.
    """
    try:
        chosen = None if paths is None else lambda listed: [resolve(path, listed) for path in paths]
        return check_tree(directory, tree, chosen)
    except Untrusted as error:
        raise Refusal("provider-changed", str(error), PROVIDER_CURE) from None
    except FileNotFoundError as error:
        code = "provider-changed" if _is_directory(directory) else "provider-missing"
        raise Refusal(code, _unreadable(error, directory), PROVIDER_CURE) from None
    except OSError as error:
        raise Refusal("provider-changed", _unreadable(error, directory), PROVIDER_CURE) from None


def open_listed(directory: str, path: str, value: str) -> int:
    """Return a descriptor of a listed file, once its owner, mode and content are what value (`MODE DIGEST`) says.

    Whoever executes or binds the descriptor has exactly the bytes that were hashed. Untrusted or OSError otherwise.
    """
    descriptor = open_trusted(f"{directory}/{path}".rpartition("/")[0])
    try:
        return _open_entry(path.rpartition("/")[2], descriptor, f"{directory}/{path}", value)
    finally:
        os.close(descriptor)


def resolve(path: str, listed: dict[str, str]) -> str:
    """Return the listed file that path leads to inside a tree, over the listed links; Untrusted if it leads nowhere."""
    pending = path.split("/")
    walked: list[str] = []
    for _unused in range(40 * (len(pending) + 1)):
        if not pending:
            break
        part = pending.pop(0)
        if part == "..":
            if not walked:
                break
            walked.pop()
        elif part not in ("", "."):
            walked.append(part)
            value = listed.get("/".join(walked), "")
            if value.startswith(LINK):
                walked.pop()
                pending = value[len(LINK) :].split("/") + pending
    found = "/".join(walked)
    if pending or not listed.get(found, LINK).startswith(_FILE_MODES):
        raise Untrusted(f"{printable(path)} leads to no file that {MANIFEST} lists")
    return found


def check_tree(
    directory: str, tree: str = "", chosen: Chooser | None = None, read: t.Callable[[bytes], dict[str, str]] = entries
) -> dict[str, str]:
    """Do the work of verify_release (no tree given) and verify_tree; Untrusted or OSError instead of a refusal.

    read returns what the manifest lists; chosen picks from that the files to read; without it every file is read, and
    no other may stand there.
    """
    descriptor = open_trusted(directory)
    try:
        if os.fstat(descriptor).st_mode & 0o7777 != DIRECTORY_MODE:
            raise Untrusted(f"{printable(directory)} has not mode 0755 ({_owner(os.fstat(descriptor))})")
        mode, manifest = _read(MANIFEST, descriptor, f"{directory}/{MANIFEST}")
        shown = f"{printable(directory)}/{MANIFEST}"
        digest = sha256(manifest)
        if mode != MANIFEST_MODE:
            raise Untrusted(f"{shown} has mode {mode:04o}, not {MANIFEST_MODE:04o}")
        if tree and digest != tree:
            raise Untrusted(f"{shown} has digest {digest}, not the recorded {printable(tree)}")
        if not tree and not directory.endswith(f"-{digest[:SHORT]}"):
            raise Untrusted(f"{shown} has digest {digest[:SHORT]}…, which is not how the directory's name ends")
        listed = read(manifest)
        if chosen is None:
            _verify_all(descriptor, directory, listed)
        else:
            for path in chosen(listed):
                _verify_one(descriptor, directory, path, listed)
        return listed
    finally:
        os.close(descriptor)


def _executed(manifest: bytes, modules: frozenset[str]) -> dict[str, str]:
    """Return the entries of what a launch executes, found without reading the whole list: its digest vouches for it.

    Python runs the bytecode of its own version that is listed, unchecked against its source, and else the source.
    """
    text = manifest.decode("ascii", "replace")
    found = {}
    for name in modules:
        compiled = f"{LIBRARY}/__pycache__/{name}.{sys.implementation.cache_tag}.pyc"
        path = compiled if f'\n  "{compiled}": "' in text else f"{LIBRARY}/{name}.py"
        found[path] = ""
    for path in (*found, LAUNCHER, SECCOMP, BWRAP):
        _unused, there, rest = text.partition(f'\n  "{path}": "')
        if not there or rest[69:70] != '"':
            raise Untrusted(f"{MANIFEST} does not list {path}")
        found[path] = rest[:69]
    return found


def _is_directory(path: str) -> bool:
    try:
        return os.stat(path).st_mode & _S_IFMT == _S_IFDIR
    except OSError:
        return False


def _all_but_bwrap(listed: dict[str, str]) -> list[str]:
    return [path for path in listed if path != BWRAP]


def _verify_all(descriptor: int, directory: str, listed: dict[str, str]) -> None:
    found = {MANIFEST}
    parents = set()
    for path in listed:
        while "/" in path:
            path = path.rpartition("/")[0]
            parents.add(path)
    pending = [(descriptor, "")]
    try:
        while pending:
            current, prefix = pending[-1]
            below = []
            with os.scandir(current) as scan:
                names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan]
            for name, is_directory in names:
                path = prefix + name
                shown = f"{directory}/{path}"
                if is_directory:
                    if path not in parents:
                        raise Untrusted(f"{printable(shown)} stands there and is not listed in {MANIFEST}")
                    below.append((name, path, shown))
                elif path in listed:
                    _verify_entry(name, current, shown, listed[path])
                    found.add(path)
                elif path != MANIFEST:
                    raise Untrusted(f"{printable(shown)} stands there and is not listed in {MANIFEST}")
            opened = []
            for name, path, shown in below:
                step = _open_directory(name, current, shown)
                opened.append((step, path + "/"))
                status = os.fstat(step)
                if status.st_uid != 0 or status.st_mode & 0o7777 != DIRECTORY_MODE:
                    pending.extend(opened)
                    raise Untrusted(f"{printable(shown)} is not root's with mode 0755 ({_owner(status)})")
            pending.pop()
            if current != descriptor:
                os.close(current)
            pending.extend(opened)
    finally:
        for current, _unused in pending:
            if current != descriptor:
                os.close(current)
    if len(found) <= len(listed):
        missing = min(path for path in listed if path not in found)
        raise Untrusted(f"{printable(directory)}/{printable(missing)} is missing")


def _verify_one(descriptor: int, directory: str, path: str, listed: dict[str, str]) -> None:
    parts = path.split("/")
    opened = []
    current = descriptor
    try:
        for number, part in enumerate(parts[:-1], 1):
            shown = f"{directory}/{'/'.join(parts[:number])}"
            current = _open_directory(part, current, shown)
            opened.append(current)
            status = os.fstat(current)
            if status.st_uid != 0 or status.st_mode & 0o022:
                raise Untrusted(_writable(shown, status))
        _verify_entry(parts[-1], current, f"{directory}/{path}", listed[path])
    finally:
        for current in opened:
            os.close(current)


def _verify_entry(name: str, dir_fd: int, shown: str, value: str) -> None:
    if value.startswith(LINK):
        target = value[len(LINK) :]
        is_link = os.lstat(name, dir_fd=dir_fd).st_mode & _S_IFMT == _S_IFLNK
        if not is_link or os.readlink(name, dir_fd=dir_fd) != target:
            raise Untrusted(f"{printable(shown)} is not the link to {printable(target)} that {MANIFEST} lists")
        return
    os.close(_open_entry(name, dir_fd, shown, value))


def _open_entry(name: str, dir_fd: int, shown: str, value: str) -> int:
    descriptor = _open(name, dir_fd, shown)
    try:
        mode, _unused = _root_file(descriptor, shown)
        if f"{mode:04o}" != value[:4]:
            raise Untrusted(f"{printable(shown)} has mode {mode:04o}, not {value[:4]}")
        if sha256_of(descriptor) != value[5:]:
            raise Untrusted(f"{printable(shown)} has not the content that {MANIFEST} lists")
        os.lseek(descriptor, 0, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read(name: str, dir_fd: int, shown: str) -> tuple[int, bytes]:
    descriptor = _open(name, dir_fd, shown)
    try:
        mode, _unused = _root_file(descriptor, shown)
        pieces = []
        while piece := os.read(descriptor, _CHUNK):
            pieces.append(piece)
        return mode, b"".join(pieces)
    finally:
        os.close(descriptor)


def _open(path: str, dir_fd: int | None, shown: str = "") -> int:
    # O_NONBLOCK: opening a FIFO that stands in the file's place must not wait for a writer
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == 40:  # ELOOP, without importing errno
            raise Untrusted(f"{printable(shown or path)} is a link; it must be a file of root's") from None
        raise OSError(error.errno, error.strerror, shown or path) from None


def _open_directory(name: str, dir_fd: int, shown: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except NotADirectoryError:
        raise Untrusted(f"{printable(shown)} is a link or no directory") from None
    except OSError as error:
        raise type(error)(error.errno, error.strerror, shown) from None


def _root_file(descriptor: int, shown: str) -> tuple[int, int]:
    status = os.fstat(descriptor)
    if status.st_mode & _S_IFMT != _S_IFREG:
        raise Untrusted(f"{printable(shown)} is not a regular file")
    if status.st_uid != 0 or status.st_mode & 0o022:
        raise Untrusted(_writable(shown, status))
    return status.st_mode & 0o7777, status.st_size


def _writable(shown: str, status: os.stat_result) -> str:
    return f"{printable(shown)} can be written by others than root ({_owner(status)})"


def _owner(status: os.stat_result) -> str:
    return f"uid {status.st_uid}, mode {status.st_mode & 0o7777:04o}"


def _unreadable(error: OSError, directory: str) -> str:
    return f"{error.filename or directory}: {error.strerror}"


def _parse(text: str) -> tuple[str, str]:
    """Return path and value of a line, once sure that it is what this module would write for them."""
    end = text.find('": "')
    if not text.startswith('  "') or end < 0 or not text.endswith('"'):
        raise Untrusted(f"{MANIFEST} has a line that is no entry: {printable(text[:120])}")
    path, value = _unquoted(text[3:end]), text[end + 4 : -1]
    if value.startswith(LINK):
        value = LINK + _unquoted(value[len(LINK) :])
        written = link_line(path, value[len(LINK) :])
    elif value.startswith(_FILE_MODES) and len(value) == 69 and _HEX.issuperset(value[5:]):
        written = f'  {quoted(path)}: "{value}"'
    else:
        written = ""
    if written != text or "\0" in text or any(part in ("", ".", "..") for part in path.split("/")):
        raise Untrusted(f"{MANIFEST} has a line that is no entry: {printable(text[:120])}")
    return sys.intern(path), value


def _unquoted(text: str) -> str:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\":
            character = text[position : position + 1]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                position += 4
                if len(digits) != 4 or not _HEX.issuperset(digits):
                    raise Untrusted(f"{MANIFEST} has a line with a broken escape")
                code = int(digits, 16)
                low = ord(pieces[-1]) if pieces else 0
                if 0xDC00 <= code < 0xE000 and 0xD800 <= low < 0xDC00:
                    character = chr(0x10000 + ((low & 0x3FF) << 10 | code & 0x3FF))
                    pieces.pop()
                else:
                    character = chr(code)
            else:
                character = _UNESCAPES.get(character, "")
                if not character:
                    raise Untrusted(f"{MANIFEST} has a line with a broken escape")
        pieces.append(character)
    return "".join(pieces)
