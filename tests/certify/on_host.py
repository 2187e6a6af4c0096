# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a test host as root, beside the scripted endpoint: has a real CLI try the checks, and tells what came of it.

One argument, JSON: `slot`, `mode` (`unconfined`: as the slot's account, without the launcher), `port`, `commands`,
`files` (path below HOME to content), `secret`, and optionally `words` in place of those that give a prompt. Printed:
the endpoint's result for the run (`first`) and for the conversation gone on with (`again`), each with `status` and
what the CLI said; `session`, its record; `left`, the processes left behind.
"""

from __future__ import annotations

import itertools
import json
import os
import pwd
import subprocess
import sys
import typing as t

from endpoint import Endpoint
from script import Script

SECONDS = 240
SLEEP = "4711.5"  # what the run leaves behind
STATE = (".claude", ".codex", ".pi")
Json = dict[str, t.Any]


class Cli:
    """A slot's CLI, run in the slot or, for comparison, beside it."""

    def __init__(self, given: Json) -> None:
        self.slot, self.mode, self.port = given["slot"], given["mode"], given["port"]
        self.account = pwd.getpwnam(f"slot-{self.slot}")
        self.policy = json.loads(output("slotctl", "policy", self.slot, "--json"))
        self.home = self.policy["environment"]["set"]["HOME"]
        self.secret = {self.policy["environment"]["credential"]: given["secret"]}
        self.words = given.get("words")

    def write(self, files: dict[str, str]) -> None:
        """Empty the state that earlier runs have left, and write files below HOME; as the slot."""
        for name in STATE:
            words = ["sh", "-c", 'test ! -d "$1" || find "$1" -mindepth 1 -delete', "sh", self._outside(name)]
            subprocess.run([*self._as_slot(), *words], check=True)
        for path, content in files.items():
            words = ["sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", self._outside(path)]
            subprocess.run([*self._as_slot(), *words], input=content.encode(), check=True)

    def run(self, commands: list[str]) -> Json:
        """Run the CLI with a prompt; the endpoint has it run the commands."""
        if self.mode != "unconfined":
            words = ["--", *self.words] if self.words else ["--prompt", "go"]
            return self._served(commands, ["slotctl", "run", self.slot, *words])
        provider, variables = self.policy["provider"], self.policy["environment"]["set"]
        there = {name: text.replace(self.home, self.account.pw_dir) for name, text in variables.items()} | self.secret
        words = self.words or [word.replace("{prompt}", "go") for word in provider["headless"]]
        command = [*self._as_slot(), "env", "-i", *(f"{name}={text}" for name, text in there.items())]
        programs = itertools.takewhile(lambda word: word.startswith("/"), provider["command"])
        return self._served(commands, [*command, *programs, *words])

    def resume(self, commands: list[str], session: str) -> Json:
        """Go on with the conversation of a session."""
        return self._served(commands, ["slotctl", "resume", session, "--prompt", "go"])

    def last_session(self) -> Json:
        """Return the newest session's record."""
        found: Json = json.loads(output("slotctl", "sessions", self.slot, "--most", "1", "--json"))[0]
        return found

    def left(self) -> list[str]:
        """Return the processes that the run has left behind, and end them."""
        mine = ["-u", str(self.account.pw_uid), "-f", f"^sleep {SLEEP}"]
        found = subprocess.run(["pgrep", *mine], capture_output=True, text=True, check=False).stdout.split()
        subprocess.run(["pkill", *mine], check=False)
        return found

    def _served(self, commands: list[str], words: list[str]) -> Json:
        workspace = self.policy["workspaces"]["main"]
        with Endpoint(Script(commands), self.port).serving() as endpoint:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS,
                check=False,
                cwd=workspace,
            )
            said = done.stdout[-2000:] + done.stderr[-2000:]
            return {"status": done.returncode, "said": said, **endpoint.script.result()}

    def _outside(self, path: str) -> str:
        """Return where a file of HOME stands on the host: in verified mode only what is approved to stay stands."""
        inside = f"{self.home}/{path}"
        for mount in self.policy["mounts"]:
            if self.mode == "unconfined":
                break
            if mount["kind"] == "bind" and mount["mode"] == "rw" and f"{inside}/".startswith(f"{mount['target']}/"):
                return str(mount["source"] + inside.removeprefix(mount["target"]))
        return f"{self.account.pw_dir}/{path}"

    def _as_slot(self) -> list[str]:
        return ["setpriv", f"--reuid={self.account.pw_uid}", f"--regid={self.account.pw_gid}", "--clear-groups", "--"]


def output(*words: str) -> str:
    """Return what a command prints; CalledProcessError if it fails."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def main(given: Json) -> Json:
    """Return what came of it."""
    os.umask(0o022)
    cli = Cli(given)
    cli.write(given["files"])
    found: Json = {"first": cli.run([f"setsid sleep {SLEEP} >/dev/null 2>&1 &", *given["commands"]])}
    found["left"] = cli.left()
    if cli.mode != "unconfined":
        found["session"] = cli.last_session()
        found["again"] = cli.resume(["id"], found["session"]["session"])
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
