# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside a session (and, for comparison, outside one).

Tries what a session must not do and what it must be able to do.

Self-contained: `slotctl selftest` hands its code to the sandbox's python3 with what it is to know, and reads one JSON
object back: each probe's id with "" where the claim holds, or with what was found instead.

slotctl health runs it once in every slot of a host, so that what is slow to import is not: no json, socket or typing.
"""

from __future__ import annotations

import _json
import _signal
import _socket
import contextlib
import ctypes
import errno
import fcntl
import marshal
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

CLONE_NEWUSER = 0x10000000
TIOCSTI = 0x5412
ADD_KEY = {"x86_64": 248, "aarch64": 217}
SESSION_KEYRING = -3
DOORS = {
    "x86_64": {"bpf": 321, "io_uring_setup": 425, "perf_event_open": 298, "userfaultfd": 323},
    "aarch64": {"bpf": 280, "io_uring_setup": 425, "perf_event_open": 241, "userfaultfd": 282},
}
LOOK_FOR_SOCKETS_IN = ("/dev", "/run", "/tmp", "/var")
HEX_ZERO = frozenset("0")

if TYPE_CHECKING:
    Findings = dict[str, str]


def invisible(*paths: str) -> str:
    """Return which of the paths can be seen, "" if none."""
    return ", ".join(f"{path} is there" for path in paths if os.path.lexists(path))


def only(directory: str, wanted: str) -> str:
    """Return what stands in directory beside wanted."""
    others: list[str] = []
    with contextlib.suppress(FileNotFoundError, PermissionError):
        others = sorted(set(os.listdir(directory)) - {wanted})
    return f"{directory} shows {', '.join(others[:5])}" if others else ""


def sockets(own: set[str]) -> str:
    """Return the first socket that can be seen outside of the directories that the session may fill itself."""
    for top in LOOK_FOR_SOCKETS_IN:
        for directory, below, names in os.walk(top):
            below[:] = [name for name in below if os.path.join(directory, name) not in own]
            for name in names:
                path = os.path.join(directory, name)
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(os.lstat(path).st_mode):
                        return f"{path} is a socket"
    return ""


def connects(abstract: str, port: int) -> str:
    """Return which listener of the host answers: one on an abstract name, one on loopback."""
    reached = []
    for family, address in ((_socket.AF_UNIX, "\0" + abstract), (_socket.AF_INET, ("127.0.0.1", port))):
        client = _socket.socket(family, _socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            client.settimeout(2)
            client.connect(address)
            reached.append("abstract socket" if family == _socket.AF_UNIX else "host loopback")
        client.close()
    return f"reached: {', '.join(reached)}" if reached else ""


def label(wanted: str) -> str:
    """Return how the AppArmor labels of this process and of the sandbox's first differ from the wanted ones.

    wanted is that of this process: the first one's, and what is stacked on it.
    """
    found = [text(f"/proc/{process}/attr/apparmor/current").rstrip("\n\0") for process in ("self", "1")]
    expected = [f"{wanted} (enforce)", f"{wanted.partition('//&')[0]} (enforce)"]
    return "" if found == expected else f"is {found[0]}, the sandbox's {found[1]}"


def abstract_socket(name: str) -> str:
    """Return whether an abstract socket of the host's answers."""
    client = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    with contextlib.suppress(OSError):
        client.connect("\0" + name)
        return "an abstract socket of the host answers"
    return ""


def routed() -> str:
    """Return why nothing beyond this network can be reached: no default route."""
    lines = text("/proc/net/route").splitlines()[1:]
    return "" if any(line.split()[1] == "00000000" for line in lines) else "there is no default route"


def namespaces(host: dict[str, str]) -> Findings:
    """Return for each namespace whether the host's is shared."""
    found = {}
    for kind, link in host.items():
        try:
            found[f"namespace:{kind}"] = (
                f"shared with the host: {link}" if os.readlink(f"/proc/self/ns/{kind}") == link else ""
            )
        except OSError as error:
            found[f"namespace:{kind}"] = str(error)
    return found


def status() -> dict[str, str]:
    """Return the fields of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return {key: value.strip() for key, _unused, value in (line.partition(":") for line in file)}


def privileges() -> str:
    """Return which capability is held or can be gained."""
    fields = status()
    held = [
        f"{name} {fields[name]}"
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        if not HEX_ZERO.issuperset(fields[name])
    ]
    if fields["NoNewPrivs"] != "1":
        held.append("set-user-ID files work")
    return ", ".join(held)


def groups(gid: int) -> str:
    """Return which groups beside its own the process is in."""
    others = [group for group in status()["Groups"].split() if int(group) != gid]
    return f"also in groups {' '.join(others)}" if others else ""


def nests() -> str:
    """Return whether a child can make a user namespace."""
    child = os.fork()
    if child == 0:
        os._exit(0 if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) == 0 else 1)
    return "a user namespace can be made" if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 else ""


def injects() -> str:
    """Return whether the kernel would take a request to type into a terminal.

    Asked on a file that is none: EPERM is the filter's word.
    """
    with open("/dev/null", "rb") as file:
        try:
            fcntl.ioctl(file, TIOCSTI, b"x")
        except OSError as error:
            return (
                "" if error.errno == errno.EPERM else f"TIOCSTI is not filtered ({errno.errorcode[error.errno or 0]})"
            )
    return "TIOCSTI works"


def keyrings() -> str:
    """Return whether a key can be made that other slots would find by its number."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = libc.syscall(ADD_KEY[os.uname().machine], b"user", b"selftest", b"x", 1, SESSION_KEYRING)
    return "" if key < 0 and ctypes.get_errno() == errno.EPERM else "a key can be made"


def doors() -> str:
    """Return which parts of the kernel answer that the filter keeps shut.

    Asked for nonsense, of which the kernel itself says so (perf_event_open at least, whatever its settings): EPERM is
    the filter's word.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    reached = []
    for name, number in DOORS[os.uname().machine].items():
        nonsense = [ctypes.c_long(-1)] * 5
        if libc.syscall(ctypes.c_long(number), *nonsense) >= 0 or ctypes.get_errno() != errno.EPERM:
            reached.append(name)
    return f"{', '.join(reached)} can be asked" if reached else ""


def odd_sockets() -> str:
    """Return whether there are sockets of a kind that no network namespace holds."""
    try:
        _socket.socket(_socket.AF_VSOCK, _socket.SOCK_STREAM).close()
    except OSError as error:
        return "" if error.errno == errno.EPERM else f"AF_VSOCK is not filtered ({errno.errorcode[error.errno or 0]})"
    return "AF_VSOCK works"


def environment(token: str) -> str:
    """Return where the caller's token shows: in an environment, or in the sandbox's first process."""
    leaks = [name for name, value in os.environ.items() if token in value]
    with contextlib.suppress(OSError), open("/proc/1/environ", "rb") as file:
        if token.encode() in file.read():
            leaks.append("/proc/1/environ")
    return f"the caller's value shows in {', '.join(leaks)}" if leaks else ""


def descriptors() -> str:
    """Return which descriptors were inherited beside the standard streams."""
    extra = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if int(name) > 2 and not target.startswith("/proc/"):
                extra.append(f"{name} is {target}")
    return ", ".join(extra)


def default_signals() -> str:
    """Return which signals are ignored or blocked that Python does not ignore itself."""
    fields = status()
    # 32 and 33 are the C library's own; nothing but the library can set them
    ours = sum(1 << number - 1 for number in (_signal.SIGPIPE, _signal.SIGXFSZ, 32, 33))
    ignored = int(fields["SigIgn"], 16) & ~ours
    return f"ignored {ignored:x}, blocked {fields['SigBlk']}" if ignored or int(fields["SigBlk"], 16) else ""


def fresh(directory: str) -> str:
    """Return a path in directory that nobody can have laid something at: a session could answer for the check."""
    return os.path.join(directory, f".selftest-{os.urandom(16).hex()}")


def writable(directory: str) -> str:
    """Return why a file cannot be made, read back and removed in directory."""
    path = fresh(directory)
    try:
        with open(path, "x", encoding="ascii") as file:
            file.write("work")
        with open(path, encoding="ascii") as file:
            text = file.read()
        os.unlink(path)
    except OSError as error:
        return str(error)
    return "" if text == "work" else "read back something else"


def sealed(directory: str) -> str:
    """Return whether something can be added to directory."""
    path = fresh(directory)
    try:
        os.mkdir(path)
    except OSError as error:
        return "" if error.errno == errno.EROFS else f"{directory}: {error.strerror}"
    os.rmdir(path)
    return f"{directory} can be added to"


def mounted(target: str, device: int, inode: int, mode: str) -> str:
    """Return how target differs from the host's file and from its mode (a writable directory is written to)."""
    try:
        found = os.stat(target)
        read_only = bool(os.statvfs(target).f_flag & os.ST_RDONLY)
    except OSError as error:
        return str(error)
    if (found.st_dev, found.st_ino) != (device, inode):
        return f"{target} is another file"
    if read_only != (mode == "ro"):
        return f"{target} is {'read-only' if read_only else 'writable'}"
    return writable(target) if mode == "rw" else ""


def scratch(target: str, size: int) -> str:
    """Return how target differs from a tmpfs of its own with this size in bytes."""
    try:
        found = os.statvfs(target)
    except OSError as error:
        return str(error)
    if not os.path.ismount(target) or found.f_blocks * found.f_frsize != size:
        return f"{target} is no tmpfs of {size} bytes"
    return writable(target)


def masked(target: str, kind: str, below: set[str]) -> str:
    """Return what can be seen of what is masked, beside the names below it that the session is given."""
    try:
        found = set(os.listdir(target)) - below if kind == "directory" else text(target)
    except PermissionError:  # a device of another namespace, with which files are masked
        return ""
    except OSError as error:
        return str(error)
    return f"{target} shows {', '.join(sorted(found)[:5])}" if found else ""


def mount_points() -> set[str]:
    """Return where something is mounted; os.path.ismount() does not see a bind of a directory to its own place."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return {line.split(" ", 5)[4] for line in file}


def same(target: str, content: str, read: t.Callable[[str], str]) -> str:
    """Return how what stands at target differs from content."""
    try:
        found = read(target)
    except OSError as error:
        return str(error)
    return "" if found == content else f"{target} differs"


def text(path: str) -> str:
    """Return a file's text."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def run(given: dict[str, t.Any]) -> Findings:
    """Return every probe's finding."""
    base, run_base = given["state"], given["run"]
    found = {
        "other-slots": only(os.path.dirname(base), given["slot"]),
        "other-workspaces": only(f"{base}/workspaces", given["workspace"]),
        "other-sessions": only(run_base, given["session"]) or invisible(given["other_session"]),
        "sockets": sockets(
            {
                *(f"{base}/workspaces", *given["docker"]),
                *(target for target, _dev, _ino, mode in given["binds"] if mode == "rw"),
            }
        ),
        "host-scratch": invisible(*given["markers"]),
        "host-process": invisible(f"/proc/{given['process']}/exe") if given["process"] else "",
        "privileges": privileges(),
        "groups": groups(given["gid"]),
        "terminal": injects(),
        "keyrings": keyrings(),
        "odd-sockets": odd_sockets(),
        "kernel-doors": doors(),
        "environment": environment(given["token"]),
        "descriptors": descriptors(),
        "signals": default_signals(),
        "run-directory": writable(f"{run_base}/{given['session']}"),
        "own-name": "" if os.uname().nodename == given["slot"] else f"the host is called {os.uname().nodename}",
        "own-shell": "" if os.access("/dev/null", os.W_OK) and os.path.exists("/dev/tty") else "/dev is not complete",
        **namespaces(given["namespaces"]),
    }
    if not given["nested_sandbox"] or given["label"]:
        found["nested-namespaces"] = nests()
    workspace = f"{base}/workspaces/{given['workspace']}"
    found |= {"read-only-workspace": sealed(workspace)} if given["read_only"] else {"workspace": writable(workspace)}
    if given["mode"] != "compatibility":  # there these are masked, which has probes of its own
        found |= {
            "account-home": invisible(f"{base}/home"),
            "configuration": invisible("/etc/confined-slots"),
            "homes": invisible("/home", "/root"),
            "releases": invisible("/opt/confined-slots/releases", "/opt/confined-slots/current"),
            "logs": invisible("/var/log"),
        }
    for target, kind, below in given["masks"]:
        found[f"mask:{target}"] = masked(target, kind, set(below))
    points = mount_points()
    for target in given["holds"]:
        found[f"hold:{target}"] = "" if target in points else f"{target} could be renamed"
    if given["label"]:
        found["label"] = label(given["label"])
    if given["landlock"]:
        found["abstract-sockets"] = abstract_socket(given["abstract"])
    if given["network"] == "private":
        found["private-network"] = routed()
    if given["network"] != "host":
        found["host-network"] = connects(given["abstract"], given["port"])
    for target, device, inode, mode in given["binds"]:
        found[f"bind:{target}"] = mounted(target, device, inode, mode)
    for target, size in given["scratch"]:
        found[f"tmpfs:{target}"] = scratch(target, size)
    for target, content in given["data"]:
        found[f"data:{target}"] = same(target, content, text)
    for target, content in given["links"]:
        found[f"symlink:{target}"] = same(target, content, os.readlink)
    for target in given["seals"]:
        found[f"seal:{target}"] = sealed(target)
    return found


def as_json(found: Findings) -> str:
    """Return findings as a JSON object."""
    quoted = _json.encode_basestring_ascii
    return "{" + ", ".join(f"{quoted(name)}: {quoted(text)}" for name, text in found.items()) + "}"


if __name__ == "__main__":
    print(as_json(run(marshal.loads(bytes.fromhex(sys.argv[2])))))
