# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a test host as root: listens where a session must not get to, until it is ended. Arguments: uids of slots."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys


def listening(address: str | tuple[str, int]) -> socket.socket:
    """Return a socket that listens on a path, an abstract name, or a port."""
    listener = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(64)
    return listener


def main(uids: list[str]) -> None:
    """Listen."""
    paths = ["/run/docker.sock", *(f"/run/user/{uid}/bus" for uid in uids)]
    for path in paths:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    addresses: list[str | tuple[str, int]] = [*paths, "\0confined-slots-certification", ("127.0.0.1", 18766)]
    os.umask(0o111)
    listeners = [listening(address) for address in addresses]
    signal.pause()
    for listener in listeners:
        listener.close()


if __name__ == "__main__":
    main(sys.argv[1:])
