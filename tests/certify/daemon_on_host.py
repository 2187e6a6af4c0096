# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a test host as root: starts a CLI's daemon beside a slot, with the slot's own state, and then a session.

One argument, JSON: `slot`, `port`, `secret`, `daemon` (words that start the daemon), `words` (of the session, which
would use it), `files` (path below HOME to content), and `open`, what is taken away for a mutation: `settings`, what the
profile says against daemons; `tmp`, the session's own /tmp. Printed: `daemon`, whether it stands; `outside`, the host's
mount namespace; `ran_in`, those in which the session's commands ran; `said`, the session's screen.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import secrets
import shlex
import subprocess
import sys
import time
import typing as t

sys.path.insert(0, "/opt/confined-slots/current/lib")

from confined_slots import _layout
from confined_slots._launch import read_plan
from endpoint import Endpoint
from on_host import Cli, Json, output
from script import Script
from slotctl import trial, unit

TMUX = ("tmux", "-L", "certification")
SECONDS = 300
QUIET_SECONDS = 10  # by then a daemon outside would have taken what a session has left for it
PLACE = "readlink /proc/self/ns/mnt"


class Daemon(Cli):
    """A slot's CLI with a daemon of it outside, which has the slot's state."""

    def __init__(self, given: Json) -> None:
        super().__init__(given | {"mode": ""})
        self.mode = self.policy["mode"]
        self.open, self.arguments = given["open"], given["words"]
        self.variables = dict(self.policy["environment"]["set"])
        state = next(iter(given["files"]))
        self.outside_home = self._outside(state).removesuffix(f"/{state}")

    def start(self, words: list[str]) -> bool:
        """Start the daemon; return whether a socket of it is there."""
        there = {name: text.replace(self.home, self.outside_home) for name, text in self.variables.items()}
        there = {name: text for name, text in there.items() if not name.endswith("DISABLE_AGENT_VIEW")} | self.secret
        programs = itertools.takewhile(lambda word: word.startswith("/"), self.policy["provider"]["command"])
        environment = ("env", "-i", *(f"{name}={text}" for name, text in there.items()))
        with Endpoint(Script(["id"]), self.port).serving() as endpoint:
            workspace = self.policy["workspaces"]["main"]
            command = [*self._as_slot(), *environment, *programs, *words]
            null = subprocess.DEVNULL  # it would keep a pipe open
            subprocess.run(command, cwd=workspace, check=True, stdin=null, stdout=null, stderr=null)
            if "daemon" not in words and not wait_for(lambda: endpoint.script.result()["finished"]):
                raise TimeoutError("the daemon has not done its first work")
        found = pathlib.Path("/tmp").glob(f"c*-daemon-{self.account.pw_uid}/**/*")
        return any(path.is_socket() for path in found)

    def session(self) -> Json:
        """Run the session on a terminal and return where its commands ran."""
        with Endpoint(Script([PLACE]), self.port).serving() as endpoint:
            name = f"certification-{secrets.token_hex(4)}"
            with trial.files(self.slot, name, self._opened(), self.arguments) as plan:
                opened = self._unit(name, plan) if self.open else ["slotctl", "run", self.slot, "--", *self.arguments]
                log = f"/tmp/{name}.log"
                recorded = shlex.join(["script", "--quiet", "--flush", "--command", shlex.join(opened), log])
                output(*TMUX, "new-session", "-d", "-x", "120", "-y", "40", recorded)
                wait_for(lambda: endpoint.script.result()["finished"] or not runs())
                wait_for(lambda: endpoint.script.result()["finished"], SECONDS if self.open else QUIET_SECONDS)
                subprocess.run([*TMUX, "kill-server"], check=False, stderr=subprocess.DEVNULL)
                said = pathlib.Path(log).read_text(encoding="utf-8", errors="replace")
                os.unlink(log)
            subprocess.run(["slotctl", "stop", self.slot], check=True, stdout=subprocess.DEVNULL)
            results = endpoint.script.result()["results"]
        return {"ran_in": [word for each in results for word in each["output"].split() if "mnt:" in word], "said": said}

    def _opened(self) -> list[t.Any]:
        """Return the slot's plan, opened for the mutation."""
        command, settings = self.policy["provider"]["command"], ("/etc/claude-code/", "/etc/codex/")
        records: list[t.Any] = [record for record in read_plan(_layout.plan(self.slot)) if record[0] != "command"]
        if "settings" in self.open:
            command = [*itertools.takewhile(lambda word: word.startswith("/"), command)]
            records = [record for record in records if not (record[0] == "data" and record[2].startswith(settings))]
            records = [record for record in records if record[:2] != ("set", "CLAUDE_CODE_DISABLE_AGENT_VIEW")]
        if "tmp" in self.open:
            own, hosts = ("tmpfs", "/tmp"), ("bind", "rw", "/tmp", "/tmp")
            records = [hosts if (record[0], record[-1]) == own else record for record in records]
        return trial.plan([*records, *(("set", name, text) for name, text in self.secret.items())], command)

    def _unit(self, session: str, plan: str) -> list[str]:
        properties = {
            "User": self.account.pw_name,
            "Group": self.account.pw_name,
            "RuntimeDirectory": f"confined-slots/{self.slot}/{session}",
        }
        words = [f"--property={name}={text}" for name, text in properties.items()]
        command = ["/opt/confined-slots/current/bin/slot-launcher", plan, "main", session]
        return [unit.SYSTEMD_RUN, "--quiet", "--pty", "--wait", "--collect", *words, "--", *command]


def runs() -> bool:
    """Return whether the session's terminal is still there."""
    return subprocess.run([*TMUX, "has-session"], check=False, stderr=subprocess.DEVNULL).returncode == 0


def wait_for(true: t.Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Wait until it is true, or no longer; return whether it is."""
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def main(given: Json) -> Json:
    """Return what came of it; nothing of the slot's account is left."""
    os.umask(0o022)
    daemon = Daemon(given)
    try:
        daemon.write(given["files"])
        stands = daemon.start(given["daemon"])
        return {"daemon": stands, "outside": os.readlink("/proc/self/ns/mnt"), **daemon.session()}
    finally:
        subprocess.run(["pkill", "-KILL", "-u", str(daemon.account.pw_uid)], check=False)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
