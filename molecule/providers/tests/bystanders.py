# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a test host as root: listens where a session must not get to, until it is ended. Arguments: uids of slots."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys


def main(uids: list[str]) -> None:
    """Listen."""
    paths = ["/run/docker.sock", *(f"/run/user/{uid}/bus" for uid in uids)]
    listeners = []
    for path in paths:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    for family, address in (
        *((socket.AF_UNIX, path) for path in paths),
        (socket.AF_UNIX, "\0confined-slots-certification"),
        (socket.AF_INET, ("127.0.0.1", 18766)),
    ):
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
        listeners.append(listener)
    for path in paths:
        os.chmod(path, 0o666)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
