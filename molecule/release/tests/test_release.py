# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""LR-01, LR-02, LR-04, AN-11: a host always runs one whole release, and the one that its operator wants."""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess
import typing as t

import pytest
import testinfra.host
from ansible_collections.confined.slots.plugins.module_utils import _launch, _manifest
from waiting import soon

from .conftest import OPT, SESSION, packed_release

if t.TYPE_CHECKING:
    from .conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

# For each file of the release in turn: change it, try to start a session both ways, mend it, try again.
TAMPER = r"""
import json, os, pwd, subprocess
top = os.path.realpath("/opt/confined-slots/current")
account = pwd.getpwnam("slot-coder")
workspace = "/var/lib/confined-slots/slots/coder/workspaces/main"
launcher = [f"{top}/bin/slot-launcher", "--json", "/etc/confined-slots/slots.d/coder/plan", workspace, "s"]

def demote():
    os.setgroups([]); os.setgid(account.pw_gid); os.setuid(account.pw_uid)

def start(words, **options):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **options)
    return [done.returncode, done.stdout + done.stderr]

def both():
    return [start([f"{top}/bin/slotctl", "run", "coder", "--", "-c", "true"]), start(launcher, preexec_fn=demote)]

outcomes = {"untouched": both()}
for parent, directories, names in os.walk(top):
    for name in sorted(names):
        path = os.path.join(parent, name)
        content, mode = open(path, "rb").read(), os.stat(path).st_mode & 0o7777
        shown = os.path.relpath(path, top)
        with open(path, "ab") as file:
            file.write(b"\n")
        outcomes[f"{shown} appended"] = both()
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, mode | 0o020)
        outcomes[f"{shown} writable"] = both()
        os.chmod(path, mode)
for name in ("lib/extra.py", "bin/extra"):
    open(f"{top}/{name}", "w").close()
    outcomes[name] = both()
    os.unlink(f"{top}/{name}")
outcomes["mended"] = both()
print(json.dumps(outcomes))
"""

# The same for the plan of a slot, which only its hash and its owner protect.
TAMPER_PLAN = r"""
import json, os, subprocess
path = "/etc/confined-slots/slots.d/coder/plan"
content, found = open(path, "rb").read(), os.stat(path)

def start():
    words = ["/opt/confined-slots/current/bin/slotctl", "run", "--json", "coder", "--", "-c", "true"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return [done.returncode, done.stdout + done.stderr]

outcomes = {"untouched": start()}
for position in [*range(0, len(content), max(1, len(content) // 40)), len(content) - 1]:
    with open(path, "wb") as file:
        file.write(content[:position] + bytes([content[position] ^ 1]) + content[position + 1:])
    outcomes[f"byte {position}"] = start()
for length in (0, 1, len(content) // 2, len(content) - 1):
    with open(path, "wb") as file:
        file.write(content[:length])
    outcomes[f"cut to {length}"] = start()
with open(path, "wb") as file:
    file.write(content + b"bind\0rw\0/\0/\0")
outcomes["appended"] = start()
with open(path, "wb") as file:
    file.write(content)
os.chmod(path, 0o660); outcomes["writable by the slot"] = start(); os.chmod(path, found.st_mode & 0o7777)
os.chown(path, found.st_gid, found.st_gid); outcomes["the slot's own"] = start(); os.chown(path, 0, found.st_gid)
os.rename(path, path + ".away"); outcomes["missing"] = start()
os.symlink(path + ".away", path); outcomes["a link"] = start(); os.unlink(path)
os.rename(path + ".away", path)
outcomes["mended"] = start()
print(json.dumps(outcomes))
"""

# What the module does with an archive, so that it can be ended anywhere: `main` is the process that is killed.
UPGRADE = r"""
import sys
from confined_slots import _release
archive, version, source = sys.argv[1:]
with _release.lock():
    found = _release.find()
    origin = _release.origin_on_host(source)
    with _release.incoming("/opt/confined-slots/releases") as directory:
        wanted = _release.Release(_release.build(archive, version, origin, directory), version, origin=origin)
        _release.apply(_release.plan(wanted, found, 5, lambda _: set()), found, directory)
"""

# Kills an upgrade at each of its calls that change what counts, one in each run, beginning again from the same state.
KILL = r"""
import itertools, json, os, shutil, subprocess, sys
before = os.readlink("/opt/confined-slots/current")
outcomes = []
for call in ("flock", "syncfs", "fsync", "symlink", "rename"):
    for number in itertools.count(1):
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}"]
        upgrade = ["/usr/bin/python3", "-IB", "/root/upgrade.py", "/root/release.tar.gz", "9.4.0", sys.argv[1]]
        code = subprocess.run(["strace", "-o", "/dev/null", *inject, *upgrade], capture_output=True).returncode
        after = os.readlink("/opt/confined-slots/current")
        session = ["/opt/confined-slots/current/bin/slotctl", "run", "coder", "--", "-c", "echo it works"]
        said = subprocess.run(session, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout.strip()
        outcomes.append([f"{call} {number}", code, os.path.basename(after), said])
        if after != before:  # the switch was done, so begin again from before it
            os.symlink(before, "/opt/confined-slots/.current-0")
            os.rename("/opt/confined-slots/.current-0", "/opt/confined-slots/current")
        for name in os.listdir("/opt/confined-slots/releases"):
            if name.startswith("9.4.0-"):
                shutil.rmtree(f"/opt/confined-slots/releases/{name}")
        if code == 0 or number > 20:
            break
print(json.dumps(outcomes))
"""


def test_every_change_of_every_file_of_the_release_is_refused_and_named(operator: Operator) -> None:
    outcomes: dict[str, list[tuple[int, str]]] = json.loads(operator.python(TAMPER))
    for how in ("untouched", "mended"):
        (by_slotctl, _unused), (by_launcher, said) = outcomes.pop(how)
        # alone the launcher has no session, which it says only once the release is found to be whole
        assert by_slotctl == 0 and (by_launcher, "launcher-tampered" in said) == (125, False), outcomes
    assert len(outcomes) > 60
    compiled = tuple(f"lib/confined_slots/__pycache__/{name}." for name in _launch.HOT)
    executed = (_manifest.MANIFEST, _manifest.LAUNCHER, _manifest.SECCOMP, *compiled)
    unseen = {
        how: found
        for how, found in outcomes.items()
        # slotctl looks at all of the release, the launcher once more at what it executes
        for code, said in (found if how.startswith(executed) else found[:1])
        if code != 125 or "launcher-tampered" not in said or how.partition(" ")[0] not in said
    }
    assert unseen == {}


def test_every_change_of_a_plan_is_refused(operator: Operator) -> None:
    outcomes: dict[str, tuple[int, str]] = json.loads(operator.python(TAMPER_PLAN))
    assert outcomes.pop("untouched")[0] == 0 and outcomes.pop("mended")[0] == 0
    assert json.loads(outcomes.pop("missing")[1].splitlines()[-1])["refusal"] == "policy-missing"
    assert len(outcomes) > 40
    wrong = {
        how: (code, said)
        for how, (code, said) in outcomes.items()
        if code != 125 or not any(f'"{refusal}"' in said for refusal in ("policy-tampered", "policy-invalid"))
    }
    assert wrong == {}


def test_a_converge_sets_a_tampered_release_aside_and_makes_it_anew(operator: Operator) -> None:
    name = operator.current()
    operator.do(f"echo '# evil' >> {OPT}/current/lib/confined_slots/_launch.py")
    predicted = operator.module("release", check=True)
    done = operator.release()
    assert [step["action"] for step in done["steps"]] == ["set aside", "install"]
    assert done["steps"] == predicted["steps"] and done["release"] == predicted["release"] == name
    assert operator.current() == name
    aside = [one for one in operator.names() if one.startswith(f".tampered-{name}-")]
    assert operator.do(f"tail -n 1 {OPT}/releases/{aside[0]}/lib/confined_slots/_launch.py") == "# evil"
    assert operator.release()["changed"] is False


def test_check_mode_predicts_the_name_and_the_switch_and_does_nothing(operator: Operator) -> None:
    before, current = operator.names(), operator.current()
    predicted = operator.module("release", check=True, version="9.0.1")
    assert operator.names() == before and operator.current() == current
    done = operator.release("9.0.1")
    assert predicted["changed"] and predicted["release"] == done["release"] == operator.current()
    assert predicted["steps"] == done["steps"]


def test_lr_02_lr_04_a_session_keeps_its_release_while_others_are_switched_to_and_pruned(operator: Operator) -> None:
    old = operator.release("9.1.0")["release"]
    operator.do(f"setsid -f {OPT}/current/bin/slotctl run coder -- -c 'sleep 301' </dev/null >/dev/null 2>&1")
    running = "pgrep -u slot-coder -f '^sleep 301'"
    pid = soon(operator.host, running)
    try:
        for version in ("9.1.1", "9.1.2", "9.1.3"):
            assert operator.release(version, keep=1)["release"] == operator.current()
        assert old in operator.names(), "a release in use was pruned"
        assert operator.do(running) == pid
    finally:
        operator.do("pkill -u slot-coder -f '^sleep 301'")
        soon(operator.host, f"! pgrep -u slot-coder && ! pgrep -f '{old}/[b]in'")
    operator.release("9.1.3", keep=1)
    assert old not in operator.names()
    assert len([one for one in operator.names() if not one.startswith(".")]) == 2


def test_the_playbook_rolls_back_and_a_converge_restores(operator: Operator) -> None:
    first = operator.release("9.2.0")["release"]
    second = operator.release("9.2.1")["release"]
    operator.play("confined.slots.rollback")
    assert operator.current() == first
    listed = {one["name"]: one["withdrawn"] for one in operator.release("9.2.0")["releases"]}
    assert listed[second] and not listed[first]
    again = operator.release("9.2.1")
    assert {"subject": f"release {second}", "action": "restore"} in again["steps"]
    operator.play("confined.slots.rollback", rollback_target=first)
    assert operator.current() == first


def test_rolling_back_to_what_is_not_there_changes_nothing(operator: Operator) -> None:
    current = operator.current()
    failed = operator.module("release", state="rolled_back", target="9.9.9-000000000000")
    assert "there is no release 9.9.9-000000000000" in failed["msg"]
    assert operator.current() == current


def test_a_changed_bwrap_of_the_distribution_gives_a_new_release(operator: Operator) -> None:
    before = operator.current()
    operator.do("cp -a /usr/bin/bwrap /root/bwrap.kept && cp /usr/bin/bwrap /usr/bin/bwrap.new")
    operator.do("printf x >> /usr/bin/bwrap.new && mv /usr/bin/bwrap.new /usr/bin/bwrap")
    try:
        changed = operator.release()
        assert changed["release"] != before and operator.current() == changed["release"]
        assert operator.do(f"cmp {OPT}/current/bin/bwrap /usr/bin/bwrap") == ""
    finally:
        operator.do("mv /root/bwrap.kept /usr/bin/bwrap")
    back = operator.release()
    assert back["release"] == before and "install" not in [step["action"] for step in back["steps"]]


def test_an_old_bwrap_is_reported(operator: Operator, host: testinfra.host.Host) -> None:
    result = operator.release()
    version = host.check_output("bwrap --version").split()[-1]
    assert result["bwrap"]["version"] == version
    words = ["ansible", "-i", operator.inventory, "-m", "confined.slots.release", str(host.backend.host)]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ("CVE-2026-87766" in said.stdout + said.stderr) is (tuple(map(int, version.split(".")[:2])) < (0, 12))


def test_a_kill_at_any_step_leaves_the_release_that_was_current(operator: Operator, tmp_path: pathlib.Path) -> None:
    archive, source = packed_release("9.4.0", tmp_path)
    operator.send(archive, "/root/release.tar.gz")
    operator.do(f"cat > /root/upgrade.py <<'END'\nimport sys; sys.path.insert(0, {operator.core()!r})\n{UPGRADE}\nEND")
    current = operator.current()
    outcomes = json.loads(operator.python(KILL, source))
    for call, code, name, said in outcomes:  # a session works, wherever the upgrade was killed
        assert code in (-9, 0) and said == "it works", (call, outcomes)
        assert name == current or name.startswith("9.4.0-"), (call, outcomes)
    assert sum(code == -9 for _unused, code, _unused, _unused in outcomes) >= 8
    assert sum(code == 0 for _unused, code, _unused, _unused in outcomes) == 5
    operator.release()
    assert not [one for one in operator.names() if one.startswith(".incoming")]


def test_a_full_disk_leaves_the_release_that_was_current(operator: Operator) -> None:
    current = operator.current()
    kept = f"{OPT}.kept"
    operator.do(f"mv {OPT} {kept} && mkdir {OPT} && mount -t tmpfs -o size=8M,mode=0755 tmpfs {OPT}")
    try:
        # the current release only, so that there is little else in the small file system
        operator.do(
            f"mkdir {OPT}/releases && cp -a {kept}/releases/{current} {OPT}/releases/ && cp -a {kept}/current {OPT}/"
        )
        for free in (0, 16, 128, 384):
            operator.do(f"rm -f {OPT}/ballast")
            left = int(operator.do(f"df --output=avail -B1 {OPT} | tail -n 1"))
            operator.do(f"head -c {left - free * 1024} /dev/zero > {OPT}/ballast")
            result = operator.module("release", version="9.5.0")
            assert result["failed"], f"{free} KiB were enough"
            assert "No space left on device" in result["msg"] and "Traceback" not in json.dumps(result)
            assert operator.current() == current
            assert not [one for one in operator.names() if one.startswith(".")]
        operator.do(f"rm {OPT}/ballast")
        assert operator.release("9.5.0")["release"] == operator.current() != current
    finally:
        operator.do(f"umount {OPT} && rmdir {OPT} && mv {kept} {OPT}")
    assert operator.current() == current


def test_the_command_of_operators_leads_to_the_current_release(operator: Operator, host: testinfra.host.Host) -> None:
    assert host.file("/usr/local/sbin/slotctl").linked_to == f"{OPT}/releases/{operator.current()}/bin/slotctl"
    operator.do("rm /usr/local/sbin/slotctl")
    assert [step["action"] for step in operator.release()["steps"]] == ["link"]


def test_a_slot_can_read_no_more_of_a_release_than_it_needs_and_change_nothing(operator: Operator) -> None:
    tries = [f"echo x >> {OPT}/current/bin/slot-launcher", f"mv {OPT}/current {OPT}/x", f"touch {OPT}/releases/x"]
    for attempt in tries:
        assert operator.host.run(f"su -s /bin/sh slot-coder -c {shlex.quote(attempt)}").rc != 0, attempt
    assert operator.do(SESSION) == "it works"


@pytest.mark.parametrize("keep", [0, 101])
def test_a_number_of_releases_that_cannot_be_is_refused(operator: Operator, keep: int) -> None:
    assert "it can be 1 to 100" in operator.module("release", keep=keep)["msg"]
