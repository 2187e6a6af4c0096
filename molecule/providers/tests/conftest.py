# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real CLIs on a test host: each runs once in each mode, and the tests look at what came of it."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import pathlib
import re
import shlex
import shutil
import tarfile
import tempfile
import typing as t

import operators
import pytest
import testinfra.host
from checks import MODES, STATE, Check, checks_of
from waiting import until

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOUND = ROOT / "build" / "certification" / "found"
THERE = "/root/certification"
PORT = 18765

Json = dict[str, t.Any]


@dataclasses.dataclass(frozen=True)
class Cli:
    """A CLI: its slots begin with its short name; a file of settings that asks for what its profile forbids."""

    short: str
    secret: str
    hostile: t.Mapping[str, str]
    files: t.Mapping[str, str]
    loose_files: t.Mapping[str, str]

    def slot(self, mode: str) -> str:
        """Return the slot that runs it in a mode; unconfined it has that of isolated mode, which it runs beside."""
        return f"{self.short}-{'iso' if mode == 'unconfined' else mode[:3]}"


PI_MODEL = {
    "baseUrl": f"http://127.0.0.1:{PORT}/v1",
    "api": "openai-completions",
    "apiKey": "$OPENAI_API_KEY",
    "models": [{"id": "scripted", "contextWindow": 200000, "maxTokens": 8192}],
}
# unconfined it has not its profile's arguments, which say the same
CODEX_QUIET = "[features]\nplugins = false\napps = false\n[analytics]\nenabled = false\n"
CLIS = {
    "claude_code": Cli(
        "claude", "worthless-claude-token", {".claude/settings.json": '{"sandbox": {"enabled": true}}'}, {}, {}
    ),
    "codex": Cli(
        "codex",
        "worthless-codex-token",
        {".codex/config.toml": 'sandbox_mode = "workspace-write"\n[features]\ndaemon_auto_start = true\n'},
        {},
        # managed settings need a mount point that these modes have not
        {".codex/config.toml": f'openai_base_url = "http://127.0.0.1:{PORT}/v1"\n{CODEX_QUIET}'},
    ),
    "pi": Cli(
        "pi",
        "worthless-pi-token",
        {},
        {
            ".pi/agent/models.json": json.dumps({"providers": {"scripted": PI_MODEL}}),
            ".pi/agent/settings.json": '{"defaultProvider": "scripted", "defaultModel": "scripted"}',
        },
        {},
    ),
}


@dataclasses.dataclass(frozen=True)
class Certification(operators.Operator):
    """The operator of a host with the bystanders, and what the CLIs did there."""

    runs: dict[tuple[str, str], Json] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def scoped(self) -> bool:
        """Whether the host's kernel has Landlock's scope."""
        return self.says(operators.SCOPED)

    def checks(self, provider: str) -> tuple[Check, ...]:
        """Return what the CLI is to try on this host."""
        return checks_of(provider, scoped=self.scoped)

    def run(self, provider: str, mode: str) -> Json:
        """Return what came of the CLI's run in a mode, which takes place once."""
        if (provider, mode) not in self.runs:
            self.runs[provider, mode] = self.trial(provider, mode, self.checks(provider))
        return self.runs[provider, mode]

    def trial(
        self, provider: str, mode: str, checks: collections.abc.Sequence[Check], words: list[str] | None = None
    ) -> Json:
        """Have the CLI try the checks in a mode; the result has the outcome of each in `outcomes`."""
        cli = CLIS[provider]
        slot = cli.slot(mode)
        strict = mode in ("isolated", "verified")
        filled = self.words(provider, slot)
        given = {
            "slot": slot,
            "mode": mode,
            "port": PORT,
            "secret": cli.secret,
            "files": {**cli.files, **(cli.hostile if strict else cli.loose_files)},
            "commands": [command(check, filled) for check in checks],
            **({"words": words} if words else {}),
        }
        found = self.on_host("on_host.py", given)
        outputs = [str(result["output"]) for result in found["first"]["results"]]
        said = dict(match.groups() for text in outputs for match in re.finditer(r"^([a-z-]+): (yes|no)$", text, re.M))
        found["outcomes"] = {check.id: said.get(check.id, "no answer") for check in checks}
        return found

    def on_host(self, program: str, given: Json) -> Json:
        """Return what a program of tests/certify says on the host."""
        found: Json = json.loads(self.do(f"cd {THERE} && python3 {program} {shlex.quote(json.dumps(given))}"))
        return found

    def words(self, provider: str, slot: str) -> dict[str, str]:
        """Return what is filled in in commands."""
        other = next(name for name in CLIS if name != provider)
        return {
            "SLOT": slot,
            "OTHER": CLIS[other].slot("isolated"),
            "UNUSED": other,
            "UID": self.do(f"id -u slot-{slot}"),
            # a pattern that does not find itself
            "SECRET": CLIS[provider].secret.replace("worthless", "worthles[s]"),
            "PROGRAMS": " ".join(each["path"] for each in self.policy(slot)["provider"]["identity"]),
        }

    def policy(self, slot: str) -> Json:
        """Return a slot's policy."""
        policy: Json = json.loads(self.do(f"slotctl policy {slot} --json"))
        return policy

    def facts(self) -> Json:
        """Return what evidence says of the host."""
        release = "/opt/confined-slots/current"
        return {
            "distribution": self.do(". /etc/os-release && echo $ID $VERSION_ID"),
            "kernel": self.do("uname -sr").partition("-")[0],
            "bubblewrap": self.do(f"{release}/bin/bwrap --version").split()[-1],
            "machine": self.do("uname -m"),
            "landlock_scope": self.scoped,
        }

    def identity(self, provider: str) -> Json:
        """Return what evidence says of the CLI as it is installed."""
        known = self.policy(CLIS[provider].slot("isolated"))["provider"]
        recorded = json.loads(self.do("cat /opt/confined-slots/providers.json"))[provider]
        files = [each["digest"] for each in known["identity"] if not each["path"].endswith("/MANIFEST.json")]
        return {
            "cli_version": known["version"],
            "profile_version": known["profile_version"],
            "executable": files[-1],
            "tree": recorded["trees"][known["version"]]["digest"],
        }

    def record(self) -> None:
        """Write down what was found, for `make certify`."""
        found = {
            name: {
                "identity": self.identity(name),
                "modes": {mode: run for (of, mode), run in self.runs.items() if of == name},
            }
            for name in {name for name, _unused in self.runs}
        }
        FOUND.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"host": self.facts(), "providers": found}, indent=1)
        (FOUND / f"{self.host.backend.hostname}.json").write_text(text + "\n", encoding="utf-8")


def command(check: Check, filled: t.Mapping[str, str]) -> str:
    """Return a check's command, made to say whether it worked; in a shell of its own, without the CLI's functions."""
    text = re.sub("|".join(rf"\b{name}\b" for name in filled), lambda found: filled[found[0]], check.command)
    said = f"then echo '{check.id}: yes'; else echo '{check.id}: no'; fi"
    return f"if /bin/sh -c {shlex.quote(text)} </dev/null >/dev/null 2>&1; {said}"


# What stands on the host to be got at, and by whom it could be: by each account, or by the slots' own.
MARK = f"""
set -e
umask 022
mark() {{ echo certification-marker > "$1"; chmod 644 "$1"; }}
mkdir -p /srv/certification /usr/local/certification /etc/certification
chmod 777 /usr/local/certification /etc/certification
mark /srv/certification/marker; mark /tmp/certification-marker; mark /run/certification-marker
chmod 755 /home/oper; mark /home/oper/certification-marker
install -m 4755 /usr/bin/id /usr/local/bin/certification-id
for slot in $slots; do
  account=slot-$slot; as="runuser -u $account --"
  for directory in home workspaces/other workspaces/main; do
    $as sh -c "echo certification-marker > {STATE}/$slot/$directory/certification-marker"
  done
  $as chmod 755 {STATE}/$slot/workspaces/main
  install -d -o $account -m 700 /run/confined-slots/$slot/certification
  $as sh -c "echo certification-marker > /run/confined-slots/$slot/certification/certification-marker"
  echo "$account ALL=(ALL) NOPASSWD: ALL" > /etc/sudoers.d/certification-$slot
  systemd-run --quiet --collect --unit=certification-$slot --uid=$account -E LOOK=certification-marker \
    /bin/bash -c 'tmux new-session -d; exec -a certification-bystander sleep 3600'
done
systemd-run --quiet --collect --unit=certification-bystanders /usr/bin/python3 {THERE}/bystanders.py \
  $(for slot in $slots; do id -u slot-$slot; done)
""" + until("ss -Hltn sport = :18766 | grep -q .")
UNMARK = f"""
set -e
systemctl stop 'certification-*'
rm -rf {THERE} /srv/certification /usr/local/certification /etc/certification /usr/local/bin/certification-id \
  /tmp/certification-marker /run/certification-marker /home/oper/certification-marker /run/docker.sock \
  /etc/sudoers.d/certification-*
chmod 700 /home/oper
for slot in $slots; do
  rm -rf /run/confined-slots/$slot/certification /run/user/$(id -u slot-$slot)
  runuser -u slot-$slot -- chmod 700 {STATE}/$slot/workspaces/main
done
"""


@pytest.fixture(scope="module")
def certification(host: testinfra.host.Host) -> collections.abc.Iterator[Certification]:
    """Return a host on which there is much to be got at; skip where no real CLI can be fetched."""
    if shutil.which("npm") is None:
        pytest.skip("npm is missing on this machine: no real CLI can be fetched")
    found = Certification.of(host)
    slots = shlex.quote(" ".join(cli.slot(mode) for cli in CLIS.values() for mode in MODES[:3]))
    with tempfile.TemporaryDirectory() as directory:
        archive = pathlib.Path(directory) / "certification.tar"
        with tarfile.open(archive, "w") as tar:
            for path in (*ROOT.glob("tests/certify/*.py"), *ROOT.glob("tests/endpoint/*.py")):
                tar.add(path, path.name)
        found.send(archive, f"{THERE}.tar")
    found.do(f"slots={slots}\n{UNMARK}")  # a run that was killed has left them
    found.do(f"mkdir -p {THERE} && tar -xf {THERE}.tar -C {THERE} && rm {THERE}.tar")
    try:
        found.do(f"slots={slots}\n{MARK}")
        yield found
    finally:
        found.do(f"slots={slots}\n{UNMARK}")
