# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""ES-12, LG-01, RD-08, AN-07: whose files are whose, what root keeps away from, rotation, the operators' sudo rule."""

from __future__ import annotations

import collections.abc
import shlex
import typing as t

import pytest
import testinfra.host
from operators import Operator

testinfra_hosts = ["ansible://slot_hosts"]

Host = testinfra.host.Host
STATE = "/var/lib/confined-slots/slots"
POLICY = "/etc/confined-slots/slots.d/coder"
LOG = "/var/log/confined-slots/coder"
RECORDS = f"{LOG}/sessions.jsonl"
ROTATE = "logrotate --verbose --force --state /run/rotation-of-the-tests"

TREE = {
    "/opt/confined-slots": "root:root 755",
    "/opt/confined-slots/releases": "root:root 755",
    "/opt/confined-slots/providers": "root:root 755",
    "/etc/confined-slots": "root:root 755",
    "/etc/confined-slots/slots.d": "root:root 755",
    "/etc/confined-slots/credentials": "root:root 700",
    "/etc/confined-slots/ledger.json": "root:root 600",
    POLICY: "root:slot-coder 750",
    f"{POLICY}/plan": "root:slot-coder 640",
    f"{POLICY}/policy.json": "root:slot-coder 640",
    "/var/lib/confined-slots": "root:root 755",
    "/var/lib/confined-slots/archive": "root:root 700",
    STATE: "root:root 755",
    f"{STATE}/coder": "root:root 755",
    f"{STATE}/coder/home": "slot-coder:slot-coder 700",
    f"{STATE}/coder/homes": "root:root 755",
    f"{STATE}/coder/homes/shell": "slot-coder:slot-coder 700",
    f"{STATE}/coder/workspaces": "root:root 755",
    f"{STATE}/coder/workspaces/main": "slot-coder:slot-coder 700",
    f"{STATE}/coder/workspaces/review": "slot-coder:slot-coder 700",
    "/run/confined-slots": "root:root 755",
    "/run/confined-slots/coder": "root:root 711",
    "/var/log/confined-slots": "root:root 755",
    LOG: "root:slot-coder 750",
    RECORDS: "root:slot-coder 640",
    "/etc/sudoers.d/confined-slots": "root:root 440",
    "/etc/logrotate.d/confined-slots": "root:root 644",
}

# What must come through every attack as it is: other people's files, by owner, mode and content.
UNHARMED = f"""
set -e
stat -c '%n %u:%g %a %h' /etc /etc/shadow /etc/gshadow /etc/passwd /etc/ssh/* {STATE}/reviewer/home
sha256sum /etc/shadow /etc/gshadow /etc/passwd /etc/group
find {STATE}/coder/home {STATE}/coder/workspaces/main {STATE}/reviewer/home -mindepth 1 -printf '%p %U:%G %m\\n' | sort
"""

LINKS_IN_OWN_PLACES = f"""
cd {STATE}/coder/home
mkdir -p attic && mv .config .ssh .docker attic/ 2>/dev/null
mkdir .config; ln -s /etc .ssh; ln -s {STATE}/reviewer/home .docker; ln -s /etc/shadow .config/token
mkdir -p .config/systemd; ln -s /etc/systemd/system .config/systemd/user; ln -s /etc/shadow .bash_history
cd {STATE}/coder/workspaces/main; ln -s /etc everything; ln -s /etc/shadow shadow; mkdir -m 777 open; touch open/file
"""
TAKE_AWAY = (
    f"cd {STATE}/coder/home && rm -rf attic .config .ssh .docker .bash_history;"
    f" cd {STATE}/coder/workspaces/main && rm -rf everything shadow open"
)


def as_slot(host: Host, script: str, slot: str = "coder") -> t.Any:
    """Run a script as the slot's account, outside of any session."""
    return host.run("setpriv --reuid=%s --regid=%s --clear-groups sh -c %s", f"slot-{slot}", f"slot-{slot}", script)


def converge(host: Host, *, check: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
    """Run the module as the role does and return its result, with `failed` in it."""
    operator = Operator.of(host)
    return operator.module("permissions", check=check, **{"slots": operator.variables()["slots"], **arguments})


def subjects(result: dict[str, t.Any]) -> list[str]:
    """Return the paths that a result says were changed."""
    return [step["subject"] for step in result["steps"]]


def owner_of(host: Host, path: str) -> str:
    """Return owner, group and mode of what stands at path itself."""
    return str(host.check_output("stat -c '%%U:%%G %%a' %s", path))


def bent(host: Host, paths: list[str]) -> list[str]:
    """Return the paths that have not the owner and mode of TREE."""
    shown = host.check_output("stat -c '%n %U:%G %a' " + " ".join(paths)).splitlines()
    return [path for path, line in zip(paths, shown, strict=True) if line != f"{path} {TREE[path]}"]


@pytest.fixture
def mended(host: Host) -> collections.abc.Iterator[None]:
    """Put the host right after a test has bent it, and see to it that it is."""
    yield
    host.run_expect([0], TAKE_AWAY)
    assert not converge(host)["failed"]


@pytest.fixture
def linked(host: Host, mended: None) -> None:
    """Have the slot put links into every place of its own that root's programs are known to write to."""
    as_slot(host, LINKS_IN_OWN_PLACES)
    assert host.run(f"test -L {STATE}/coder/home/.ssh && test -L {STATE}/coder/workspaces/main/shadow").succeeded


@pytest.mark.parametrize("path", TREE)
def test_everything_has_its_owner_and_mode(host: Host, path: str) -> None:
    assert owner_of(host, path) == TREE[path]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(f"echo >> {RECORDS}", id="write its records"),
        pytest.param(f"mv {RECORDS} {LOG}/other", id="rename its records"),
        pytest.param(f"touch {LOG}/new", id="add to its logs"),
        pytest.param(f"echo >> {POLICY}/plan", id="write its plan"),
        pytest.param(f"touch {POLICY}/new", id="add to its policy"),
        pytest.param(f"mv {STATE}/coder/workspaces/main {STATE}/coder/workspaces/other", id="rename a workspace"),
        pytest.param(f"ln -s /etc {STATE}/coder/homes/codex", id="lay out a home"),
        pytest.param("touch /run/confined-slots/coder/new", id="lay out a session"),
        pytest.param("ls /run/confined-slots/coder", id="list its sessions"),
        pytest.param(f"ls {STATE}/reviewer/home", id="list another slot's home"),
        pytest.param("cat /etc/confined-slots/slots.d/reviewer/plan", id="read another slot's plan"),
        pytest.param("cat /var/log/confined-slots/reviewer/sessions.jsonl", id="read another slot's records"),
        pytest.param("ls /etc/confined-slots/credentials", id="list the credentials"),
        pytest.param("cat /etc/confined-slots/ledger.json", id="read the ledger"),
    ],
)
def test_a_slot_cannot(host: Host, script: str) -> None:
    refused = as_slot(host, script)
    assert refused.failed
    assert "ermission denied" in refused.stderr


def test_es12_links_in_a_slots_own_places_lead_root_nowhere(host: Host, linked: None) -> None:
    before = host.check_output(UNHARMED)
    result = converge(host)
    assert (result["failed"], result["changed"]) == (False, False)
    assert host.check_output(UNHARMED) == before


def test_es12_a_root_that_follows_links_would_have_been_noticed(host: Host, linked: None) -> None:
    before = host.check_output(UNHARMED)
    host.run_expect([0], f"chown --dereference slot-coder {STATE}/coder/home/.docker")
    assert host.check_output(UNHARMED) != before
    host.run_expect([0], f"chown slot-reviewer {STATE}/reviewer/home")
    assert host.check_output(UNHARMED) == before


# What is named: how an operator's mistake opened it, what the slot made of that, and how a person mends it.
PLANTED = {
    f"{STATE}/coder/workspaces/review": (
        f"chown slot-coder {STATE}/coder/workspaces",
        f"cd {STATE}/coder/workspaces && mv review aside && ln -s {STATE}/reviewer/home review",
        f"cd {STATE}/coder/workspaces && rm review && mv aside review",
    ),
    f"{STATE}/build-er/home": (
        f"chmod 0777 {STATE}/build-er",
        f"cd {STATE}/build-er && mkdir aside && ln -s /etc aside/home && mv home aside/old && mv aside/home home",
        f"cd {STATE}/build-er && rm home && mv aside/old home && rmdir aside",
    ),
    RECORDS: (
        f"chmod 0770 {LOG}",
        f"cd {LOG} && mv sessions.jsonl .aside && ln -s /etc/shadow sessions.jsonl",
        f"cd {LOG} && rm sessions.jsonl && mv .aside sessions.jsonl",
    ),
    f"{RECORDS}.1": ("true", f"ln -s /etc/passwd {RECORDS}.1", f"rm {RECORDS}.1"),
    f"{RECORDS}.2.gz": ("true", f"mkfifo {RECORDS}.2.gz", f"rm {RECORDS}.2.gz"),
    f"{LOG}/hard-link": (f"ln /etc/gshadow {LOG}/hard-link", "true", f"rm {LOG}/hard-link"),
    f"{POLICY}/plan": (
        f"chmod 0770 {POLICY}",
        f"cd {POLICY} && cp plan own && mv -f own plan",
        f"chown root {POLICY}/plan && chmod 0640 {POLICY}/plan",
    ),
    f"{POLICY}/policy.json": (f"chmod 0660 {POLICY}/policy.json", "true", f"chmod 0640 {POLICY}/policy.json"),
    f"{STATE}/coder/workspaces/main": (
        f"chown slot-reviewer {STATE}/coder/workspaces/main",
        "true",
        f"chown slot-coder {STATE}/coder/workspaces/main",
    ),
}
OPENED = [f"{STATE}/coder/workspaces", f"{STATE}/build-er", LOG, POLICY]


def test_es12_what_was_laid_out_while_a_directory_was_open_is_named_and_left_alone(host: Host, mended: None) -> None:
    look = f"stat -c '%n %u:%g %a %h %i' {' '.join(PLANTED)}; {UNHARMED}"
    for named, (opened, plant, _unused) in PLANTED.items():
        host.run_expect([0], opened)
        assert as_slot(host, plant, "build-er" if "build-er" in named else "coder").succeeded, named
    host.run_expect([0], f"chmod 0777 {STATE}/reviewer/workspaces")
    before = host.check_output(look)
    try:
        predicted, result = converge(host, check=True), converge(host)
        assert result["failed"]
        assert {problem.split(" ")[1] for problem in result["problems"]} == set(PLANTED), result["msg"]
        assert {problem.split(" ")[0] for problem in result["problems"]} == {"unsafe-path:"}
        assert host.check_output(look) == before
        assert subjects(predicted) == subjects(result)
        assert sorted(subjects(result)) == sorted([*OPENED, f"{STATE}/reviewer/workspaces"])
    finally:
        for _unused, _unused, close in PLANTED.values():
            host.run(close)


BENDS = ("chmod 0777", "chgrp nogroup", "chown root")


@pytest.mark.parametrize("bend", [pytest.param(bend, id=bend) for bend in BENDS])
def test_drift_is_predicted_repaired_and_gone(host: Host, mended: None, bend: str) -> None:
    obeyed = (f"{POLICY}/plan", f"{POLICY}/policy.json", "/etc/confined-slots/ledger.json")
    paths = [
        path
        for path in TREE
        if path not in obeyed and path.rpartition("/")[0] not in ("/etc/sudoers.d", "/etc/logrotate.d")
    ]
    host.run_expect([0], f"{bend} {' '.join(paths)}")
    drifted = bent(host, paths)
    assert len(drifted) >= 4
    predicted = converge(host, check=True)
    assert bent(host, paths) == drifted
    result = converge(host)
    assert not result["failed"], result
    assert sorted(subjects(predicted)) == sorted(subjects(result)) == sorted(drifted)
    assert bent(host, paths) == []


def test_what_is_missing_is_made_and_what_a_slot_has_below_is_left(host: Host, mended: None) -> None:
    as_slot(host, f"cd {STATE}/coder/home; mkdir -m 777 .config; touch .config/own; chmod 666 .config/own")
    host.run_expect([0], f"rm -r {STATE}/coder/workspaces/review {RECORDS} {STATE}/coder/homes/shell")
    result = converge(host)
    assert subjects(result) == [f"{STATE}/coder/workspaces/review", f"{STATE}/coder/homes/shell", RECORDS]
    assert owner_of(host, f"{STATE}/coder/home/.config/own") == "slot-coder:slot-coder 666"


def test_the_run_directories_come_back_at_boot(host: Host) -> None:
    host.run_expect([0], "rmdir /run/confined-slots/build-er")
    host.run_expect([0], "systemd-tmpfiles --create /etc/tmpfiles.d/confined-slots.conf")
    assert owner_of(host, "/run/confined-slots/build-er") == "root:root 711"


@pytest.mark.parametrize(
    ("bend", "mend", "says"),
    [
        pytest.param("gpasswd -a slot-coder docker", "gpasswd -d slot-coder docker", "groups than its own", id="group"),
        pytest.param("setfacl -m u:slot-coder:rw {0}", "setfacl -b {0}", "can open /run/docker.sock", id="acl"),
        pytest.param("chmod 0666 {0}", "chmod 0660 {0}", "can open /run/docker.sock", id="mode"),
    ],
)
def test_rd08_a_slot_that_can_open_the_rootful_daemons_socket_is_refused(
    host: Host, bend: str, mend: str, says: str
) -> None:
    socket = "/run/docker.sock"
    listen = f"import socket; socket.socket(socket.AF_UNIX).bind('{socket}')"
    host.run_expect(
        [0], f"getent group docker || groupadd --system docker; rm -f {socket}; python3 -c {shlex.quote(listen)}"
    )
    host.run_expect([0], f"chgrp docker {socket}; chmod 0660 {socket}")
    try:
        assert not converge(host)["failed"]
        host.run_expect([0], bend.format(socket))
        result = converge(host)
        assert result["failed"]
        assert "rootful-docker-reachable: slot-coder" in result["msg"]
        assert says in result["msg"]
    finally:
        host.run_expect([0], mend.format(socket))
        host.run_expect([0], f"rm {socket}")


@pytest.mark.parametrize("locale", ["POSIX", "tr_TR.UTF-8", "no_SUCH"])
def test_an07_the_locale_of_the_host_changes_nothing(host: Host, mended: None, locale: str) -> None:
    umlaut = f"{POLICY}/Übergröße"
    host.run_expect([0], f"touch {umlaut}; chown root:slot-coder {umlaut}; chmod 0600 {umlaut}")
    try:
        host.run_expect([0], f"printf 'LANG={locale}\\nLC_ALL={locale}\\n' > /etc/default/locale")
        assert subjects(converge(host)) == [umlaut]
        assert owner_of(host, umlaut) == "root:slot-coder 640"
    finally:
        host.run_expect([0], f"rm -f /etc/default/locale {umlaut}")


@pytest.fixture
def shared_log_directory(host: Host) -> collections.abc.Iterator[None]:
    """Have /var/log as Ubuntu has it: root:syslog 0775; and fresh records."""
    host.run_expect([0], "getent group syslog || groupadd --system syslog")
    was = host.check_output("stat -c '%G %a' /var/log").split()
    host.run_expect([0], f"chgrp syslog /var/log; chmod 0775 /var/log; cp -a {RECORDS} /run/records-of-the-tests")
    yield
    host.run_expect(
        [0],
        f"rm -f {RECORDS}*; mv /run/records-of-the-tests {RECORDS}; chgrp {was[0]} /var/log; chmod {was[1]} /var/log",
    )


def test_lg01_the_records_are_rotated_twice_and_written_on(
    host: Host, shared_log_directory: None, mended: None
) -> None:
    assert not converge(host)["failed"]
    script = f"""
        set -e; exec 9>> {RECORDS}; echo first >&9
        {ROTATE} /etc/logrotate.d/confined-slots; echo late >&9; echo second >> {RECORDS}
        {ROTATE} /etc/logrotate.d/confined-slots; echo third >> {RECORDS}
    """
    rotated = host.run_expect([0], script)
    assert "error" not in rotated.stderr
    assert host.check_output(f"cat {RECORDS} {RECORDS}.1") == "third\nsecond"
    assert host.check_output(f"zcat {RECORDS}.2.gz | tail -n 2") == "first\nlate"
    for name in ("", ".1", ".2.gz"):
        assert owner_of(host, f"{RECORDS}{name}") == "root:slot-coder 640"
    assert owner_of(host, "/var/log") == "root:syslog 775"
    assert converge(host)["changed"] is False


def test_lg01_a_rotation_that_is_skipped_would_have_been_noticed(host: Host, shared_log_directory: None) -> None:
    host.run_expect(
        [0], f"sed '/su root root/d' /etc/logrotate.d/confined-slots > /run/rotation.conf; chmod 0770 {LOG}"
    )
    try:
        host.run_expect([0], f"echo first >> {RECORDS}")
        rotated = host.run(f"{ROTATE} /run/rotation.conf")
        assert "insecure permissions" in rotated.stderr
        assert not host.file(f"{RECORDS}.1").exists
    finally:
        host.run_expect([0], f"rm /run/rotation.conf; chmod 0750 {LOG}")


def test_lg01_old_records_go_and_large_ones_are_rotated_early(host: Host, shared_log_directory: None) -> None:
    keep = 8
    turn = f"i=$((i + 1)); echo $i >> {RECORDS}; {ROTATE} /etc/logrotate.d/confined-slots"
    script = f"i=0; while [ $i -lt {keep + 4} ]; do {turn}; done"
    host.run_expect([0], script)
    assert int(host.check_output(f"ls {LOG} | wc -l")) == keep + 1
    host.run_expect([0], f"head -c 17000000 /dev/zero >> {RECORDS}")
    host.run_expect([0], f"{ROTATE.replace('--force ', '')} /etc/logrotate.d/confined-slots")
    assert host.file(RECORDS).size == 0


def test_lg01_the_systems_own_run_of_logrotate_takes_the_slots_in(host: Host) -> None:
    assert host.service("logrotate.timer").is_enabled
    assert host.service("logrotate.timer").is_running
    looked = host.run_expect([0, 1], "logrotate --debug /etc/logrotate.conf")
    assert f"considering log {RECORDS}" in looked.stderr
    assert not [line for line in looked.stderr.splitlines() if "error" in line and "confined-slots" in line]


def as_operator(host: Host, *words: str, environment: str = "") -> t.Any:
    """Run sudo as the operator's account with these words."""
    command = " ".join(shlex.quote(word) for word in ("sudo", "--non-interactive", *words))
    return host.run("setpriv --reuid=oper --regid=oper --init-groups sh -c %s", f"{environment} {command}")


SLOTCTL = "/usr/local/sbin/slotctl"
REFUSED = ("a password is required", "not allowed", "not permitted")

ATTACKS = [
    pytest.param([SLOTCTL, "release", "list"], id="another subcommand"),
    pytest.param([SLOTCTL, "release", "rollback"], id="roll back"),
    pytest.param([SLOTCTL, "approve", "coder"], id="approve"),
    pytest.param([SLOTCTL, "run\napprove", "coder"], id="approve after a line break"),
    pytest.param([SLOTCTL, "preflight", "coder", "--", "x"], id="words for a CLI that does not run"),
    pytest.param([SLOTCTL, "health", "--textfile=x"], id="a file of root's where the operator stands"),
    pytest.param([SLOTCTL, "health", "--stat=x"], id="the same by a shortened option"),
    pytest.param([SLOTCTL, "health", "--options", "x"], id="a file that decides"),
    pytest.param([SLOTCTL, "session-ended", "coder", "x"], id="internal subcommand"),
    pytest.param([SLOTCTL], id="no subcommand"),
    pytest.param([SLOTCTL, "--json", "list"], id="option first"),
    pytest.param([SLOTCTL, "list\nrelease"], id="line break in the subcommand"),
    pytest.param([SLOTCTL, "list\n"], id="line break after the subcommand"),
    pytest.param([SLOTCTL, "list", "x\nrelease list"], id="line break in an argument"),
    pytest.param([SLOTCTL, "list", ""], id="empty argument"),
    pytest.param([SLOTCTL, "list; release"], id="shell in the subcommand"),
    pytest.param([SLOTCTL, "status", "coder;id"], id="shell in an argument"),
    pytest.param([SLOTCTL, "status", "../coder"], id="path as a slot"),
    pytest.param([SLOTCTL, "status", "*"], id="pattern"),
    pytest.param([SLOTCTL, "run", "coder", "/bin/sh"], id="path without --"),
    pytest.param([SLOTCTL, "run", "-- --json"], id="options after a false --"),
    pytest.param([SLOTCTL, "listen"], id="longer word"),
    pytest.param(["-E", SLOTCTL, "list"], id="environment kept"),
    pytest.param(["LD_PRELOAD=/tmp/x.so", SLOTCTL, "list"], id="variable set"),
    pytest.param(["PYTHONPATH=/tmp", SLOTCTL, "list"], id="Python's variable set"),
    pytest.param(["-u", "slot-coder", SLOTCTL, "list"], id="as a slot"),
    pytest.param(["-g", "slot-coder", SLOTCTL, "list"], id="in a slot's group"),
    pytest.param(["-D", "/tmp", SLOTCTL, "list"], id="another directory"),
    pytest.param(["-R", "/tmp", SLOTCTL, "list"], id="another root"),
    pytest.param(["-C", "9", SLOTCTL, "list"], id="descriptors kept"),
    pytest.param(["-s", SLOTCTL, "list"], id="shell"),
    pytest.param(["-i", SLOTCTL, "list"], id="login"),
    pytest.param(["/run/evil/slotctl", "list"], id="another file of that name"),
    pytest.param(["/opt/confined-slots/current/bin/slot-launcher", "x"], id="another program"),
    pytest.param(["sh", "-c", "id"], id="a shell"),
]


@pytest.fixture(scope="module")
def evil(host: Host) -> collections.abc.Iterator[None]:
    """Have a program of the operator's own called slotctl."""
    host.run_expect(
        [0],
        "mkdir -m 755 /run/evil; printf '#!/bin/sh\\necho evil\\n' > /run/evil/slotctl; chmod 755 /run/evil/slotctl",
    )
    yield
    host.run_expect([0], "rm -r /run/evil")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["list"], id="list"),
        pytest.param(["list", "--json"], id="option"),
        pytest.param(["status", "coder"], id="status"),
        pytest.param(["policy", "build-er", "--json"], id="policy"),
        pytest.param(["binds", "coder"], id="binds"),
        pytest.param(["sessions", "coder", "--most", "3"], id="sessions"),
        pytest.param(["stop", "coder"], id="stop"),
        pytest.param(["preflight", "coder", "--workspace", "review"], id="preflight"),
        pytest.param(["health", "coder", "--check", "account", "--json"], id="health"),
        pytest.param(["run", "coder", "--prompt", "true # ü\n# /etc; $(id) *"], id="run with any prompt"),
        pytest.param(["run", "coder", "--workspace=review", "--", "-c", "true"], id="run"),
        pytest.param(["run", "coder", "--", "-c", "true # ü\n# /etc; $(id) *"], id="run with any words for the CLI"),
    ],
)
def test_operators_may(host: Host, words: list[str]) -> None:
    done = as_operator(host, SLOTCTL, *words)
    assert done.rc == 0, done.stderr


@pytest.mark.parametrize("words", ATTACKS)
def test_operators_may_not(host: Host, evil: None, words: list[str]) -> None:
    refused = as_operator(host, *words)
    assert refused.rc != 0
    assert refused.stdout == ""
    assert any(text in refused.stderr for text in REFUSED), refused.stderr


def test_blanks_in_one_argument_get_past_sudo_and_no_further(host: Host) -> None:
    refused = as_operator(host, SLOTCTL, "run coder", "--", "-c", "true")
    assert refused.rc == 2
    assert "invalid choice" in refused.stderr


def test_slotctl_runs_from_its_own_place_however_it_is_called(host: Host, evil: None) -> None:
    done = as_operator(host, "slotctl", "list", environment="PATH=/run/evil:/usr/bin")
    assert (done.rc, "evil" in done.stdout) == (0, False)


@pytest.fixture
def another_rule(host: Host) -> collections.abc.Iterator[collections.abc.Callable[[str], None]]:
    """Return a function that adds a rule of the test's own to sudo's."""
    path = "/etc/sudoers.d/zz-tests"
    yield (
        lambda rule: host.run_expect([0], f"umask 0337; echo {shlex.quote(rule)} > {path}; visudo -cf {path}") and None
    )
    host.run_expect([0], f"rm -f {path}")


def test_of_the_callers_environment_only_the_terminals_kind_arrives(
    host: Host, another_rule: collections.abc.Callable[[str], None]
) -> None:
    defaults = host.check_output("sed -n 's/^Defaults![^ ]* //p' /etc/sudoers.d/confined-slots | sort -u")
    another_rule(f"Defaults!/usr/bin/env {defaults}\noper ALL = (root) NOPASSWD: NOSETENV: /usr/bin/env")
    given = "TERM=xterm COLORTERM=truecolor LANG=de_DE.UTF-8 LC_ALL=tr_TR.UTF-8 EVIL=1 DISPLAY=:0 BASH_ENV=/x"
    done = as_operator(host, "/usr/bin/env", environment=given)
    assert done.rc == 0, done.stderr
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert {"TERM", "COLORTERM"} <= names
    assert not names & {"LANG", "LC_ALL", "EVIL", "DISPLAY", "BASH_ENV"}


@pytest.mark.parametrize(
    "words", [pytest.param(["release", "list"], id="subcommand"), pytest.param(["list\nrelease"], id="line break")]
)
def test_a_rule_with_a_wildcard_would_have_been_noticed(
    host: Host, another_rule: collections.abc.Callable[[str], None], words: list[str]
) -> None:
    another_rule(f"oper ALL = (root) NOPASSWD: {SLOTCTL} *")
    done = as_operator(host, SLOTCTL, *words)
    assert not any(text in done.stderr for text in REFUSED)


def test_a_slots_account_may_run_nothing_by_sudo(host: Host) -> None:
    refused = as_slot(host, f"sudo -n {SLOTCTL} list")
    assert refused.rc != 0
    assert any(text in refused.stderr for text in REFUSED)
