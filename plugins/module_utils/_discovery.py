# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a session tried, out of a trace of it, and a candidate of what would have to be declared: that grants nothing.

Pure: the same evidence gives the same candidate. The trace is strace's, with every string in hexadecimal: no name that
the session makes up can end a word or a line of it. It holds names and results, never what was read or written.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing as t

from ._declarations import Invalid
from ._host import Source
from ._mounts import FORBIDDEN, check_source
from ._plan import decoded

Json = dict[str, t.Any]

# By call: what it does to its paths, and where in its arguments these stand, each with its directory (-1: it has none).
_AT, _PLAIN, _BOTH = ((0, 1),), ((-1, 0),), ((-1, 0), (-1, 1))
CALLS: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = {
    **dict.fromkeys(("open", "creat"), ("open", _PLAIN)),
    **dict.fromkeys(("openat", "openat2"), ("open", _AT)),
    **dict.fromkeys(("stat", "lstat", "access", "readlink", "chdir", "statfs"), ("look", _PLAIN)),
    **dict.fromkeys(("newfstatat", "fstatat64", "statx", "faccessat", "faccessat2", "readlinkat"), ("look", _AT)),
    "execve": ("execute", _PLAIN),
    "execveat": ("execute", _AT),
    **dict.fromkeys(("mkdir", "rmdir", "unlink", "chmod", "chown", "lchown", "truncate", "mknod"), ("write", _PLAIN)),
    **dict.fromkeys(("mkdirat", "unlinkat", "fchmodat", "fchownat", "utimensat", "mknodat"), ("write", _AT)),
    **dict.fromkeys(("rename", "link"), ("write", _BOTH)),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), ("write", ((0, 1), (2, 3)))),
    "connect": ("connect", ()),
}
FORKS = ("clone", "clone3", "fork", "vfork")
TRACED = (*CALLS, *FORKS, "ptrace")

OWN = ("proc", "dev", "tmpfs", "run", "home", "workspace")  # made anew for the session, or its very own
REFUSALS = ("EACCES", "ECONNREFUSED", "ENOENT", "ENOTDIR", "EPERM", "EROFS")
MOST_ACCESSES = 1_000_000
MOST_REFUSED = 20_000
_WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
_LINE = re.compile(r"([0-9]+) +(.*)")
_END = re.compile(r"\+\+\+ (?:exited with [0-9]+|killed by [A-Z0-9_]+(?: \(core dumped\))?) \+\+\+")
_SIGNAL = re.compile(r"--- (?:SIG\w+ \{.*\}|stopped by SIG\w+) ---")
_SUPERSEDED = re.compile(r"\+\+\+ superseded by execve in pid ([0-9]+) \+\+\+")
_MOVED = re.compile(r"(.*) <pid changed to ([0-9]+) \.\.\.>")
_RESUMED = re.compile(r"<\.\.\. ([\w?]+) resumed>(.*)")
_CALL = re.compile(r"([\w?]+)\((.*)\) += (\S+)(?: (E[A-Z0-9]+))?(?: .*)?")
_ARGUMENT = re.compile(r"(?:[^,{}\[\]()]|\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\))+")
_HEX = r"((?:\\x[0-9a-f]{2})*)"
_NAME = re.compile(rf'"{_HEX}"')
_PLACE = re.compile(rf"(?:AT_FDCWD|[0-9]+)<{_HEX}>(?:\(deleted\))?")
_ADDRESS = re.compile(rf'sin6?_port=htons\(([0-9]+)\).*?"{_HEX}"')
_SOCKET = re.compile(rf'sun_path=(@?)"{_HEX}"')
_BEGUN = re.compile(r"[\w?]+\(")
UNKNOWN = "???"  # the call of a thread that another one's execve ends
UNFINISHED = " <unfinished ...>"
TOO_MANY = f"the CLI was refused more than {MOST_REFUSED} paths, of which only the first were looked for"
SHUT = "its owner and mode keep the slot's account from it"
WARY = "a program used ptrace, which tells it that it is traced: it may have done something else because of that"


class Access(t.NamedTuple):
    """One thing that the CLI tried: read, write, execute or look at a path, or connect.

    what is a path, `HOST:PORT`, or `@NAME` of an abstract socket; error is "" where it could.
    """

    kind: str
    what: str
    error: str


@dataclasses.dataclass(frozen=True)
class Trace:
    """What the CLI and all that it started tried, and why that is not all of it: nothing, if the trace is complete."""

    accesses: tuple[Access, ...]
    faults: tuple[str, ...]


def read_trace(data: bytes, launcher: str) -> Trace:
    """Return what stands in a trace that is to begin with the launcher; whatever else it holds is a fault of it."""
    return _Reader(launcher).read(data)


def refused(trace: Trace, policy: Json) -> list[str]:
    """Return the paths outside of its own that the CLI was refused, the first ones: those to look for on the host."""
    return _refused(trace, policy)[:MOST_REFUSED]


def is_forbidden(path: str) -> bool:
    """Return whether nothing at, in or around a path can be bound, so that there is no need to look what is in it."""
    return any(_below(path, forbidden) or _below(forbidden, path) for forbidden in FORBIDDEN)


def candidate(trace: Trace, policy: Json, host: t.Mapping[str, Json]) -> Json:
    """Return what a person is to judge; host has what stands outside where the CLI was refused.

    host, by path: `source` (the fields of a Source, of where the path leads), `shut` (the account may not read it).

    wanted: what could be declared; barred: what is there and cannot be, with the reason; network: what it connected to;
    forgotten: what it wrote into a HOME that is gone by now; unused: binds of the policy in which nothing was touched.
    """
    failed: dict[str, list[Access]] = {}
    for each in trace.accesses:
        if each.error in REFUSALS:
            failed.setdefault(each.what, []).append(each)
    there: dict[str, tuple[Source, bool]] = {}
    tried: dict[str, set[tuple[str, str, str]]] = {}
    for path in refused(trace, policy):
        source = Source(**host[path]["source"]) if path in host else Source(path, "missing")
        if source.kind != "missing":
            there[source.path] = (source, host[path]["shut"])
            tried.setdefault(source.path, set()).update((each.kind, path, each.error) for each in failed[path])
    faults = [*trace.faults, *([TOO_MANY] if len(_refused(trace, policy)) > MOST_REFUSED else [])]
    wanted: dict[str, Json] = {}
    barred: list[Json] = []
    for path, (source, shut) in there.items():
        mode = "rw" if any(kind == "write" for kind, _unused, _error in tried[path]) else "ro"
        entry = {"path": path, "tried": sorted(f"{kind} {asked}: {error}" for kind, asked, error in tried[path])}
        why = _why_not(source, mode) or (SHUT if shut else "")
        if why:
            barred.append(entry | {"why": why})
        else:
            wanted[path] = entry | {"mode": mode}
    return {
        "complete": not faults,
        "faults": faults,
        "wanted": [each for each in wanted.values() if not _is_covered(each, wanted)],
        "barred": barred,
        "network": _network(trace),
        "forgotten": _forgotten(trace, policy),
        "unused": _unused(trace, policy),
    }


def overlay(found: Json, slot: str, session: str) -> str:
    """Return, as YAML, what could be put below the slot in the inventory: each reason is left for a person to write."""
    lines = [
        f"# Proposed from session {session} of slot {slot}. It grants nothing. Keep what the slot is to have, say why",
        "# (a bind without a reason does not compile), put it below the slot in the inventory, and converge.",
    ]
    hosts = [each for each in found["network"] if each["error"] not in ("", "EINPROGRESS")]
    lines += [f"# network: it could not connect to {_quoted(each['what'])} ({each['error']})" for each in hosts]
    lines += ["binds:"] if found["wanted"] else ["binds: []"]
    for each in found["wanted"]:
        lines += [f"  - source: {_quoted(each['path'])}", f"    mode: {each['mode']}", '    reason: ""']
    return "\n".join([*lines, ""])


class _Reader:
    """Reads the lines of one trace."""

    def __init__(self, launcher: str) -> None:
        self.launcher = launcher
        self.faults: dict[str, bool] = {}
        self.pending: dict[str, str] = {}  # by process, the call that another process's line cut in two
        self.running: dict[str, bool] = {}
        self.places: dict[str, str] = {}
        self.found: dict[tuple[str, Access], bool] = {}
        self.children: dict[str, list[str]] = {}
        self.first = ""

    def read(self, data: bytes) -> Trace:
        lines = data.split(b"\n")
        if lines.pop() != b"":
            self.faults["its last line is not whole"] = True
        for number, line in enumerate(lines, 1):
            match = _LINE.fullmatch(line.decode("ascii", "replace"))
            if match is None or not self._line(match[1], match[2]):
                self.faults[f"line {number} is none of strace's"] = True
                break
            if len(self.found) > MOST_ACCESSES:
                self.faults[f"it has more than {MOST_ACCESSES} different things"] = True
                break
        if not self.first:
            self.faults["it is empty"] = True
        lost = [process for process, runs in self.running.items() if runs]
        if lost:
            self.faults[f"{len(lost)} processes have no end in it, of {len(self.running)}"] = True
        return Trace(tuple(self._of_the_cli()), tuple(self.faults))

    def _line(self, process: str, text: str) -> bool:
        """Take one line in; return whether it is one that strace writes."""
        if _SIGNAL.fullmatch(text):
            return True
        if not self.first:
            self.first = process
            if not text.startswith(f'execve("{_in_hex(self.launcher)}"'):
                self.faults["it does not begin with the launcher"] = True
        superseded = _SUPERSEDED.fullmatch(text)
        if superseded:  # a thread executes a program: it goes on under the number of its process
            self.running[superseded[1]] = False
            if begun := self.pending.pop(superseded[1], ""):
                self.pending[process] = begun
            return process in self.running
        if _END.fullmatch(text):
            self.running[process] = False
            self.pending.pop(process, None)
            return True
        self.running[process] = True
        moved, resumed = _MOVED.fullmatch(text), _RESUMED.fullmatch(text)
        if moved:  # the same, where no other line came between
            self.running[process] = False
            self.pending[moved[2]] = moved[1]
            return True
        if resumed:
            begun = self.pending.pop(process, "")
            if not begun.startswith(f"{resumed[1]}("):
                return False
            text = begun + resumed[2]
        if text.endswith(UNFINISHED):
            self.pending[process] = text.removesuffix(UNFINISHED)
            return _BEGUN.match(text) is not None
        call = _CALL.fullmatch(text.replace(f"{UNFINISHED})", ")"))
        if call is None or call[1] not in (*TRACED, UNKNOWN):
            return False
        self._call(process, call[1], _ARGUMENT.findall(call[2]), call[2], call[3], call[4] or "")
        return True

    def _call(self, process: str, name: str, words: list[str], text: str, result: str, error: str) -> None:
        words = [word.strip() for word in words]
        if name in FORKS:
            if "CLONE_UNTRACED" in text:
                self.faults["a program started a process that cannot be traced"] = True
            self.children.setdefault(process, []).append(result)
        elif name == "ptrace":
            self.faults[WARY] = True
        elif name == "connect":
            self._note(process, Access("connect", _address(text), error))
        elif name in CALLS:
            kind, places = CALLS[name]
            if kind == "open":
                kind = "write" if name == "creat" or _WRITES.search(text) else "read"
            real = _PLACE.fullmatch(result)
            for directory, position in places:
                path = self._path(process, words, directory, position)
                if real is not None:
                    path = _text(real[1])
                if path and result != "?":
                    self._note(process, Access(kind, path, error))

    def _path(self, process: str, words: list[str], directory: int, position: int) -> str:
        name = _NAME.fullmatch(words[position]) if position < len(words) else None
        place = _PLACE.fullmatch(words[directory]) if directory >= 0 else None
        if place is not None and words[directory].startswith("AT_FDCWD"):
            self.places[process] = _text(place[1])
        if name is None or not name[1]:
            return ""
        path = _text(name[1])
        base = _text(place[1]) if place is not None else self.places.get(process, "")
        return os.path.normpath(os.path.join(base, path))

    def _note(self, process: str, access: Access) -> None:
        self.found[(process, access)] = True

    def _of_the_cli(self) -> t.Iterator[Access]:
        """Yield what was tried by others than the launcher, bwrap, and what those started outside of the sandbox.

        A process in the sandbox is told the numbers that its own children have there, so it is not among theirs.
        """
        outside, todo = {self.first}, [self.first]
        while todo:
            below = [child for child in self.children.get(todo.pop(), ()) if child in self.running]
            todo += [child for child in below if child not in outside]
            outside.update(below)
        seen: set[Access] = set()
        for process, access in self.found:
            if process not in outside and access not in seen:
                seen.add(access)
                yield access


def _refused(trace: Trace, policy: Json) -> list[str]:
    return list({each.what: True for each in trace.accesses if _is_refused(each, policy)})


def _is_refused(access: Access, policy: Json) -> bool:
    if access.error not in REFUSALS or not access.what.startswith("/"):
        return False
    mount = _mount_of(access.what, policy)
    return mount is None or not (mount["kind"] in OWN or mount.get("mode") == "rw")


def _mount_of(path: str, policy: Json) -> Json | None:
    """Return the mount of the sandbox in which a path stands: that with the longest target."""
    mounts = (mount for mount in policy["mounts"] if mount["kind"] not in ("seal", "hold"))
    covering = [mount for mount in mounts if _below(path, mount["target"])]
    return max(covering, key=lambda mount: len(mount["target"]), default=None)


def _why_not(source: Source, mode: str) -> str:
    """Return why a policy with a bind of it would not compile, "" if it would."""
    try:
        source.path.encode()
        check_source(source, "it")
    except UnicodeEncodeError:
        return "its name is not UTF-8, in which inventories are written"
    except Invalid as error:
        return str(error)
    return "it was to be written, and is a file [bind its directory]" if mode == "rw" and source.kind == "file" else ""


def _is_covered(narrow: Json, wanted: t.Mapping[str, Json]) -> bool:
    """Return whether a directory above it is wanted too, in a mode that is enough."""
    path = narrow["path"]
    while path != "/":
        path = os.path.dirname(path)
        if path in wanted and (wanted[path]["mode"] == "rw" or narrow["mode"] == "ro"):
            return True
    return False


def _network(trace: Trace) -> list[Json]:
    return [
        {"what": each.what, "error": each.error}
        for each in trace.accesses
        if each.kind == "connect" and not each.what.startswith("/")
    ]


def _forgotten(trace: Trace, policy: Json) -> list[str]:
    """Return the names directly below a HOME in memory that it wrote at, or below, and that are gone by now."""
    found = set()
    for each in trace.accesses:
        mount = _mount_of(each.what, policy) if each.kind == "write" and not each.error else None
        if mount is not None and mount["kind"] == "home" and each.what != mount["target"]:
            found.add(each.what[len(mount["target"]) + 1 :].partition("/")[0])
    return sorted(found)


def _unused(trace: Trace, policy: Json) -> list[Json]:
    used = [each.what for each in trace.accesses if not each.error]
    return [
        {"path": mount["target"], "reason": mount["reason"]}
        for mount in policy["mounts"]
        if mount["kind"] == "bind" and not any(_below(path, mount["target"]) for path in used)
    ]


def _below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _address(text: str) -> str:
    inet, local = _ADDRESS.search(text), _SOCKET.search(text)
    if inet is not None:
        host = _text(inet[2])
        return f"[{host}]:{inet[1]}" if ":" in host else f"{host}:{inet[1]}"
    return f"{local[1]}{_text(local[2])}" if local is not None else "(an address of another kind)"


def _text(digits: str) -> str:
    return decoded(bytes.fromhex(digits.replace("\\x", "")))


def _quoted(text: str) -> str:
    """Return text as a scalar of YAML, in which nothing is left that could end it or steer a terminal."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isascii() and c.isprintable() else f"\\U{ord(c):08x}" for c in plain) + '"'


def _in_hex(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(text))
