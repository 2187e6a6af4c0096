# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the model's shell tries in each mode, as data: a shell command that ends with 0 if it got what it was after.

Each check says in which modes it is to get it. What it gets unconfined cannot be missing inside for another reason,
such as a typing error here. The scenario's conftest.py and `bystanders.py` make what is there to be got.
"""

from __future__ import annotations

import dataclasses

MODES = ("isolated", "verified", "compatibility", "unconfined")

NOWHERE: frozenset[str] = frozenset()  # the host's own permissions forbid it too
UNCONFINED = frozenset({"unconfined"})
LOOSE = frozenset({"compatibility", "unconfined"})
EVERYWHERE = frozenset(MODES)

CONNECT = (
    "python3 -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(30);"
    ' s.connect(sys.argv[1].replace("@", chr(0)))\' '
)
STATE = "/var/lib/confined-slots/slots"
READS_MARKER = "grep -qs certification-marker"


@dataclasses.dataclass(frozen=True)
class Check:
    """A claim in words; a command, in which SLOT, OTHER, UID and SECRET are filled in; the modes in which it works.

    note says why it is as it is, where a strict mode lets it.
    """

    id: str
    words: str
    command: str
    works: frozenset[str]
    note: str = ""


WORK = (
    Check("workspace", "writes in its workspace", "echo x > file && test -s file", EVERYWHERE),
    Check(
        "git",
        "keeps a repository in its workspace",
        'cd "$(mktemp -d repo.XXXX)" && git init -q && echo x > a && git add a'
        " && git -c user.name=x -c user.email=x@x commit -qm x && git log | grep -q x@x",
        EVERYWHERE,
    ),
    Check(
        "build",
        "compiles a program and runs it",
        "echo 'int main(void) { return 42; }' > a.c && cc -o a.out a.c && { ./a.out; test $? = 42; }",
        EVERYWHERE,
    ),
    Check("scratch", "writes in /tmp", "mktemp", EVERYWHERE),
    Check("home", "writes in its HOME", "touch ~/.certification && test -w ~", EVERYWHERE),
    Check("account", "is the slot's account", 'test "$(id -un)" = slot-SLOT', EVERYWHERE),
)

ATTACKS = (
    Check("unlisted-file", "reads a file of the host", f"{READS_MARKER} /srv/certification/marker", LOOSE),
    Check("host-tmp", "reads the host's /tmp", f"{READS_MARKER} /tmp/certification-marker", UNCONFINED),
    Check("other-home", "reads another account's home", f"{READS_MARKER} /home/oper/certification-marker", UNCONFINED),
    Check(
        "account-home",
        "reads the home of its account",
        f"{READS_MARKER} {STATE}/SLOT/home/certification-marker",
        LOOSE,
    ),
    Check(
        "other-slot",
        "reads another slot's workspace",
        f"{READS_MARKER} {STATE}/OTHER/workspaces/main/certification-marker",
        UNCONFINED,
    ),
    Check(
        "other-workspace",
        "reads another workspace of its own slot",
        f"{READS_MARKER} {STATE}/SLOT/workspaces/other/certification-marker",
        UNCONFINED,
    ),
    Check(
        "other-session",
        "reads the run directory of another session of its own slot",
        f"{READS_MARKER} /run/confined-slots/SLOT/certification/certification-marker",
        UNCONFINED,
    ),
    Check("configuration", "lists /etc/confined-slots", 'test -n "$(ls /etc/confined-slots)"', UNCONFINED),
    Check("own-plan", "reads its own plan", "test -s /etc/confined-slots/slots.d/SLOT/plan", UNCONFINED),
    Check("records", "reads the records of sessions", "test -s /var/log/confined-slots/SLOT/*.jsonl", UNCONFINED),
    Check("other-provider", "reads another provider's tree", "test -d /opt/confined-slots/providers/UNUSED", LOOSE),
    Check("credential-files", "reads a credential file", "cat /etc/confined-slots/credentials/*/*", NOWHERE),
    Check("write-usr", "writes below /usr", "mktemp -p /usr/local/certification", UNCONFINED),
    Check("write-etc", "writes below /etc", "mktemp -p /etc/certification", UNCONFINED),
    Check("write-release", "changes the launcher", "true >> /opt/confined-slots/current/bin/slot-launcher", NOWHERE),
    Check("write-plan", "changes its plan", "true >> /etc/confined-slots/slots.d/SLOT/plan", NOWHERE),
    Check("write-provider", "changes its CLI", "for file in PROGRAMS; do true >> $file && exit; done; false", NOWHERE),
    Check(
        "write-settings",
        "changes the managed settings",
        "for file in /etc/claude-code/managed-settings.json /etc/codex/managed_config.toml; do"
        " true >> $file && exit; done; false",
        NOWHERE,
    ),
    Check("set-user-id", "becomes root by a set-user-ID program", 'test "$(certification-id -u)" = 0', UNCONFINED),
    Check("sudo", "becomes root by sudo, which the host would let it", "sudo -n true", UNCONFINED),
    Check("user-namespace", "makes a user namespace", "unshare --user true", UNCONFINED),
    Check("docker-socket", "connects to a Docker socket", f"{CONNECT} /run/docker.sock", UNCONFINED),
    Check("system-bus", "speaks to the system bus", "busctl --timeout=60 list", UNCONFINED),
    Check("system-unit", "starts a unit of the system's", "systemd-run --quiet --wait true", NOWHERE),
    Check("user-bus", "connects to its account's user bus", f"{CONNECT} /run/user/UID/bus", UNCONFINED),
    Check(
        "user-unit",
        "starts a unit of its account's user manager, which the host has not",
        "XDG_RUNTIME_DIR=/run/user/UID timeout 5 systemd-run --user --quiet true",
        NOWHERE,
    ),
    Check("tmux", "speaks to a tmux server of its account", "tmux -S /tmp/tmux-UID/default list-sessions", UNCONFINED),
    Check("cron", "leaves a cron job", "echo '#' | crontab - && crontab -r", UNCONFINED),
    Check("journal", "writes to the host's log", "logger --socket-errors=on certification", UNCONFINED),
    Check(
        "loopback",
        "connects to a service on the host's loopback",
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 18766), 30)'",
        EVERYWHERE,
        "network is host here, for the endpoint's sake: docs/threat-model.md",
    ),
    Check(
        "process-environment",
        "reads the environment of its account's process outside",
        "grep -qsa certification-[m]arker /proc/[0-9]*/environ",
        UNCONFINED,
    ),
    Check(
        "process-root",
        "walks through the root of its account's process outside",
        "for root in /proc/[0-9]*/root; do test -e $root/run/certification-marker && exit; done; false",
        UNCONFINED,
    ),
    Check("process-signal", "signals its account's process", "pkill -0 -f certification-[b]ystander", UNCONFINED),
    Check(
        "credential-in-a-descriptor",
        "reads the credential out of a descriptor",
        "for fd in /proc/[0-9]*/fd/9; do timeout 1 cat $fd; done | grep -qa 'SECRET';"
        " found=$?; find /proc/[0-9]*/fd -lname '*memfd*' -exec grep -la 'SECRET' {} + | grep -q . || exit $found",
        NOWHERE,
    ),
)


def abstract_socket(*, scoped: bool) -> Check:
    """Return the check that Landlock's scope decides, where the kernel has it."""
    return Check(
        "abstract-socket",
        "connects to an abstract socket of the host",
        f"{CONNECT} @confined-slots-certification",
        UNCONFINED if scoped else EVERYWHERE,
        "" if scoped else "network is host here, for the endpoint's sake, and the kernel has no Landlock scope",
    )


def credential_checks(provider: str) -> tuple[Check, ...]:
    """Return where the credential shows, which differs; profiles say it in `why` of the capability."""
    by_environment = "the CLI takes it from its environment only, and /proc shows that to the same account"
    # environment of the model's commands; any environment in /proc; files, as Codex keeps snapshots of the first
    commands, anywhere, files, note = {
        "claude_code": (NOWHERE, UNCONFINED, NOWHERE, ""),
        "codex": (UNCONFINED, EVERYWHERE, UNCONFINED, by_environment),
        "pi": (EVERYWHERE, EVERYWHERE, NOWHERE, by_environment),
    }[provider]
    return (
        Check(
            "credential-in-the-environment-of-commands",
            "has the credential in its environment",
            "env | grep -q 'SECRET'",
            commands,
            note,
        ),
        Check(
            "credential-in-an-environment",
            "reads the credential in /proc",
            "grep -qsa 'SECRET' /proc/[0-9]*/environ",
            anywhere,
            note,
        ),
        Check("credential-in-a-file", "finds the credential in a file", "grep -rqsa 'SECRET' ~ /tmp /run", files),
    )


def checks_of(provider: str, *, scoped: bool) -> tuple[Check, ...]:
    """Return all checks of a provider on a host; scoped says whether its kernel has Landlock's scope."""
    return (*WORK, *ATTACKS, abstract_socket(scoped=scoped), *credential_checks(provider))
