# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How each check's thing is broken and mended on a real host: a row for each, some have more.

MO-05 (explain, view, marker), LG-01 (rotation, records), LG-04 (state-size), RD-01 and RD-02 (subordinate-ids), RD-08
(docker-socket), LR-06 (foreign-programs), CR-01 (login) and ES-04 (abstract-sockets) are among them.
"""

from __future__ import annotations

import dataclasses
import typing as t

from operators import SCOPED
from waiting import until

from .conftest import Bad

STATE = "/var/lib/confined-slots/slots/patient"
WORKSPACE = f"{STATE}/workspaces/main"
HOME = f"{STATE}/homes/fake"
SIGNED = "/etc/confined-slots/slots.d/signed/approval"
PLAN = "/etc/confined-slots/slots.d/patient/plan"
POLICY = "/etc/confined-slots/slots.d/patient/policy.json"
CREDENTIAL = "/etc/confined-slots/credentials/patient/fake.env"
RECORDS = "/var/log/confined-slots/patient/sessions.jsonl"
RULES = "/etc/logrotate.d/confined-slots"
CLI = "/opt/confined-slots/providers/fake/1.0.0/bin/fake"
LIBRARY = "/opt/confined-slots/current/lib"
SLICE = "confined-slots-patient.slice"
SCHEDULE = "confined-slots-patient-schedule-nightly.timer"
SESSION = "20260101t000000-0badc0de"
RECORD = f"/run/confined-slots/patient/{SESSION}.record"
UNIT = f"confined-slots-patient-{SESSION}.service"
KEPT = "/run/kept-by-the-tests"

# Makes a copy of the current release with one other file, consistent in itself, and makes it current.
FORGE = """
import glob, marshal, os, shutil, sys
from confined_slots import _archive, _manifest
current = os.path.realpath("/opt/confined-slots/current")
work = current.rpartition("-")[0] + "-work"
shutil.copytree(current, work)
pattern, change = sys.argv[1:]
(path,) = glob.glob(pattern, root_dir=work)
data = open(f"{work}/{path}", "rb").read()
data = data + data[-8:] if change == "longer" else data[:16] + marshal.dumps(compile("X = 1", path, "exec"))

def replace(name, data):
    os.chmod(f"{work}/{name}", 0o644)
    open(f"{work}/{name}", "wb").write(data)
    os.chmod(f"{work}/{name}", 0o444)

replace(path, data)
header, listed = _archive.loads(open(f"{work}/MANIFEST.json", "rb").read())
listed[path] = f"0444 {_manifest.sha256(data)}"
manifest = _archive.dumps(listed, header)
replace("MANIFEST.json", manifest)
forged = work.removesuffix("work") + _manifest.sha256(manifest)[:12]
os.rename(work, forged)
os.symlink(forged, "/opt/confined-slots/.other")
os.rename("/opt/confined-slots/.other", "/opt/confined-slots/current")
open("/run/forged", "w").write(f"{current} {forged}\\n")
"""
UNFORGE = (
    "read real forged < /run/forged; ln -s $real /opt/confined-slots/.other;"
    " mv -T /opt/confined-slots/.other /opt/confined-slots/current; rm -rf $forged /run/forged"
)
# Changes the patient's plan into another whose hash is right: as root could.
REPLAN = """
import sys
from confined_slots import _plan
path = "/etc/confined-slots/slots.d/patient/plan"
records = _plan.load(open(path, "rb").read())
kind, *words = sys.argv[1:]
if kind == "add":
    first = next(number for number, record in enumerate(records) if record[0] == "seal")
    records.insert(first, tuple(words))
else:
    records = [record for record in records if [record[0], record[-1]] != words]
open(path, "wb").write(_plan.dump(records))
"""
GHOST = """
from confined_slots import _ledger
_ledger.save(_ledger.load().with_slots({"ghost": _ledger.Ids(29998, 299000000, 65536)}))
"""


def python(program: str, *words: str) -> str:
    """Return the command that runs a program with the core of the release that is current."""
    given = " ".join(f"'{word}'" for word in words)
    return f"PYTHONPATH={LIBRARY} python3 -B - {given} <<'END'\n{program}\nEND"


def changed(path: str, how: str) -> tuple[str, str]:
    """Return the commands that change a file, and that put the same inode back as it was."""
    return f"cp -p {path} {KEPT}; {how}", f"cat {KEPT} > {path}; touch -r {KEPT} {path}; rm {KEPT}"


def replanned(*words: str) -> tuple[str, str]:
    """Return the commands that change the patient's plan, and that put it back."""
    return changed(PLAN, python(REPLAN, *words))


def mounted(path: str, options: str, use: str) -> tuple[str, str]:
    """Return the commands that mount 8 MiB of memory at a place and use it, and that take it away."""
    return f"mount -t tmpfs -o {options},size=8m tmpfs {path}; {use}", f"umount {path}"


def listening(unit: str, name: str, there: str) -> str:
    """Return the command that has something listen on a socket; name is an expression of Python."""
    program = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.bind({name}); s.listen(); time.sleep(300)"
    return f"systemd-run --quiet --collect --unit={unit} python3 -c '{program}'; {until(there)}"


def as_slot(script: str) -> str:
    """Return the command that does something as the patient, outside of any session."""
    return f"setpriv --reuid=slot-patient --regid=slot-patient --clear-groups sh -c '{script}'"


def started(when: str) -> str:
    """Return the command that puts a session of the patient's on record, and nothing else."""
    return f"""printf '{{"event":"start","session":"{SESSION}","start":"%s"}}\\n' {when} > {RECORD}"""


def of_patient(state: str, *checks: str) -> Bad:
    """Return the patient's checks with a state."""
    return {("patient", check): state for check in checks}


@dataclasses.dataclass(frozen=True)
class Row:
    """A check, how its thing is broken and mended, what the check says then, and what else follows from that.

    before: instead of broken, done in a mount namespace in which health looks, where the real thing is the kernel's and
    would take the machine down; state `turned` is the other one of ok and warn. mode: as which the slot is declared.
    needs: a script that fails where it cannot be done, and prints what is missing.
    """

    check: str
    slot: str = ""
    how: tuple[str, str] = ("", "")
    state: str = "critical"
    also: Bad = dataclasses.field(default_factory=dict)
    before: str = ""
    mode: str = ""
    options: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    needs: str = ""
    case: str = ""

    @property
    def id(self) -> str:
        """Return the row's name."""
        return f"{self.check}: {self.case}" if self.case else self.check


APPARMOR = "grep -q Y /sys/module/apparmor/parameters/enabled || { echo a kernel with AppArmor; exit 1; }"
DOCKER = "echo slots with a Docker daemon, which the guest of the scenario vm has; exit 1"
QUOTA = (
    "mount -t tmpfs -o usrquota tmpfs /mnt 2> /dev/null && umount /mnt"
    " || { echo a kernel with quotas on tmpfs; exit 1; }"
)
CONTROLLERS = """
if grep -q memory /sys/fs/cgroup/cgroup.controllers; then echo > /run/controllers
else echo cpuset cpu io memory pids > /run/controllers; fi
mount --bind /run/controllers /sys/fs/cgroup/cgroup.controllers"""
OWN = "uid=$(id -u slot-patient),gid=$(id -g slot-patient),mode=0700"
# Where no sandbox comes to be, nothing can be said of what is seen from inside.
NO_SANDBOX = of_patient("critical", "sandbox") | of_patient("unknown", "marker", "view")

TABLE = (
    Row(
        "release",
        how=(f"chmod 0644 {LIBRARY}/slotctl/words.py", f"chmod 0444 {LIBRARY}/slotctl/words.py"),
        also={("", "bytecode"): "unknown"},
    ),
    Row("bytecode", how=(python(FORGE, "lib/slotctl/__pycache__/approve.*.pyc", "other"), UNFORGE)),
    Row("seccomp", how=(python(FORGE, "lib/seccomp.bpf", "longer"), UNFORGE)),
    Row("bwrap", how=("mv /usr/bin/bwrap /usr/bin/bw.away", "mv /usr/bin/bw.away /usr/bin/bwrap"), state="unknown"),
    Row(
        "command",
        how=(
            "ln -sfn /bin/true /usr/local/sbin/slotctl",
            "ln -sfn /opt/confined-slots/current/bin/slotctl /usr/local/sbin/slotctl",
        ),
    ),
    Row(
        "releases",
        how=("mkdir /opt/confined-slots/releases/.tampered-x", "rmdir /opt/confined-slots/releases/.tampered-x"),
        state="warn",
    ),
    Row("slots", how=changed("/etc/confined-slots/ledger.json", python(GHOST))),
    Row(
        "systemd",
        how=("mount --bind /bin/false /usr/bin/systemctl", "umount /usr/bin/systemctl"),
        state="unknown",
        also={("", "rotation"): "unknown", ("*", "limits"): "unknown", ("*", "schedules"): "unknown"},
    ),
    Row("sysctls", before="echo 0 > /run/zero; mount --bind /run/zero /proc/sys/user/max_user_namespaces"),
    Row("control-groups", before=CONTROLLERS, state="turned"),
    Row("newuidmap", how=("chmod u-s /usr/bin/newuidmap", "chmod u+s /usr/bin/newuidmap"), state="warn"),
    Row("tree", how=("chmod 0770 /var/lib/confined-slots/archive", "chmod 0700 /var/lib/confined-slots/archive")),
    Row("account-files", how=("chmod o+r /etc/shadow", "chmod o-r /etc/shadow")),
    Row(
        "apparmor",
        how=(
            "printf confined-slots-payload > /sys/kernel/security/apparmor/.remove",
            "apparmor_parser --replace /etc/apparmor.d/confined-slots*",
        ),
        needs=APPARMOR,
    ),
    Row("host-space", how=mounted("/var/tmp", "mode=1777", "head -c 8200000 /dev/zero > /var/tmp/full")),
    Row("rotation", how=("systemctl stop logrotate.timer", "systemctl start logrotate.timer")),
    Row(
        "rotation",
        how=(
            f"touch -d '20 days ago' {RULES}; mv /var/lib/logrotate /var/lib/logrotate.away",
            f"touch {RULES}; mv /var/lib/logrotate.away /var/lib/logrotate",
        ),
        state="warn",
        case="too long ago",
    ),
    Row("account", "patient", ("passwd --quiet --delete slot-patient", "usermod --password '!' slot-patient")),
    Row(
        "account",
        "patient",
        ("gpasswd --add slot-patient adm", "gpasswd --delete slot-patient adm"),
        also=NO_SANDBOX,
        case="in another group",
    ),
    Row(
        "subordinate-ids",
        "patient",
        changed("/etc/subuid", "echo oper:$(grep ^slot-patient: /etc/subuid | cut -d: -f2):10 >> /etc/subuid"),
    ),
    Row("subordinate-ids", "patient", changed("/etc/subgid", "sed -i /^slot-patient:/d /etc/subgid"), case="none"),
    Row(
        "linger",
        "patient",
        (
            "mkdir -p /var/lib/systemd/linger; touch /var/lib/systemd/linger/slot-patient",
            "rm /var/lib/systemd/linger/slot-patient",
        ),
    ),
    Row(
        "docker-socket",
        "patient",
        (
            listening("other-docker", '"/run/docker.sock"', "test -S /run/docker.sock")
            + "; chmod 0660 /run/docker.sock; setfacl -m u:slot-patient:rw /run/docker.sock",
            "systemctl stop other-docker; rm /run/docker.sock",
        ),
    ),
    Row(
        "stray-processes",
        "patient",
        (
            "systemd-run --quiet --collect --property=Type=exec --unit=stray --uid=slot-patient sleep 300",
            "systemctl stop stray",
        ),
        state="warn",
    ),
    Row(
        "policy",
        "patient",
        changed(POLICY, f"text=$(sed 's/something of the host/nothing/' {POLICY}); echo \"$text\" > {POLICY}"),
    ),
    Row("explain", "patient", replanned("add", "bind", "ro", "/etc/cron.weekly", "/etc/cron.weekly")),
    Row("approval", "signed", (f"mv {SIGNED} /run/approval", f"mv /run/approval {SIGNED}")),
    Row("provider", "patient", (f"echo >> {CLI}", f"truncate --size=-1 {CLI}")),
    Row(
        "foreign-programs",
        "patient",
        (as_slot(f"mkdir -p {HOME}/.local/bin; ln -s /etc/shadow {HOME}/.local/bin/fake"), f"rm -r {HOME}/.local"),
        state="warn",
    ),
    Row("credential", "patient", changed(CREDENTIAL, f"echo OTHER=1 >> {CREDENTIAL}")),
    Row(
        "credential",
        "patient",
        (f"touch -d '3 years ago' {CREDENTIAL}", f"touch {CREDENTIAL}"),
        state="warn",
        case="too old",
    ),
    Row(
        "login",
        "patient",
        (
            as_slot(f'mkdir -p {HOME}/.fake; echo {{\\"token\\": \\"\\"}} > {HOME}/.fake/login.json'),
            f"rm -r {HOME}/.fake",
        ),
        state="warn",
    ),
    Row(
        "binds",
        "patient",
        ("mv /etc/cron.daily /etc/cron.away", "mv /etc/cron.away /etc/cron.daily"),
        also=of_patient("unknown", "sandbox", "marker", "view"),
    ),
    Row("sandbox", "patient", replanned("drop", "flag", "--unshare-ipc"), also=of_patient("critical", "explain")),
    Row("marker", "patient", replanned("add", "bind", "ro", "/home", "/home"), also=of_patient("critical", "explain")),
    Row("view", "patient", replanned("drop", "bind", "/etc/cron.daily"), also=of_patient("critical", "explain")),
    Row("mode", "signed", mode="isolated"),
    Row(
        "apparmor-attached",
        "patient",
        ("aa-complain confined-slots-payload", "aa-enforce confined-slots-payload"),
        also={("", "apparmor"): "critical", ("*", "apparmor-attached"): "critical"},
        needs=APPARMOR,
    ),
    Row(
        "network",
        "outgoing",
        ("chmod o= /dev/net/tun", "chmod o=rw /dev/net/tun"),
        also={("outgoing", "sandbox"): "critical", ("outgoing", "marker"): "unknown", ("outgoing", "view"): "unknown"},
    ),
    Row(
        "abstract-sockets",
        "patient",
        (
            listening("listens", 'chr(0) + "helper"', "grep -q ' 00010000 .*@helper' /proc/net/unix"),
            "systemctl stop listens",
        ),
        state="warn",
        also={("*", "abstract-sockets"): "warn"},
        needs=f"! {SCOPED} || {{ echo a kernel without the scope of Landlock; exit 1; }}",
    ),
    Row(
        "abstract-sockets",
        "patient",
        replanned("drop", "landlock", "3"),
        state="warn",
        needs=f"{SCOPED} || {{ echo a kernel with the scope of Landlock; exit 1; }}",
        case="a plan without Landlock",
    ),
    Row(
        "limits",
        "patient",
        (f"systemctl set-property --runtime {SLICE} TasksMax=4000", f"systemctl revert {SLICE}"),
    ),
    Row("slot-tree", "patient", (f"chmod 0755 {WORKSPACE}", f"chmod 0700 {WORKSPACE}")),
    Row(
        "workspaces",
        "patient",
        (f"mv {WORKSPACE} {WORKSPACE}.away", f"mv {WORKSPACE}.away {WORKSPACE}"),
        also=of_patient("critical", "slot-tree", "binds") | NO_SANDBOX | of_patient("unknown", "space", "quota"),
    ),
    Row("space", "patient", mounted(WORKSPACE, OWN, as_slot(f"head -c 8200000 /dev/zero > {WORKSPACE}/full"))),
    Row(
        "quota",
        "patient",
        mounted(
            WORKSPACE,
            f"{OWN},usrquota,usrquota_block_hardlimit=1m",
            as_slot(f"head -c 1000000 /dev/zero > {WORKSPACE}/most"),
        ),
        state="warn",
        needs=QUOTA,
    ),
    Row(
        "state-size",
        "patient",
        (as_slot(f"head -c 8388608 /dev/zero > {HOME}/debug.log"), f"rm {HOME}/debug.log"),
        state="warn",
        options={"state_bytes": 4 << 20},
    ),
    Row("records", "patient", changed(RECORDS, f"truncate --size=64M {RECORDS}"), state="warn"),
    Row("sessions", "patient", (started("$(date -u +%FT%T.000Z)"), f"rm {RECORD}"), state="warn"),
    Row(
        "sessions",
        "patient",
        (
            f"systemd-run --quiet --collect --unit={UNIT} --slice={SLICE} --uid=slot-patient sleep 300",
            f"systemctl stop {UNIT}",
        ),
        case="one without a record",
    ),
    Row(
        "overdue",
        "patient",
        (
            f"{started('2026-01-01T00:00:00.000Z')};"
            f" systemd-run --quiet --collect --unit={UNIT} --slice={SLICE} --uid=slot-patient sleep 300",
            f"rm {RECORD}; systemctl stop {UNIT}",
        ),
    ),
    Row("schedules", "patient", (f"systemctl stop {SCHEDULE}", f"systemctl start {SCHEDULE}")),
    Row("docker", "patient", needs=DOCKER),
    Row("docker-secrets", "patient", needs=DOCKER),
)
