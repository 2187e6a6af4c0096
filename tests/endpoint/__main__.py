# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model endpoint that follows a script: python3 tests/endpoint --script F --result F --port-file F [--port N]

The script is a JSON list of shell commands. README.md says how the CLIs are pointed here and what the result holds.
Standard library only, as the whole directory is copied to test hosts.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import signal
import sys

from endpoint import Endpoint
from script import Script, replace


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    parser = argparse.ArgumentParser(prog="endpoint", description="Serve scripted model answers on loopback.")
    parser.add_argument("--script", type=pathlib.Path, required=True, help="JSON list of shell commands")
    parser.add_argument("--result", type=pathlib.Path, required=True, help="kept up to date with what was seen")
    parser.add_argument("--port-file", type=pathlib.Path, required=True, help="gets the port once it answers")
    parser.add_argument("--port", type=int, default=0, help="a free one if not given")
    options = parser.parse_args()
    try:
        commands = json.loads(options.script.read_text(encoding="utf-8"))
        if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
            raise ValueError(f"{options.script} is not a JSON list of strings")
        # Blocked before any thread is made, as they inherit it: the signals wait here.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        with Endpoint(Script(commands, options.result), options.port).serving() as endpoint:
            replace(options.port_file, f"{endpoint.port}\n")
            signal.sigwait((signal.SIGTERM, signal.SIGINT))
    except (OSError, ValueError) as error:
        print(f"endpoint: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
