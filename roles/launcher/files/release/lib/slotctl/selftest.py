# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl selftest`: proves a slot's confinement from inside, then takes each part away to prove the proof.

The same probes (probe.py) run confined by the real launcher and plan; unconfined as the slot's account, to see what
they can reach at all; and once for every mutation (mutations.py), when exactly the matching probe must speak.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import marshal
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
import typing as t

from confined_slots import _apparmor_profiles, _layout
from confined_slots._files import Owned, ensure_directory
from confined_slots._health import CouldNot
from confined_slots._launch import workspace_path
from confined_slots._plan import Record, value, values
from confined_slots._refusals import Refusal

from . import trial
from .mutations import DID_NOT_START, Mutation, mutations, offline, read_only
from .slots import load

PYTHON = "/usr/bin/python3"
STARTER = "import marshal, sys; exec(marshal.loads(bytes.fromhex(sys.argv[1])))"
PREFIX = "confined-slots-selftest-"
STALE_SECONDS = 3600
SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
# What a careless caller leaves behind: an open directory, an ignored signal. ($$ is systemd's way to write a $.)
CARELESS = ["/bin/sh", "-c", 'trap "" USR1; exec 7</; exec "$$@"', "sh"]

CLAIMS = {
    "abstract-sockets": "no abstract socket of the host answers",
    "account-home": "the home of its account is not visible",
    "bind": "is exactly what the policy lists there",
    "configuration": "policies, approvals and credentials are not visible",
    "data": "is the file made for the slot",
    "descriptors": "nothing the caller had open is inherited",
    "environment": "nothing of the caller's environment comes along",
    "groups": "no supplementary group",
    "homes": "no home of other accounts is visible",
    "host-network": "host loopback and abstract sockets do not answer",
    "host-process": "no process of the host is visible",
    "host-scratch": "the host's /tmp, /var/tmp and /dev/shm are not visible",
    "label": "is held by the AppArmor profile of a session",
    "kernel-doors": "no bpf, io_uring, perf events or userfaultfd",
    "keyrings": "no kernel keyring, which slots would share",
    "hold": "cannot be renamed",
    "logs": "no log of the host is visible",
    "mask": "shows nothing",
    "namespace": "namespace of its own",
    "nested-namespaces": "no further user namespace can be made",
    "odd-sockets": "no kind of socket that knows no network namespace",
    "other-sessions": "no run directory of another session is visible",
    "other-slots": "no other slot is visible",
    "other-workspaces": "no other workspace of the slot is visible",
    "own-name": "has the slot's name as host name",
    "own-shell": "null device and terminal are there",
    "private-network": "has a way out",
    "privileges": "no capability held or to be gained",
    "read-only-workspace": "cannot write its workspace",
    "releases": "launcher and releases are not visible",
    "run-directory": "can write its run directory",
    "seal": "nothing can be added",
    "signals": "signals are at their defaults",
    "sockets": "no socket: Docker, D-Bus, systemd, tmux",
    "symlink": "links where this host links",
    "terminal": "cannot type into a terminal",
    "tmpfs": "scratch of its own, with a size",
    "workspace": "can write its workspace",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the result.

    A probe with what it found confined and unconfined, or a mutation with the probes that spoke.
    """

    kind: t.Literal["probe", "mutation"]
    name: str
    ok: bool
    claim: str
    found: str
    unconfined: str = ""


@dataclasses.dataclass(frozen=True)
class Bench:
    """What stands on the host for the probes to look for."""

    token: str
    markers: list[str]
    other_session: str
    port: int


def selftest(
    slot: str,
    release: str,
    workspace: str | None = None,
    *,
    only: str | None = "",
    progress: t.Callable[[str], None] = lambda _unused: None,
) -> list[Row]:
    """Return a row for each probe and for each mutation whose name has only in it; Refusal if the slot cannot run.

    only is None for no mutation. workspace is where the probes run, the slot's first if None; one that is narrower has
    a plan of its own.
    """
    loaded = load(slot, workspace)
    records = loaded.records
    chosen = workspace if workspace is not None else next(iter(loaded.base["workspaces"]))
    workspace_path(records, chosen)
    with _refusing(slot), bench(slot, records) as stands:
        run = Run(slot, chosen, release, records, stands)
        progress("confined")
        confined = run.confined(Mutation("none", frozenset(), tuple(records)))
        if confined is None:
            raise Refusal(
                "sandbox-unavailable",
                f"the probe did not start: {run.said}",
                f"see 'slotctl status {slot}' and the journal",
            )
        progress("unconfined")
        unconfined = run.unconfined()
        rows = [
            Row("probe", name, not found, claim(name), found, unconfined.get(name, ""))
            for name, found in confined.items()
        ]
        broken = {name for name, found in confined.items() if found}
        for mutation in mutations(slot, run.workspace, records, stands.other_session, stands.markers[1]):
            if only is None or only not in mutation.name:
                continue
            if run.mode == "compatibility":
                # what it opens may be open there, or be nothing that the slot could see
                seen = {name for name in mutation.expected if not name.startswith("mask:") or unconfined.get(name)}
                if not mutation.expected <= seen.intersection(confined):
                    continue
                mutation = dataclasses.replace(mutation, among=True)
            progress(mutation.name)
            findings = run.confined(mutation)
            if findings is None and not mutation.without_start:  # no probe has spoken: asked once more
                findings = run.confined(mutation)
            failing = frozenset(
                [DID_NOT_START] if findings is None else {name for name, found in findings.items() if found} - broken
            )
            expected = ", ".join(sorted(mutation.expected)) or DID_NOT_START
            rows.append(Row("mutation", mutation.name, mutation.caught(failing), expected, ", ".join(sorted(failing))))
    return rows


def claim(name: str) -> str:
    """Return in words what a probe claims."""
    kind, _unused, subject = name.partition(":")
    return f"{subject} {CLAIMS[kind]}" if subject else CLAIMS[kind]


@contextlib.contextmanager
def _refusing(slot: str) -> t.Iterator[None]:
    try:
        yield
    except CouldNot as error:
        cure = f"see 'slotctl status {slot}' and the journal"
        raise Refusal("sandbox-unavailable", f"the probe gave no answer: {error}", cure) from None


@contextlib.contextmanager
def bench(slot: str, records: list[Record]) -> t.Iterator[Bench]:
    """Put up what the probes look for: markers, listeners, another session's directory; taken down at the end."""
    ((uid, gid),) = values(records, "ids")
    token = secrets.token_hex(16)
    sweep(slot)
    with contextlib.ExitStack() as stack:
        markers = []
        for directory in SCRATCH:
            markers.append(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX, dir=directory)))
            os.chmod(markers[-1], 0o755)
        ensure_directory(f"{_layout.RUN}/{slot}", Owned(0, 0, 0o711))
        other = _layout.run_directory(slot, f"selftest-{token[:8]}")
        ensure_directory(other, Owned(int(uid), int(gid), 0o700))
        stack.callback(shutil.rmtree, other)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{token}")
        abstract.listen()
        loopback = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield Bench(token, markers, other, loopback.getsockname()[1])


def sweep(slot: str) -> None:
    """Remove what killed runs have left: root's empty marker directories, and files and directories beside sessions."""
    old = time.time() - STALE_SECONDS
    for directory in SCRATCH:
        for name in os.listdir(directory):
            path = f"{directory}/{name}"
            with contextlib.suppress(OSError):  # not empty, or gone meanwhile: only what is empty is taken away
                found = os.lstat(path)
                if name.startswith(PREFIX) and found.st_uid == 0 and found.st_mtime < old:
                    os.rmdir(path)
    run = f"{_layout.RUN}/{slot}"
    for name in os.listdir(run) if os.path.isdir(run) else ():
        with contextlib.suppress(OSError):
            path = f"{run}/{name}"
            found = os.lstat(path)
            if not name.startswith("selftest-") or found.st_mtime >= old:
                continue
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(path)
            else:
                os.unlink(path)


class Run:
    """Runs the probes in one slot, with the plan or the launcher changed as a mutation says."""

    def __init__(self, slot: str, workspace: str, release: str, records: list[Record], stands: Bench) -> None:
        self.slot, self.workspace, self.release, self.records, self.stands = slot, workspace, release, records, stands
        policy = json.loads(value(records, "policy"))
        self.mode = policy["mode"]
        self.nested, self.docker = bool(policy.get("nested_sandbox")), bool(policy.get("docker"))
        self.said = ""
        self.code = _probe().hex()

    def confined(self, mutation: Mutation) -> dict[str, str] | None:
        """Return the findings of a run through the launcher, None if the probe did not start."""
        session = f"selftest-{secrets.token_hex(8)}"
        launcher = [f"{self.release}/bin/slot-launcher"]
        if mutation.patch:
            code = f"import sys; sys.path.insert(0, '{self.release}/lib'); from confined_slots import _launch; "
            launcher = [
                PYTHON,
                "-IS",
                "-c",
                f"{code}{mutation.patch}; sys.exit(_launch.main('{self.release}', sys.argv[1:]))",
            ]
        plan = trial.plan(list(mutation.records), [PYTHON, "-IS", "-c", STARTER])
        with trial.files(self.slot, session, plan, [self.code, marshal.dumps(self.given(session)).hex()]) as path:
            words = [*CARELESS, *launcher, path, self.workspace, session]
            return self._finish(words, session, mutation.groups, "", mutation.profile)

    def unconfined(self) -> dict[str, str]:
        """Return what the same probes find as the slot's account, without launcher and bwrap."""
        words = [self.code, marshal.dumps(self.given("none")).hex()]
        source = f"import sys\nsys.argv[1:] = {words}\n{STARTER}"
        return self._finish([PYTHON, "-IS", "-"], f"selftest-{secrets.token_hex(8)}", "", source) or {}

    def given(self, session: str) -> dict[str, t.Any]:
        """Return what the probes are told: where things are, and what the plan promises."""
        ((_unused, gid),) = values(self.records, "ids")
        alone = offline(self.records)
        return {
            "slot": self.slot,
            "workspace": self.workspace,
            "read_only": read_only(self.records),
            "session": session,
            "state": _layout.state(self.slot),
            "run": f"{_layout.RUN}/{self.slot}",
            "other_session": self.stands.other_session,
            "gid": int(gid),
            "markers": self.stands.markers,
            "process": os.getpid(),
            "token": self.stands.token,
            "namespaces": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES if kind != "net" or alone},
            "network": "private" if values(self.records, "network") else "none" if alone else "host",
            "mode": self.mode,
            "docker": [_layout.docker_socket_directory(self.slot)] if self.docker else [],
            "masks": [(target, kind, self._below(target)) for kind, _unused, target in values(self.records, "mask")],
            "holds": [target for _unused, target in values(self.records, "hold")],
            "abstract": self.stands.token,
            "nested_sandbox": self.nested,
            "label": _apparmor_profiles.label(nested=self.nested) if values(self.records, "label") else "",
            "landlock": bool(values(self.records, "landlock")),
            "port": self.stands.port,
            "binds": [(target, *_file_id(source), mode) for mode, source, target in values(self.records, "bind")],
            "scratch": [(target, int(size)) for _unused, size, target in values(self.records, "tmpfs")],
            "data": [(target, content) for content, target in values(self.records, "data")],
            "links": [(target, content) for content, target in values(self.records, "symlink")],
            "seals": [target for (target,) in values(self.records, "seal")],
        }

    def _below(self, masked: str) -> list[str]:
        """Return the names that the plan makes in a masked directory."""
        targets = [_layout.workspace(self.slot, self.workspace), _layout.run_directory(self.slot, "*")]
        targets += [target for _mode, _source, target in values(self.records, "bind")]
        return sorted({path[len(masked) + 1 :].partition("/")[0] for path in targets if path.startswith(f"{masked}/")})

    def _finish(
        self, words: list[str], session: str, groups: str, given: str, profile: str = ""
    ) -> dict[str, str] | None:
        environment = {name: self.stands.token for name in ("BASH_ENV", "LD_AUDIT", "SSH_AUTH_SOCK", "TMUX")}
        finished = trial.ran(
            self.slot, session, words, given=given, groups=groups, environment=environment, profile=profile
        )
        self.said = trial.said(finished)
        try:
            findings = json.loads(finished.stdout)
        except (ValueError, RecursionError):
            return None
        return {str(name): str(found) for name, found in findings.items()} if isinstance(findings, dict) else None


@functools.cache
def _probe() -> bytes:
    """Return the probes' code: compiled here once, not once more in every sandbox."""
    path = os.path.join(os.path.dirname(__file__), "probe.py")
    with open(path, encoding="utf-8") as file:
        return marshal.dumps(compile(file.read(), path, "exec", dont_inherit=True))


def _file_id(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
