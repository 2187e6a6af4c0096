# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The slot's Docker daemon: it answers, it is the slot's own, and it sees none of the slot's secrets."""

from __future__ import annotations

import json
import os
import socket
import struct
import typing as t

from confined_slots import _layout
from confined_slots._as_slot import as_slot
from confined_slots._health import CouldNot, DoesNotApply, Outcome, critical, ok
from confined_slots._refusals import printable

from .context import CONVERGE, Check, Context, units_of

SECONDS = 8.0
MOST_ANSWER = 1 << 20
MOST_SAID = 4096
# What a container could be given of the daemon's view must not hold these.
SECRETS = (_layout.ETC, _layout.LOG, "/root", "/home", "/etc/shadow", "/run/docker.sock", "/run/dbus", "/run/systemd")
# PID 1's own, and empty: the way by which it could mount something later.
PROPAGATED = "/run/systemd/incoming"


def daemon(context: Context) -> Outcome:
    """Return whether the daemon runs, answers, and runs as the slot."""
    _check_applies(context)
    unit, path = _layout.docker_unit(context.name), _layout.docker_socket(context.name)
    expected = f"{unit} is active and answers on {path} as {context.account}"
    cure = f"systemctl status {unit}"
    shown = units_of([unit]).get(unit, {})
    if shown.get("ActiveState") != "active":
        return critical(f"{unit} is {shown.get('ActiveState')} ({shown.get('Result')})", expected, cure)
    ids = context.ids
    # as the slot: it may have put anything there, and a link would lead root to whatever else listens on this host
    said = as_slot(ids.uid, ids.uid, lambda: json.dumps(asked(path)).encode(), MOST_SAID, SECONDS)
    if not said:
        return critical(f"nothing answers on {path} in {SECONDS:g} s", expected, cure)
    found = json.loads(said)
    if "trouble" in found:
        return critical(printable(f"{path}: {found['trouble']}"), expected, cure)
    if found["uid"] != ids.uid:
        return critical(f"uid {found['uid']} answers on {path}", expected, CONVERGE)
    if not found["rootless"]:
        return critical("the daemon that answers is not rootless", expected, CONVERGE)
    if os.readlink(f"/proc/{found['pid']}/ns/net") == os.readlink("/proc/1/ns/net"):
        return critical("the daemon's network is the host's, and its containers can have that", expected, CONVERGE)
    return ok(printable(f"Docker {found['version']}")[:80], expected)


def asked(path: str) -> dict[str, t.Any]:
    """Return who answers on a socket (pid, uid) and what it says of itself, or the `trouble` with it."""
    try:
        pid, uid, about = ask(path)
    except (OSError, CouldNot) as error:
        return {"trouble": str(error)[:200]}
    options = [str(each).partition(",")[0] for each in about.get("SecurityOptions") or []]
    return {
        "pid": pid,
        "uid": uid,
        "rootless": "name=rootless" in options,
        "version": str(about.get("ServerVersion"))[:80],
    }


def ask(path: str) -> tuple[int, int, dict[str, t.Any]]:
    """Return pid and uid of who listens on a socket, and what it says of itself; OSError if it does not."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        client.connect(path)
        pid, uid, _gid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        client.sendall(b"GET /info HTTP/1.0\r\nHost: docker\r\n\r\n")
        answer = b""
        while piece := client.recv(1 << 16):
            answer += piece
            if len(answer) > MOST_ANSWER:
                raise CouldNot("the daemon's answer has no end")
    try:
        about = json.loads(answer.partition(b"\r\n\r\n")[2])
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict):
        raise CouldNot("the daemon's answer cannot be read")
    return pid, uid, about


def secrets(context: Context) -> Outcome:
    """Return whether the daemon, whose files any container can be given, sees nothing that a session must not."""
    _check_applies(context)
    unit = _layout.docker_unit(context.name)
    expected = "the daemon sees no policy, credential, log, home or other slot"
    pid = units_of([unit]).get(unit, {}).get("MainPID", "0")
    if not pid.isdigit() or pid == "0":
        raise CouldNot(f"{unit} does not run: see the check docker")
    root = f"/proc/{pid}/root"
    if os.stat(root).st_ino == os.stat("/").st_ino and os.stat(root).st_dev == os.stat("/").st_dev:
        return critical("the daemon sees the whole host", expected, CONVERGE)
    homes = (f"{_layout.state(context.name)}/{name}" for name in ("home", "homes", "states", "kept"))
    others = (_layout.state(name) for name in context.host.slots if name != context.name)
    seen = [path for path in (*SECRETS, *homes, *others) if _holds_anything(root, path)]
    if seen:
        return critical(f"it sees {', '.join(seen[:5])}", expected, CONVERGE)
    return ok("it does not", expected)


def _holds_anything(root: str, path: str) -> bool:
    """Return whether a file is there, or a directory with something in it; an empty one shows nothing."""
    try:
        return any(f"{path}/{name}" != PROPAGATED for name in os.listdir(f"{root}{path}"))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True


def _check_applies(context: Context) -> None:
    if not context.slot.base.get("docker"):
        raise DoesNotApply("it has no Docker daemon")


SLOT = (
    Check("docker", "the slot's Docker daemon answers and is its own", daemon),
    Check("docker-secrets", "the slot's Docker daemon sees no secret", secrets),
)
