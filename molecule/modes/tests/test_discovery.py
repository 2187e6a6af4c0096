# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""PL-06: a discovery is a session with every guard, seen as it happens, whose record proposes and grants nothing."""

from __future__ import annotations

import collections.abc
import json
import shlex
import typing as t

import pytest
from waiting import until

if t.TYPE_CHECKING:
    from conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

DISCOVERIES = "/var/lib/confined-slots/discoveries"
WORKSPACE = "/var/lib/confined-slots/slots/{}/workspaces/main"
SECRET = "what-stands-in-the-secret"
WIDE, NARROW = "/srv/of-the-tests", "/srv/of-the-tests/file"


@pytest.fixture(autouse=True)
def something_outside(operator: Operator) -> collections.abc.Iterator[None]:
    """Have a directory on the host that no slot sees, and no discovery from before."""
    operator.do(f"mkdir -p {WIDE}; echo {SECRET} > {NARROW}; chmod -R go=rX {WIDE}; rm -rf {DISCOVERIES}/*/*")
    yield
    operator.do(f"rm -rf {WIDE} {WORKSPACE.format('kept')}/* {WORKSPACE.format('loose')}/*")


def discover(operator: Operator, slot: str, script: str) -> t.Any:
    """Run a script in a session that is traced, and return how that ended."""
    return operator.host.run(f"{shlex.join(['slotctl', 'discover', slot, '--', '-c', script])} < /dev/null")


def in_background(slot: str, script: str) -> str:
    """Return shell that begins to discover a session; what it says, and its exit status, will be in /run/said."""
    return f"(slotctl discover {slot} -- -c {shlex.quote(script)} < /dev/null 2>&1; echo $?) > /run/said &"


def evidence(operator: Operator, slot: str) -> str:
    """Return the directory of the slot's only discovery."""
    (found,) = operator.do(f"ls -d {DISCOVERIES}/{slot}/*").split()
    return found


def candidate(operator: Operator, slot: str) -> dict[str, t.Any]:
    """Return what the slot's only discovery comes to."""
    found: dict[str, t.Any] = json.loads(operator.do(f"slotctl review {slot} --json"))
    return found


def partial(operator: Operator, slot: str, why: str) -> None:
    """Assert that the slot's only discovery is partial because of that, and that nothing can be made of it."""
    found = candidate(operator, slot)
    assert not found["complete"] and any(why in fault for fault in found["faults"]), found["faults"]
    for command in ("review", "replay"):
        done = operator.on_terminal(f"slotctl {command} {slot}", slot)
        assert done.rc == 125 and "discovery-incomplete" in done.stdout and "type the slot's name" not in done.stdout
    assert not operator.host.file(f"{evidence(operator, slot)}/overlay.yml").exists


def in_hex(text: str) -> str:
    """Return text as the trace spells it."""
    return "".join(rf"\x{byte:02x}" for byte in text.encode())


@pytest.mark.parametrize("slot", ["loose", "kept"])
def test_pl_06_a_secret_is_seen_as_a_path_and_its_content_is_in_no_evidence(operator: Operator, slot: str) -> None:
    place = f"{WORKSPACE.format(slot)}/moment"
    # In arguments, environment, a file's content and standard input, and read for a moment only.
    script = f"echo {SECRET} > moment; T={SECRET} /bin/cat moment moment; rm moment; exec /bin/true {SECRET}"
    assert discover(operator, slot, script).stdout == f"{SECRET}\n" * 2
    directory = evidence(operator, slot)
    assert operator.do(f"stat -c '%a %U' {directory} {directory}/*") == "\n".join(["700 root", *["600 root"] * 2])
    assert operator.host.run("grep -qF %s %s", in_hex(place), f"{directory}/trace").rc == 0, "its name is there"
    for text in (SECRET, in_hex(SECRET)):
        assert operator.host.run("grep -rqaF %s %s", text, directory).rc == 1, "its content is not"
    assert operator.as_slot(slot, f"ls {directory} || cat {directory}/trace || echo >> {directory}/trace").rc != 0


@pytest.mark.parametrize("slot", ["loose", "kept"])
def test_pl_06_guarded_paths_stay_unread_while_they_are_discovered(operator: Operator, slot: str) -> None:
    guarded = "/etc/ssh/ssh_config"
    assert operator.as_slot(slot, f"cat {guarded}").rc == 0, "only the guard keeps it from that"
    script = f"cat {guarded} /home/oper/.bashrc /etc/confined-slots/ledger.json"
    assert discover(operator, slot, f"{script}; ls /root").stdout == ""
    tried = {
        word for each in ("wanted", "barred") for entry in candidate(operator, slot)[each] for word in entry["tried"]
    }
    assert {f"read {guarded}: ENOENT", "read /home/oper/.bashrc: ENOENT"} <= tried


@pytest.mark.parametrize("slot", ["loose", "kept", "strict"])
def test_a_traced_session_has_the_very_view_of_any_other(operator: Operator, slot: str) -> None:
    operator.policy(operator.approved(operator.slots()))
    looks = (
        *("ls -a / /etc /home /root /run /opt /var/lib 2>&1", "id", "env | cut -d= -f1 | sort", "ls /proc/self/fd"),
        "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Sig(Ign|Blk))' /proc/self/status",
        "cut -d' ' -f4- /proc/self/mountinfo | sed \"s/$CONFINED_SESSION//g; s/size=[0-9]*k//; s/bindfile[^ /]*//\"",
    )
    script = "; ".join(looks)
    assert discover(operator, slot, script).stdout == operator.session(slot, script).stdout != ""


def test_pl_06_a_killed_tracer_leaves_a_partial_trace_and_a_session_under_its_guards(operator: Operator) -> None:
    script = f"touch begun; until test -e go; do sleep 0.1; done; cat {NARROW}"
    workspace = WORKSPACE.format("kept")
    begun = until(f"test -e {workspace}/begun")
    said = operator.do(
        f"rm -f {workspace}/*; {in_background('kept', script)} {begun};"
        f" kill -KILL $(pgrep -x strace); touch {workspace}/go; wait; cat /run/said; rm /run/said"
    )
    assert f"cat: {NARROW}: No such file or directory" in said and said.endswith("\n125")
    assert "discovery-incomplete" in said and "strace was killed by signal 9" in said
    partial(operator, "kept", "strace was killed by signal 9")


PYTHON = "import ctypes, os; call = ctypes.CDLL(None); {}"


@pytest.mark.parametrize(
    ("does", "why"),
    [
        pytest.param("call.ptrace(0, 0, 0, 0)", "ptrace", id="asks to be traced by another"),
        pytest.param(
            "child = call.syscall(56, 0x00800011, 0, 0, 0, 0); child or os._exit(0); os.waitpid(child, 0)",
            "cannot be traced",
            id="hides a child",
        ),
    ],
)
def test_pl_06_what_refuses_to_be_traced_makes_the_trace_partial(operator: Operator, does: str, why: str) -> None:
    done = discover(operator, "kept", f"python3 -c {shlex.quote(PYTHON.format(does))}")
    assert done.rc == 125 and "slotctl: discovery-incomplete: " in done.stderr
    partial(operator, "kept", why)


def test_a_program_that_makes_itself_undumpable_is_seen_all_the_same(operator: Operator) -> None:
    does = f"call.prctl(4, 0, 0, 0, 0); print(call.prctl(3, 0, 0, 0, 0)); os.path.exists({NARROW!r})"
    assert discover(operator, "kept", f"python3 -c {shlex.quote(PYTHON.format(does))}").stdout == "0\n"
    found = candidate(operator, "kept")
    assert found["complete"] and NARROW in [each["path"] for each in found["wanted"]]


@pytest.mark.parametrize(
    ("bend", "why"),
    [
        pytest.param("truncate -s -40 {0}/trace", "not whole", id="a line that was cut"),
        pytest.param("sed -i '$d' {0}/trace", "not the one that was recorded", id="a line that is missing"),
        pytest.param("sed -i '$p' {0}/trace", "not the one that was recorded", id="a line more"),
        pytest.param(
            "python3 -c \"import json; p = '{0}/about.json'; a = json.load(open(p)); del a['tracer'];"
            " json.dump(a, open(p, 'w'))\"",
            "slotctl was killed",
            id="no end",
        ),
    ],
)
def test_pl_06_evidence_that_is_not_whole_comes_to_nothing(operator: Operator, bend: str, why: str) -> None:
    assert discover(operator, "kept", f"cat {NARROW}; true").rc == 0
    assert candidate(operator, "kept")["complete"]
    operator.do(bend.format(evidence(operator, "kept")))
    partial(operator, "kept", why)


def test_a_full_disk_makes_the_trace_partial(operator: Operator) -> None:
    script = (
        "touch begun; until test -e go; do sleep 0.1; done; for i in 1 2 3 4 5 6 7 8 9; do /bin/ls / > /dev/null; done"
    )
    workspace, disk = WORKSPACE.format("kept"), f"{DISCOVERIES}/kept"
    begun = until(f"test -e {workspace}/begun")
    operator.do(f"rm -f {workspace}/*; mount -t tmpfs -o size=300M,mode=0700 none {disk}")
    try:
        said = operator.do(
            f"{in_background('kept', script)} {begun};"
            f" {until(f'mount -o remount,size=$(($(df -k --output=used {disk} | tail -1) + 8))k {disk}')};"
            f" touch {workspace}/go; wait;"
            f" mount -o remount,size=300M {disk}; cat /run/said"
        )
        assert said.endswith("\n125") and "discovery-incomplete" in said
        partial(operator, "kept", "its end was not recorded")
    finally:
        operator.do(f"umount {disk}")


def test_no_room_for_a_trace_is_refused_before_anything_starts(operator: Operator) -> None:
    disk = f"{DISCOVERIES}/kept"
    operator.do(f"mount -t tmpfs -o size=8M,mode=0700 none {disk}")
    try:
        done = discover(operator, "kept", "touch started")
    finally:
        operator.do(f"umount {disk}")
    assert done.rc == 125 and "slotctl: space-low: " in done.stderr
    assert not operator.host.file(f"{WORKSPACE.format('kept')}/started").exists


def test_without_strace_a_discovery_is_refused_and_names_the_package(operator: Operator) -> None:
    operator.do("mv /usr/bin/strace /usr/bin/strace-away")
    try:
        done = discover(operator, "kept", "touch started")
    finally:
        operator.do("mv /usr/bin/strace-away /usr/bin/strace")
    assert done.rc == 125
    assert "discovery-incomplete: /usr/bin/strace is not there" in done.stderr and "the package strace]" in done.stderr
    assert not operator.host.file(f"{WORKSPACE.format('kept')}/started").exists


def test_a_tracer_that_cannot_attach_itself_ends_the_session_before_it_begins(operator: Operator) -> None:
    failing = r"printf '#!/bin/sh\necho it may not >&2; exit 1\n' > /usr/bin/strace; chmod 0755 /usr/bin/strace"
    operator.do(f"mv /usr/bin/strace /usr/bin/strace-away; {failing}")
    try:
        done = discover(operator, "kept", "touch started")
    finally:
        operator.do("mv /usr/bin/strace-away /usr/bin/strace")
    assert (
        done.rc == 125 and "strace could not attach itself; strace ended with 1; strace said: it may not" in done.stderr
    )
    assert not operator.host.file(f"{WORKSPACE.format('kept')}/started").exists
    assert operator.do("slotctl stop kept") == "no session runs"


def test_names_that_a_session_makes_up_forge_nothing_and_are_shown_escaped(operator: Operator) -> None:
    forged = '/srv/x\n1 openat(AT_FDCWD, "/srv/forged", O_RDONLY) = 3\r\x1b[2J'
    operator.do(f"mkdir -p {shlex.quote(forged)} && rm -rf {shlex.quote(forged)}")
    real = f"{WIDE}/\n1 +++ exited with 0 +++\x1b[2J\x9b\u202e"
    operator.do(f"touch {shlex.quote(real)}")
    script = f"cat {shlex.quote(forged)}; cat {shlex.quote(real)}; exit 3"
    assert discover(operator, "kept", script).rc == 3
    found = candidate(operator, "kept")
    assert found["complete"] and [each["path"] for each in found["wanted"] if WIDE in each["path"]] == [real]
    for command in ("review", "replay"):
        shown = operator.do(f"slotctl {command} kept")
        assert "forged" not in shown and not any(letter in shown for letter in "\x1b\x9b\r\u202e")
        assert "1 +++ exited" not in [line[:12] for line in shown.splitlines()]


def test_pl_06_no_keeps_everything_as_it_was_and_yes_only_writes_a_proposal(operator: Operator) -> None:
    before = operator.trusted()
    done = operator.on_terminal(f"slotctl discover kept -- -c 'cat {NARROW}'", "no")
    assert done.rc == 1 and "no overlay was written; the evidence is kept" in done.stdout
    directory = evidence(operator, "kept")
    assert operator.do(f"ls {directory}").split() == ["about.json", "trace"]
    assert operator.on_terminal("slotctl review kept", "kept").rc == 0
    proposed = operator.do(f"cat {directory}/overlay.yml")
    assert f'- source: "{NARROW}"' in proposed and operator.do("slotctl replay kept") == proposed
    assert operator.trusted() == before
    assert operator.session("kept", f"cat {NARROW}").rc == 1, "what was proposed is not granted"


def test_a_proposal_compiles_once_a_person_has_said_why(operator: Operator) -> None:
    assert discover(operator, "kept", f"cat {NARROW}; true").rc == 0
    (bind,) = [each for each in candidate(operator, "kept")["wanted"] if each["path"] == NARROW]
    wanted = {"source": bind["path"], "mode": bind["mode"], "reason": ""}
    slots = operator.slots()
    (kept,) = [each for each in slots if each["name"] == "kept"]
    kept["binds"] = [*kept["binds"], wanted]
    with pytest.raises(AssertionError, match="a bind without a reason does not compile"):
        operator.policy(slots)
    wanted["reason"] = "the tests look at it"
    operator.policy(slots)
    try:
        assert operator.said("kept", f"cat {NARROW}") == SECRET
    finally:
        operator.policy(operator.slots())


def test_a_candidate_is_made_of_what_was_kept_and_not_of_the_host_as_it_is(operator: Operator) -> None:
    assert discover(operator, "kept", f"cat {NARROW}; true").rc == 0
    first = operator.do("slotctl replay kept --json")
    operator.do(f"rm -r {WIDE}")
    assert operator.do("slotctl replay kept --json") == first


def test_a_discovery_is_on_record_and_only_the_newest_ten_stay(operator: Operator) -> None:
    old = [f"20200101t0000{number:02d}-00000000" for number in range(12)]
    operator.do(f"cd {DISCOVERIES}/kept && mkdir {' '.join(old)}")
    assert discover(operator, "kept", "true").rc == 0
    left = operator.do(f"ls {DISCOVERIES}/kept").split()
    assert len(left) == 10 and left[:9] == old[3:]
    record = json.loads(operator.do("tail -n 1 /var/log/confined-slots/kept/sessions.jsonl"))
    assert record["discovery"] is True and record["session"] == left[9]
