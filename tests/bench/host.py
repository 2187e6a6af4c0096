# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bench's host, reached by what its inventory says; and playbooks on it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shlex
import subprocess
import time
import typing as t

from figures import Failed, said

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = "/root/confined-slots-bench.py"

# The bench's own host may be wiped of slots: each first converge then starts from the same state.
FORGET = r"""set -eu
sed -i '/^slot-/d' /etc/passwd /etc/shadow /etc/group /etc/gshadow /etc/subuid /etc/subgid
rm -rf /var/lib/confined-slots/slots/* /etc/confined-slots/slots.d/* /etc/confined-slots/credentials/*
rm -rf /etc/confined-slots/ledger.json /var/log/confined-slots/* /run/confined-slots/*
rm -f /etc/systemd/system/confined-slots-*.slice
systemctl daemon-reload
"""


@dataclasses.dataclass(frozen=True)
class Played:
    """One run of ansible-playbook: the wall time, its tasks' by action, and the actions that changed something."""

    seconds: float
    actions: dict[str, float]
    changed: list[str]

    @property
    def modules(self) -> float:
        """Return the seconds spent in tasks of this collection's own modules."""
        return sum(seconds for action, seconds in self.actions.items() if action.startswith("confined.slots."))


@dataclasses.dataclass(frozen=True)
class Host:
    """The one host of an inventory made by tests/hosts."""

    inventory: pathlib.Path
    name: str
    ssh: tuple[str, ...]
    container: str

    @classmethod
    def of(cls, inventory: pathlib.Path) -> Host:
        """Return the inventory's first host."""
        group = json.loads(inventory.read_text(encoding="utf-8"))["all"]["children"]["slot_hosts"]
        name, own = next(iter(group["hosts"].items()))
        values = group["vars"] | own
        options = shlex.split(values["ansible_ssh_common_args"])
        target = f"{values['ansible_user']}@{values['ansible_host']}"
        key = values["ansible_ssh_private_key_file"]
        return cls(inventory, name, ("ssh", *options, "-i", key, target), values["test_host_container"])

    def run(self, command: str) -> str:
        """Return the output of a shell command on the host; Failed if it does not end with 0."""
        return said(*self.ssh, command)

    def forget_slots(self) -> None:
        """Take every slot away; release and packages stay."""
        self.run(FORGET)

    def timer(self, slot: str, account: t.Literal["root", "slot"]) -> Timer:
        """Return what runs commands on the host as root or as the slot and takes their times there."""
        script = (HERE / "on_host.py").read_bytes()
        subprocess.run([*self.ssh, f"cat > {SCRIPT}"], input=script, check=True, capture_output=True)
        argv = [*self.ssh, f"python3 {SCRIPT} {shlex.quote(slot)} {account}"]
        return Timer(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def play(self, playbook: str, variables: t.Mapping[str, t.Any], work: pathlib.Path) -> Played:
        """Run a playbook and return its times; Failed with its last lines if it does not succeed."""
        given, tasks = work / "variables.json", work / "tasks.jsonl"
        given.write_text(json.dumps(variables), encoding="utf-8")
        tasks.write_text("", encoding="utf-8")
        environment = os.environ | {
            "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callbacks"),
            "ANSIBLE_CALLBACKS_ENABLED": "task_times",
            "CONFINED_SLOTS_BENCH_TASKS": str(tasks),
        }
        argv = ["ansible-playbook", f"--inventory={self.inventory}", f"--extra-vars=@{given}", playbook]
        start = time.perf_counter()
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            raise Failed(f"{playbook} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
        actions: dict[str, float] = {}
        changed = []
        for action, spent, changes in map(json.loads, tasks.read_text(encoding="utf-8").splitlines()):
            actions[action] = actions.get(action, 0.0) + spent
            changed += [action] if changes else []
        return Played(seconds, actions, changed)


class Timer:
    """The other end of on_host.py: a name in, a line of JSON out."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *_unused: object) -> None:
        """End the script on the host by ending its input."""
        self.process.communicate()

    def seconds(self, what: str, until: t.Literal["output", "exit"]) -> float:
        """Run one of the script's commands and return the seconds until its first output, or its end."""
        if self.process.stdin is None or self.process.stdout is None:
            raise Failed("the timer has no pipes")
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{what} could not be timed on the host")
        found = json.loads(line)
        if found["status"] != 0:
            raise Failed(f"{what} ended with {found['status']} on the host")
        return float(found[until])
