# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""MO-03: what hangs, is killed, breaks or is missing is unknown and named, never ok, and costs no other check."""

from __future__ import annotations

import json
import shlex
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _health
from waiting import until

from .conftest import SLOTCTL, Operator, bad_of, state_of
from .table import HOME, WORKSPACE, as_slot

if t.TYPE_CHECKING:
    from .conftest import Json

testinfra_hosts = ["ansible://slot_hosts"]

# A file system whose server never answers: whoever looks there waits until he is killed.
HANG = f"""
import ctypes, os, pwd, time
entry = pwd.getpwnam("slot-patient")
server = os.open("/dev/fuse", os.O_RDWR)
about = f"fd={{server}},rootmode=40000,user_id={{entry.pw_uid}},group_id={{entry.pw_gid}},allow_other"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"hang", b"{WORKSPACE}", b"fuse", 0, about.encode()):
    raise OSError(ctypes.get_errno(), "mount")
open("/run/hangs", "w").close()
time.sleep(300)
"""
# Changes the checks as a fault in them would, and runs them.
BROKEN = """
import sys
sys.path.insert(0, "/opt/confined-slots/current/lib")
import os, time
from slotctl import cli, health
from slotctl.health import context
def hang(_context): time.sleep(300)
def die(_context): os.kill(os.getpid(), 9)
def leave(_context): sys.exit(0)
def say_nothing(_context): return None
def lie(_context): return True
def mistake(_context): raise AttributeError("x")
def mistype(_context): return context.Outcome("OK", "found")
faults = dict(hang=hang, die=die, leave=leave, say_nothing=say_nothing, lie=lie, mistake=mistake, mistype=mistype)
old = health.SLOT_CHECKS
health.SLOT_CHECKS = tuple(
    context.Check(each.id, each.about, faults[sys.argv[1]], 1) if each.id == "policy" else each for each in old
)
sys.exit(cli.main("/opt/confined-slots/current", ["health", "patient", *sys.argv[2:]]))
"""


@pytest.fixture
def hanging(operator: Operator) -> t.Iterator[None]:
    """Have the patient's workspace on a file system that does not answer."""
    if not operator.says("test -c /dev/fuse"):
        pytest.skip("needs /dev/fuse on the test host")
    operator.do(f"cat > /run/hang.py <<'END'\n{HANG}\nEND")
    operator.do(
        f"systemctl reset-failed hangs || true;"
        f" systemd-run --quiet --collect --unit=hangs python3 /run/hang.py; {until('test -e /run/hangs')}"
    )
    yield
    ended = until("! systemctl is-active --quiet hangs")
    operator.do(f"umount --lazy {WORKSPACE}; systemctl kill --signal=KILL hangs; {ended}; rm /run/hangs /run/hang.py")


def test_a_mount_that_hangs_is_unknown_and_every_other_check_has_its_result(hanging: None, operator: Operator) -> None:
    found = operator.health("patient signed --budget 300")
    states = bad_of(found)
    assert states["patient", "workspaces"] == states["patient", "space"] == states["patient", "slot-tree"] == "unknown"
    assert states["patient", "sandbox"] in ("unknown", "critical")
    assert not [one for one in states if one[0] == "signed"]
    assert state_of(found, "patient", "policy") == state_of(found, "patient", "records") == "ok"
    assert found["seconds"] < 300


def test_a_budget_that_is_used_up_leaves_the_rest_unknown(hanging: None, operator: Operator) -> None:
    found = operator.health("patient --check=space --check=quota --check=records --budget 2")
    states = bad_of(found)
    assert set(states) == {("patient", "space"), ("patient", "quota"), ("patient", "records")}
    assert set(states.values()) == {"unknown"}
    assert "budget" in json.dumps(found)


@pytest.mark.parametrize("fault", ["hang", "die", "leave", "say_nothing", "lie", "mistake", "mistype"])
def test_mo_03_a_check_with_a_fault_is_unknown_by_name_and_no_other_is(operator: Operator, fault: str) -> None:
    words = f"python3 -IS -c {shlex.quote(BROKEN)} {fault}"
    done = operator.host.run(f"{words} --json")
    assert done.rc == 1, done.stderr
    found = _health.check_report(json.loads(done.stdout))
    assert bad_of(found) == {("patient", "policy"): "unknown"}
    assert found["state"] == "unknown"
    (bad,) = (each for _slot, each in _health.complaints(found))
    assert "policy" in bad["found"] or fault in ("mistype", "lie", "say_nothing")
    assert operator.host.run(f"{words} --nagios").rc == 3


PLACES = "/run/confined-slots/patient /tmp /var/tmp /dev/shm"
LEFT = rf"find {PLACES} -mindepth 1 -maxdepth 1 -regex '/run/.*\|.*/confined-[^/]*'"


def test_probes_that_were_cut_short_leave_nothing_behind(operator: Operator) -> None:
    operator.do(f"{LEFT} > /run/left-before")
    probing = until("find /run/confined-slots/patient -name 'selftest-*.plan' -newer /run/left-before | grep -q .")
    operator.do(f"{SLOTCTL} health patient > /dev/null 2>&1 & {probing}; kill -KILL $!")
    operator.do(until("! pgrep -f '/bin/slotctl [h]ealth'"))
    operator.do(until(f"! {LEFT} | grep -vxFf /run/left-before"))


def test_what_runs_have_left_that_even_could_not_clean_up_goes_with_a_later_one(operator: Operator) -> None:
    old = "/dev/shm/confined-slots-selftest-old /run/confined-slots/patient/selftest-old"
    foreign = "/dev/shm/confined-slots-selftest-foreign"
    operator.do(f"mkdir {old}; touch {foreign}; touch -d '2 hours ago' {old} {foreign}")
    operator.health("patient --check=marker")
    assert operator.do(f"ls -d {old} {foreign} 2> /dev/null || true") == foreign
    operator.do(f"rm {foreign}")


@pytest.mark.parametrize(
    "name", ["$(touch pwned)", "a\\nb", "\\0033]0;evil\\0007", "-rf", "<img src=x onerror=alert(1)>", "\\0377\\0376"]
)
def test_hostile_names_of_files_are_text(operator: Operator, name: str) -> None:
    make = f'cd {HOME} && n=$(printf %b \'{name}\') && mkdir -p .local/bin && touch -- "$n" ".local/bin/$n"'
    try:
        operator.do(f"cat > /run/make <<'END'\n{make}\nEND\n{as_slot('sh /run/make')}")
        done = operator.host.run(f"{SLOTCTL} health patient --json; {SLOTCTL} health patient --all")
        assert done.rc == 0 and "\x1b" not in done.stdout and not operator.says("test -e /pwned -o -e /root/pwned")
        assert bad_of(operator.health("patient")) == {}
    finally:
        operator.do(f"rm -rf {HOME}/.local; find {HOME} -mindepth 1 -maxdepth 1 -type f -delete; rm -f /run/make")


def test_links_of_the_slots_lead_nowhere(operator: Operator) -> None:
    """A login that is a link to a file of root's is neither read nor told of."""
    operator.do(as_slot(f"mkdir -p {HOME}/.fake; ln -s /etc/shadow {HOME}/.fake/login.json; ln -s / {HOME}/all"))
    try:
        found = operator.health("patient")
        assert bad_of(found) == {}
        assert "root:" not in json.dumps(found)
    finally:
        operator.do(f"rm -r {HOME}/.fake {HOME}/all")


def test_a_login_that_cannot_be_json_is_no_reason_to_break(operator: Operator) -> None:
    operator.do(as_slot(f"mkdir -p {HOME}/.fake; head -c 100000 /dev/zero | tr \\\\000 [ > {HOME}/.fake/login.json"))
    try:
        assert state_of(operator.health("patient"), "patient", "login") == "ok"
    finally:
        operator.do(f"rm -r {HOME}/.fake")


def trusted(operator: Operator) -> str:
    """Return names, owners, modes, times and hashes of all that health looks at."""
    places = "/etc /opt/confined-slots /var/lib/confined-slots /var/log/confined-slots /run/confined-slots"
    listing = f"find {places} -xdev -printf '%p %u:%g %m %s %T@ %l\\n' | grep -v '^/run/confined-slots'"
    return operator.do(f"({listing}; find /etc /opt/confined-slots -xdev -type f -exec sha256sum {{}} +) | sort")


def test_looking_changes_nothing(operator: Operator) -> None:
    before = trusted(operator)
    report: Json = operator.health()
    assert report["checks"]
    lines = set(before.splitlines()) ^ set(trusted(operator).splitlines())
    # the probes prove that the workspace and the run directory can be written: a directory's own time tells of it
    assert {line.split()[0] for line in lines} <= {
        f"/var/lib/confined-slots/slots/{slot['slot']}/workspaces/{name}"
        for slot in report["slots"]
        for name in slot["about"]["workspaces"]
    } | {f"/var/lib/confined-slots/slots/{slot['slot']}/homes/{slot['about']['provider']}" for slot in report["slots"]}
