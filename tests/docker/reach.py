# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run as root of the daemon's namespaces, with its whole view as /: print as JSON what can be reached of the host.

    reach.py SLOT PID PORT

PID is a process of one of the slot's sessions, which waits for SIGUSR1; PORT one on which the host listens at its
loopback, and the name of an abstract socket of the host's.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import signal
import socket
import stat
import sys
import typing as t

SLOT, PID, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STATE = "/var/lib/confined-slots/slots"
DETACH = 2
OWN_SOCKETS = ("confined-slots-docker", "containerd", "docker")


def accounts() -> bool:
    """Reach the names of the host's people."""
    with open("/etc/passwd", encoding="utf-8") as file:
        return "oper" in file.read()


def homes() -> bool:
    """Reach what the slot's CLI, or its account, keeps for itself."""
    return any(os.path.exists(f"{STATE}/{SLOT}/{name}") for name in ("home", "homes", "kept", "states"))


def narrower() -> bool:
    """Reach a workspace that has less than its slot."""
    return os.path.exists(f"{STATE}/{SLOT}/workspaces/tight")


def policy() -> bool:
    """Reach policies, approvals and credentials."""
    return os.path.exists("/etc/confined-slots")


def slots() -> bool:
    """Reach another slot."""
    return os.listdir(STATE) != [SLOT]


def groups() -> bool:
    """Reach the names of other slots' sessions and daemons, and how they are."""
    return any(name.endswith(".slice") for _path, names, _files in os.walk("/sys/fs/cgroup") for name in names)


def sockets() -> bool:
    """Reach a service of the host's: D-Bus, systemd, its log, a rootful Docker."""
    for top in os.listdir("/run"):
        for directory, _unused, names in os.walk(f"/run/{top}"):
            own = any(f"/{name}" in directory for name in OWN_SOCKETS)
            if not own and any(stat.S_ISSOCK(os.lstat(f"{directory}/{name}").st_mode) for name in names):
                return True
    return False


def shared_memory() -> bool:
    """Reach what programs of the host share."""
    return os.path.exists("/dev/shm/marker-of-the-host")


def terminals() -> bool:
    """Reach a terminal of the host's, which sessions have."""
    return any(name.isdecimal() for name in os.listdir("/dev/pts"))


def loopback() -> bool:
    """Reach what listens on the host's loopback."""
    for address in ("127.0.0.1", "10.0.2.2"):
        # what counts is an answer: a connection that is refused late passes for one that stands, for a moment
        with contextlib.suppress(OSError), socket.create_connection((address, PORT), 10) as connection:
            if connection.recv(1):
                return True
    return False


def abstract() -> bool:
    """Reach an abstract socket of the host's."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(f"\0{PORT}")
        return bool(connection.recv(1))
    return False


def signals() -> bool:
    """Send a signal to a session; whether it came the session says."""
    with contextlib.suppress(OSError):
        os.kill(PID, signal.SIGUSR1)
    return False


def devices() -> bool:
    """Reach a device that is none of those every program has."""
    known = ("full", "null", "ptmx", "random", "tty", "urandom", "zero", "net/tun")
    for path in glob.glob("/dev/*") + glob.glob("/dev/*/*"):
        with contextlib.suppress(OSError):
            mode = os.lstat(path).st_mode
            if (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)) and not path.endswith(known):
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                return True
    with contextlib.suppress(OSError):
        os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
        return True
    return False


def writes() -> bool:
    """Change what runs next: the distribution, its accounts, the root."""
    libc = ctypes.CDLL(None, use_errno=True)
    bind_remount = 4096 | 32
    for mounted in (b"/", b"/usr", b"/etc/passwd"):
        libc.mount(b"none", mounted, None, bind_remount, None)
    for path in ("/marker", "/usr/marker", "/opt/marker"):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
            return True
    with contextlib.suppress(OSError):
        os.close(os.open(os.path.realpath("/etc/passwd"), os.O_WRONLY))
        return True
    return False


def processes() -> bool:
    """Reach a process of the host's, below the /proc that the daemon has put on top of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    while not libc.umount2(b"/proc", DETACH):
        pass
    for path in glob.glob("/proc/[0-9]*/comm"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            if file.read().strip() in ("systemd", "systemd-journal", "sshd", "slotctl"):
                return True
    return False


def mounts() -> bool:
    """Reach what is below a mount, by taking it away."""
    libc = ctypes.CDLL(None, use_errno=True)
    for path in (b"/usr", b"/etc", b"/run", b"/dev", b"/sys", b"/"):
        libc.umount2(path, DETACH)
    return any(os.path.exists(path) for path in ("/home", "/root", "/boot", "/etc/shadow", "/run/systemd/system"))


ROWS: tuple[t.Callable[[], bool], ...] = (
    *(accounts, homes, narrower, policy, slots, groups, sockets, shared_memory, terminals),
    *(loopback, abstract, signals, devices, writes, processes, mounts),
)

if __name__ == "__main__":
    print(json.dumps([row.__name__ for row in ROWS if row()]))
