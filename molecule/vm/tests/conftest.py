# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guest, over SSH: under software emulation each start of a Python costs a second, so few commands ask for much."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shlex
import subprocess
import time
import typing as t

import pytest

PROJECT = pathlib.Path(__file__).resolve().parents[3]
STATE = pathlib.Path(os.environ.get("CONFINED_SLOTS_GUEST") or PROJECT / "build" / "guest")
SECONDS = 600
# A connection that is there on a slow machine, and gone with a guest that is.
PATIENT = [f"-o{option}" for option in ("LogLevel=ERROR", "ConnectTimeout=120", "ServerAliveInterval=20")]
PROFILES = "/etc/apparmor.d/confined-slots"


@dataclasses.dataclass(frozen=True)
class Result:
    """How a command went, under testinfra's names."""

    rc: int
    stdout: str
    stderr: str


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the guest."""

    exists: bool


class Host:
    """The guest as far as tests/docker asks a host of testinfra's."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def run(self, command: str) -> Result:
        """Return how a command went."""
        done = self.guest.asked(command)
        return Result(done.returncode, done.stdout, done.stderr)

    def check_output(self, command: str) -> str:
        """Return what a command says, once it has ended well."""
        return self.guest.run(command).rstrip("\n")

    def file(self, path: str) -> File:
        """Return whether there is a file."""
        return File(self.run(f"test -e {shlex.quote(path)}").rc == 0)


class Guest:
    """The guest of the state directory."""

    def __init__(self, state: pathlib.Path) -> None:
        self.inventory = state / "inventory.json"
        group = json.loads(self.inventory.read_text(encoding="utf-8"))["all"]["children"]["slot_hosts"]
        ((self.name, host),) = group["hosts"].items()
        options = shlex.split(group["vars"]["ansible_ssh_common_args"])
        key = ["-i", group["vars"]["ansible_ssh_private_key_file"], "-p", host["ansible_port"]]
        self.ssh = ["ssh", *options, *PATIENT, *key, f"root@{host['ansible_host']}"]

    @property
    def host(self) -> Host:
        """The guest for tests/docker."""
        return Host(self)

    def asked(self, script: str, *, given: str = "") -> subprocess.CompletedProcess[str]:
        """Return how a script of root's in bash went."""
        words = [*self.ssh, f"bash -c {shlex.quote(script)}"]
        return subprocess.run(
            words, input=given, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=SECONDS
        )

    def run(self, script: str, *, given: str = "") -> str:
        """Return what a script says, once it has ended well."""
        done = self.asked(script, given=given)
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def session(self, slot: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Return how a session of a slot with the provider shell went, its CLI given a script."""
        return self.asked(f"slotctl run {slot} {' '.join(arguments)} -- -c {shlex.quote(script)} </dev/null")

    def module(self, name: str, *, check: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        """Return the result of a module of the collection, run on the guest with the slots that are declared."""
        words = ["ansible", f"--inventory={self.inventory}", "--module-name", f"confined.slots.{name}", "all", "-o"]
        words += ["--check"] if check else []
        given = {"slots": "{{ slots | confined.slots.without_secrets }}", **arguments}
        done = subprocess.run(
            [*words, f"--args={json.dumps(given)}"],
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=SECONDS,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        )
        assert "=> {" in done.stdout, done.stdout + done.stderr
        found: dict[str, t.Any] = json.loads(done.stdout[done.stdout.index("=> {") + 3 :])
        return found

    def reboot(self) -> None:
        """Boot the guest again, and wait until it has come up as far as ever."""
        before = self.run("cat /proc/sys/kernel/random/boot_id")
        self.asked("systemctl reboot")  # the answer may be lost on the way
        # the end of the connection too
        subprocess.run([*self.ssh, "-O", "exit"], capture_output=True, check=False)
        deadline = time.monotonic() + SECONDS
        while True:
            time.sleep(2)
            done = self.asked("cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait")
            if done.stdout and not before.startswith(done.stdout.split("\n")[0]):
                assert "running" in done.stdout, self.asked("systemctl --failed").stdout
                return
            assert time.monotonic() < deadline, f"the guest did not come back: {done.stderr}"


@pytest.fixture(scope="session")
def guest() -> Guest:
    return Guest(STATE)


@pytest.fixture
def profiles(guest: Guest) -> t.Iterator[t.Callable[[str], None]]:
    """Yield what loads other profiles in the place of ours; those that are installed are back afterwards."""

    def load(text: str) -> None:
        guest.run("apparmor_parser --quiet --skip-cache --replace", given=text)

    yield load
    guest.run(f"apparmor_parser --quiet --skip-cache --replace {PROFILES}")
