# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How sessions begin, live on terminals and pipes, and end, however their callers fare. Runs on provisioned hosts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pathlib
import shlex
import typing as t

import pytest
from waiting import held, soon, until

if t.TYPE_CHECKING:
    from testinfra.host import Host

SLOT = "coder"
TERMINAL = pathlib.Path(__file__).with_name("terminal.py").read_text(encoding="utf-8")
LOG = f"/var/log/confined-slots/{SLOT}"
WORKSPACE = f"/var/lib/confined-slots/slots/{SLOT}/workspaces/main"
HOLD = "trap '' HUP; trap 'echo gentle; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
STUBBORN = "trap '' TERM HUP; echo ready; while :; do sleep 0.1; done"

# All of the slot's processes, and all files of its sessions. Their units may go a little later: not before PID 1 has
# heard that systemd-run has gone.
UNITS = f"systemctl list-units --all --plain --no-legend 'confined-slots-{SLOT}-2*.service'"
LEFT = f"pgrep -u slot-{SLOT}; ls /run/confined-slots/{SLOT}"
NOTHING = f'[ -z "$({LEFT}; {UNITS})" ]'
SWEPT = f"slotctl sessions {SLOT} > /dev/null; {NOTHING}"
FULL_LOG = f"mount -t tmpfs -o size=16k,mode=750,gid=$(stat -c %g {LOG}) none {LOG}"
FULL_LOG += f" && dd if=/dev/zero of={LOG}/fill bs=1k 2>/dev/null"

# Starts a command, signals it once it has said a line, and prints its status and all that it said. (A shell without job
# control would start it with SIGINT ignored.)
SIGNAL = """
import json, subprocess, sys
command = subprocess.Popen(json.loads(sys.argv[1]), stdout=subprocess.PIPE, text=True)
said = command.stdout.readline()
command.send_signal(int(sys.argv[2]))
said += command.stdout.read()
print(json.dumps([command.wait(), said]))
"""
# Reads what a command writes to a socket only some seconds later; prints its status and what it was.
SLOW = """
import hashlib, json, select, socket, subprocess, sys, time
ours, given = socket.socketpair()
command = subprocess.Popen(json.loads(sys.argv[1]), stdout=given)
given.close()
select.select([ours], [], [])
time.sleep(6)
with ours.makefile("rb") as file:
    digest = hashlib.sha256(file.read()).hexdigest()
print(json.dumps([command.wait(), digest]))
"""
# Starts a command in a thread that ends before it.
THREAD = """
import subprocess, sys, threading
found = []
one = threading.Thread(target=lambda: found.append(subprocess.Popen(sys.argv[1:])))
one.start()
one.join()
sys.exit(found[0].wait())
"""

# Reads a slot's plan, lets `change` (a function of the list of records) at it, and writes it back as root would.
CHANGE_PLAN = """
import os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, "/opt/confined-slots/current/lib")
from confined_slots import _plan
path = f"/etc/confined-slots/slots.d/{sys.argv[1]}/plan"
records = _plan.load(open(path, "rb").read())
exec(sys.argv[2])
with open(path, "r+b") as file:
    file.truncate(file.write(_plan.dump(records)))
"""


def python(host: Host, source: str, *words: str) -> str:
    """Return what a Python program printed on the host."""
    return host.check_output(" ".join(map(shlex.quote, ["/usr/bin/python3", "-IS", "-c", source, *words])))


def on_terminal(host: Host, script: str, *steps: list[t.Any], command: list[str] | None = None) -> dict[str, t.Any]:
    """Run a script in a session on a terminal, with these steps from outside; return what came of it."""
    words = command or ["slotctl", "run", SLOT, "--", "-c", script]
    return t.cast(
        "dict[str, t.Any]", json.loads(python(host, TERMINAL, json.dumps({"command": words, "steps": steps})))
    )


def run(script: str, slot: str = SLOT) -> str:
    """Return the command line of a session."""
    return f"slotctl run {slot} -- -c {shlex.quote(script)}"


def last(host: Host, slot: str = SLOT) -> dict[str, t.Any]:
    """Return the newest session on record."""
    return t.cast("dict[str, t.Any]", json.loads(host.check_output(f"slotctl sessions {slot} --most 1 --json"))[0])


def nothing_is_left(host: Host, *, at_once: bool = True) -> None:
    """Hold that no process, unit or file of the slot's sessions is left, or soon is."""
    if at_once:
        assert host.run(LEFT).stdout == ""
    soon(host, NOTHING)


@contextlib.contextmanager
def changed_plan(host: Host, change: str, slot: str = SLOT) -> t.Iterator[None]:
    """Change a slot's plan (`records` at hand) as root, and put the old one back."""
    directory = f"/etc/confined-slots/slots.d/{slot}"
    host.check_output(f"cp -p {directory}/plan {directory}/.plan-of-test")
    try:
        python(host, CHANGE_PLAN, slot, change)
        yield
    finally:
        host.check_output(f"mv {directory}/.plan-of-test {directory}/plan")


# Terminals


@pytest.mark.parametrize(("key", "name"), [("\x03", "INT"), ("\x1c", "QUIT"), ("\x1a", "TSTP")])
def test_se_05_keys_reach_the_cli_once_and_do_not_end_the_session(host: Host, key: str, name: str) -> None:
    script = f"trap 'echo got-{name}; got=1' {name}; echo ready; until [ $got ]; do sleep 0.2; done; echo lives; exit 6"
    found = on_terminal(host, script, ["wait", "ready"], ["type", key], ["wait", "lives"])
    assert (found["status"], found["output"].count(f"got-{name}"), found["modes_kept"]) == (6, 1, True)


def test_se_05_an_interactive_shell_stops_and_resumes_its_jobs(host: Host) -> None:
    goes_on = ["run", until("pgrep -r S -xf 'sleep 77' >/dev/null")]
    steps = (
        ["wait", "$ "],
        ["type", "sleep 77\n"],
        goes_on,
        ["type", "\x1a"],
        ["wait", "Stopped"],
        ["type", "fg\n"],
    )
    steps = (*steps, ["wait", "fg"], goes_on, ["type", "\x03"], ["type", "exit 5\n"])
    found = on_terminal(host, "", *steps, command=["slotctl", "run", SLOT, "--", "--norc", "-i"])
    assert (found["status"], found["modes_kept"]) == (5, True)
    nothing_is_left(host)


def test_se_05_the_window_size_follows(host: Host) -> None:
    script = "trap 'stty size; got=1' WINCH; stty size; echo ready; until [ $got ]; do sleep 0.2; done"
    found = on_terminal(host, script, ["wait", "ready"], ["resize", 41, 137], ["wait", "41 137"])
    assert found["status"] == 0


def test_se_05_a_crash_of_the_cli_leaves_the_callers_terminal_as_it_was(host: Host) -> None:
    found = on_terminal(host, "stty raw -echo; kill -SEGV $$")
    assert (found["status"], found["modes_kept"]) == (139, True)


def test_se_05_losing_the_client_leaves_the_callers_terminal_as_it_was(host: Host) -> None:
    found = on_terminal(host, HOLD, ["wait", "ready"], ["run", "pkill -KILL -x systemd-run"])
    assert found["modes_kept"]
    assert last(host)["outcome"] == "stopped"
    nothing_is_left(host)


def test_se_05_a_terminal_shows_what_the_cli_wrote_and_nothing_else(host: Host) -> None:
    found = on_terminal(host, "printf 'a\\033[31mred\\033[0m\\nb'")
    assert found["output"] == "a\x1b[31mred\x1b[0m\r\nb"


@pytest.mark.parametrize("redirection", ["| cat", "> /tmp/out-of-test; cat /tmp/out-of-test"], ids=["pipe", "file"])
def test_without_a_terminal_on_both_sides_none_is_given_and_the_callers_is_kept_out(
    host: Host, redirection: str
) -> None:
    script = "tty; for each in 0 1 2; do [ -t $each ] && echo terminal; done; ls -l /proc/self/fd"
    found = on_terminal(host, "", command=["sh", "-c", f"{run(script)} {redirection}"])
    assert "not a tty" in found["output"]
    assert "terminal" not in found["output"]
    assert "pts" not in found["output"]


def test_the_callers_terminal_still_feeds_a_session_whose_output_is_a_pipe(host: Host) -> None:
    found = on_terminal(
        host, "", ["type", "a line\n"], command=["sh", "-c", f"{run('read -r line; echo got $line')} | cat"]
    )
    assert "got a line" in found["output"]


# Pipes


@pytest.mark.parametrize("target", ["| cat", "> /tmp/out-of-test; cat /tmp/out-of-test"], ids=["pipe", "file"])
def test_se_05_output_is_byte_exact(host: Host, target: str) -> None:
    blob = bytes(range(256)) * 9001
    host.check_output('python3 -c \'open("/tmp/in-of-test", "wb").write(bytes(range(256)) * 9001)\'')
    found = host.check_output(f"{{ {run('cat')} < /tmp/in-of-test {target}; }} | sha256sum")
    assert found.split()[0] == hashlib.sha256(blob).hexdigest()


@pytest.mark.parametrize("lines", [20000, 40000], ids=["ended before", "not ended before"])
def test_se_05_a_slow_reader_loses_nothing(host: Host, lines: int) -> None:
    words = ["slotctl", "run", SLOT, "--", "-c", f"seq {lines}; exit 3"]
    status, digest = json.loads(python(host, SLOW, json.dumps(words)))
    assert status == 3
    assert digest == hashlib.sha256("".join(f"{each}\n" for each in range(1, lines + 1)).encode()).hexdigest()


def test_output_and_error_stay_apart_and_in_order_where_they_are_one(host: Host) -> None:
    script = "for each in 1 2 3; do echo out$each; echo err$each >&2; done"
    found = host.run(run(script))
    assert (found.stdout, found.stderr) == ("out1\nout2\nout3\n", "err1\nerr2\nerr3\n")
    assert host.check_output(f"{run(script)} 2>&1 | cat").split() == [
        f"{kind}{each}" for each in "123" for kind in ("out", "err")
    ]


def test_a_reader_that_goes_away_ends_the_session(host: Host) -> None:
    assert host.check_output(f"timeout 60 {run('yes')} | head -n 1") == "y"
    nothing_is_left(host, at_once=False)


def test_a_log_opened_for_writing_is_not_put_into_the_sessions_hands(host: Host) -> None:
    host.check_output("echo earlier > /tmp/log-of-test")
    script = "python3 -c 'import os; os.ftruncate(1, 0)' 2>/dev/null; cat /proc/self/fd/1 2>/dev/null; true"
    host.check_output(f"{run(script)} >> /tmp/log-of-test")
    assert host.check_output("cat /tmp/log-of-test") == "earlier"


# Ends


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_se_04_a_signal_to_slotctl_stops_the_session_gently_and_wholly(host: Host, name: str, terminal: bool) -> None:
    number = {"HUP": 1, "INT": 2, "TERM": 15}[name]
    if terminal:
        found = on_terminal(host, HOLD, ["wait", "ready"], ["signal", name])
        status, output = found["status"], found["output"]
    else:
        slotctl = json.dumps(["slotctl", "run", SLOT, "--", "-c", HOLD])
        status, output = json.loads(python(host, SIGNAL, slotctl, str(number)))
    assert (status, "gentle" in output) == (128 + number, True)
    nothing_is_left(host)
    end = last(host)
    assert (end["outcome"], end["exit_status"], end["reason"]) == ("stopped", 9, f"SIG{name} to slotctl")


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_se_04_no_session_outlives_a_slotctl_that_was_killed(host: Host, terminal: bool) -> None:
    if terminal:
        assert on_terminal(host, HOLD, ["wait", "ready"], ["signal", "KILL"])["status"] == 137
        # PID 1 cannot put its end on record, as the terminal of the unit has gone
        soon(host, SWEPT)
    else:
        started = f"{run(HOLD)} > /tmp/out-of-test & pid=$!; {until('grep -q ready /tmp/out-of-test')}"
        host.check_output(f"rm -f /tmp/out-of-test; {started}; kill -KILL $pid; wait; true")
    nothing_is_left(host, at_once=False)
    assert last(host)["outcome"] == "stopped"


def test_se_04_a_stubborn_session_whose_caller_was_killed_ends_too(host: Host) -> None:
    started = f"{run(STUBBORN)} > /tmp/out-of-test & pid=$!; {until('grep -q ready /tmp/out-of-test')}"
    host.check_output(f"rm -f /tmp/out-of-test; {started}; kill -KILL $pid; wait; true")
    nothing_is_left(host, at_once=False)


@pytest.mark.parametrize("eighth", range(8))
def test_se_03_killed_at_any_instant_slotctl_leaves_nothing_that_runs(host: Host, eighth: int) -> None:
    whole = float(host.check_output(f"began=$(date +%s%N); {run('true')}; echo $(($(date +%s%N) - began))")) / 1e9
    host.run(f"{run(HOLD)} > /dev/null & sleep {whole * eighth / 8:.3f}; kill -KILL $!; wait")
    # PID 1 may have been asked already; `slotctl sessions` puts on record what no unit could. SIGTERM may come while
    # bwrap still ignores it for the CLI: then SIGKILL ends it.
    host.check_output(f"sleep 1; {until(SWEPT)}")
    assert last(host)["outcome"] in ("stopped", "ended")


def test_se_03_what_a_kill_has_left_of_a_session_goes_with_the_next_command(host: Host) -> None:
    at = f"/run/confined-slots/{SLOT}/20260101t000000"
    ended = json.dumps({"event": "end", "session": "20260101t000000-0000000b"})
    host.check_output(f"touch {at}-0000000a.record {at}-0000000b.status; echo '{ended}' > {at}-0000000b.record")
    host.check_output(f"slotctl sessions {SLOT}")
    nothing_is_left(host)


def test_se_03_the_end_of_the_callers_thread_is_not_the_end_of_the_session(host: Host) -> None:
    words = ["python3", "-c", THREAD, "slotctl", "run", SLOT, "--", "-c", "sleep 1; exit 5"]
    assert host.run(shlex.join(words)).rc == 5


def test_se_04_stop_leaves_no_process_of_the_session_and_the_others_alone(host: Host) -> None:
    both = "[ $(cat /tmp/*-of-test | grep -c ready) = 2 ]"
    start = "rm -f /tmp/*-of-test; "
    start += "".join(f"{run(script)} > /tmp/{each}-of-test 2>&1 & " for each, script in enumerate((HOLD, STUBBORN)))
    newest = f"$(slotctl sessions {SLOT} --json --most 1 | grep -o '2[0-9]*t[0-9]*-[0-9a-f]*' | head -n 1)"
    runs = 'grep -ls "$session[.]service" /proc/[0-9]*/cgroup | wc -l'
    first = f"session={newest}; slotctl stop {SLOT} $session; {runs}; cat /tmp/*-of-test | grep -c ready"
    found = host.run(f"{start} {until(both)}; {first}; slotctl stop {SLOT}; {LEFT}; wait")
    lines = found.stdout.splitlines()
    assert lines[0].endswith("was stopped")
    assert lines[1:3] == ["0", "2"]
    assert (len(lines), lines[3].endswith("was stopped")) == (4, True)
    nothing_is_left(host)


def test_se_04_a_caller_that_ignores_sigchld_gets_the_exit_status(host: Host) -> None:
    source = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    assert host.run(shlex.join(["python3", "-c", source, "slotctl", "run", SLOT, "--", "-c", "exit 4"])).rc == 4


def test_a_session_of_a_unit_ends_with_the_unit(host: Host) -> None:
    started = f"systemd-run --quiet --collect --unit=caller-of-test slotctl run {SLOT} -- -c {shlex.quote(f'{HOLD}')}"
    host.check_output(f"{started}; {until(f'pgrep -u slot-{SLOT} bash')}")
    host.check_output("systemctl stop caller-of-test")
    nothing_is_left(host)


def test_a_hangup_of_the_terminal_ends_the_session(host: Host) -> None:
    on_terminal(host, HOLD, ["wait", "ready"], ["hang up"])
    nothing_is_left(host, at_once=False)


# Where sessions are started from


def test_a_tmux_pane_holds_a_session_and_takes_it_along(host: Host) -> None:
    tmux = "tmux -L of-test -f /dev/null"
    script = "echo TMUX=[$TMUX$TMUX_PANE]; tty; sleep 300"
    shown = f"{tmux} capture-pane -p | grep -F 'TMUX=[]'"
    host.check_output(f"{tmux} new-session -d -x 100 -y 30 {shlex.quote(run(script))}; {until(shown)}")
    host.check_output(f"{tmux} kill-server")
    nothing_is_left(host, at_once=False)


@pytest.mark.parametrize(
    "before",
    ["env -i PATH=/usr/sbin:/usr/bin setsid -w", "systemd-run --quiet --wait --pipe --collect", "cd /tmp; nohup"],
)
def test_sessions_start_without_a_terminal_a_bus_or_an_environment(host: Host, before: str) -> None:
    slotctl = "/usr/local/sbin/slotctl"
    found = host.run(f"{before} {slotctl} run {SLOT} -- -c 'pwd; exit 3' < /dev/null")
    assert (found.rc, found.stdout) == (3, f"{WORKSPACE}\n")


def test_a_bus_of_the_callers_choice_is_not_asked(host: Host) -> None:
    assert host.run(f"DBUS_SYSTEM_BUS_ADDRESS=unix:path=/nonexistent SYSTEMD_LOG_LEVEL=debug {run('exit 3')}").rc == 3


def test_many_at_once_keep_apart_and_on_record(host: Host) -> None:
    before = len(host.check_output(f"cat {LOG}/sessions.jsonl").splitlines())
    script = "touch $XDG_RUNTIME_DIR/mine; ls $XDG_RUNTIME_DIR; exit"
    started = "".join(f'{run(f"{script} {each}")} > /tmp/{each}-of-test & pids="$pids $!"; ' for each in range(12))
    found = host.check_output(f"{started} for each in $pids; do wait $each; echo $?; done; cat /tmp/*[0-9]-of-test")
    assert found.split() == [*map(str, range(12)), *["mine"] * 12]
    records = [json.loads(line) for line in host.check_output(f"cat {LOG}/sessions.jsonl").splitlines()[before:]]
    assert sorted(record["event"] for record in records) == ["end"] * 12 + ["start"] * 12
    nothing_is_left(host)


# Records and refusals


def test_the_record_is_made_before_the_cli_starts_and_says_under_which_policy(host: Host) -> None:
    with held(host, SLOT, "sleep 0.1"):
        record = json.loads(host.check_output(f"tail -n 1 {LOG}/sessions.jsonl"))
    assert record["event"] == "start"
    for key in (
        "session",
        "workspace",
        "mode",
        "provider",
        "profile_version",
        "policy",
        "release",
        "caller",
        "arguments",
        "start",
    ):
        assert key in record
    assert record["policy"] == json.loads(host.check_output(f"slotctl policy {SLOT} --json"))["fingerprint"]
    assert "sleep" not in json.dumps(record)


def test_records_go_to_the_journal_as_root_and_to_a_file_that_the_slot_cannot_write(host: Host) -> None:
    host.run(run("exit 8"))
    session = last(host)["session"]
    found = host.check_output(f"journalctl --sync; journalctl -o json _UID=0 CONFINED_SLOTS_SESSION={session}")
    entries = [json.loads(line) for line in found.splitlines()]
    assert [entry["CONFINED_SLOTS_EVENT"] for entry in entries] == ["start", "end"]
    assert json.loads(entries[1]["CONFINED_SLOTS_RECORD"])["exit_status"] == 8
    assert (
        host.check_output(f"stat -c '%U %G %a' {LOG}/sessions.jsonl {LOG}")
        == f"root slot-{SLOT} 640\nroot slot-{SLOT} 750"
    )


def test_lg_04_without_room_for_the_record_nothing_starts(host: Host) -> None:
    marker = f"{WORKSPACE}/marker-of-test"
    found = host.run(f"{FULL_LOG}; {run(f'touch {marker}')}; status=$?; umount {LOG}; exit $status")
    assert (found.rc, "audit-unavailable" in found.stderr) == (125, True)
    assert not host.file(marker).exists
    nothing_is_left(host)


def test_a_record_that_the_slot_could_have_laid_out_is_refused(host: Host) -> None:
    moved = f"mv {LOG}/sessions.jsonl /tmp/kept-of-test; ln -s /etc/shadow {LOG}/sessions.jsonl"
    found = host.run(f"{moved}; {run('true')}; status=$?; mv /tmp/kept-of-test {LOG}/sessions.jsonl; exit $status")
    assert (found.rc, "audit-unavailable" in found.stderr) == (125, True)


SANDBOX_FAILS = 'records.append(("bind", "ro", "/usr", "/proc/1/\\x1b[31mnowhere"))'


@pytest.mark.parametrize(
    ("change", "script", "status", "outcome", "words"),
    [
        pytest.param("pass", "exit 1", 1, "ended", "", id="the-cli-ends-with-1"),
        pytest.param(
            'records.append(("identity", "/nonexistent", "distribution", ""))',
            "true",
            125,
            "refused",
            "provider-missing",
            id="executable",
        ),
        pytest.param(
            'records.append(("bind", "ro", "/nonexistent", "/x"))', "true", 125, "refused", "/nonexistent", id="source"
        ),
        pytest.param(SANDBOX_FAILS, "true", 125, "sandbox-failed", "bwrap: ", id="bwrap"),
    ],
)
def test_se_09_the_ends_of_cli_policy_and_sandbox_are_told_apart(
    host: Host, change: str, script: str, status: int, outcome: str, words: str
) -> None:
    with changed_plan(host, change):
        found = host.run(run(script))
    assert (found.rc, last(host)["outcome"]) == (status, outcome)
    assert words in found.stderr
    assert "Traceback" not in found.stderr


def test_bw_05_what_bwrap_said_stands_in_the_refusal_bounded_and_escaped(host: Host) -> None:
    with changed_plan(host, SANDBOX_FAILS):
        found = host.run(f"slotctl run {SLOT} --json -- -c true")
    refusal = json.loads(found.stderr.splitlines()[-1])
    assert refusal["refusal"] == "sandbox-unavailable"
    assert "bwrap: " in refusal["what"]
    assert "\x1b" not in refusal["what"]
    assert len(refusal["what"]) < 3000


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("mv bwrap bwrap.gone", id="absent"),
        pytest.param("chmod 0444 bwrap", id="not-executable"),
        pytest.param(
            'printf \'#!/bin/sh\\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\\n\' > bwrap',
            id="execs-its-tail",
        ),
        pytest.param("printf '#!/bin/sh\\nexit 1\\n' > bwrap", id="exits-1"),
        pytest.param("printf '#!/bin/sh\\nsleep 100\\n' > bwrap", id="hangs"),
        pytest.param("printf 'not a program' > bwrap", id="wrong-architecture"),
    ],
)
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_pl_01_no_bwrap_no_run(host: Host, damage: str, terminal: bool) -> None:
    marker = f"{WORKSPACE}/marker-of-test"
    setup = "cd $(readlink -f /opt/confined-slots/current)/bin; cp -p bwrap /root/bwrap-of-test"
    repair = "rm -f bwrap bwrap.gone; cp -p /root/bwrap-of-test bwrap"
    command = run(f"touch {marker}")
    script = f"{setup}; {damage}; {command}; status=$?; {repair}; exit $status"
    if terminal:
        found = on_terminal(host, "", command=["sh", "-c", script])
        status, said = found["status"], found["output"]
    else:
        result = host.run(script)
        status, said = result.rc, result.stderr
    assert (status, "launcher-tampered" in said) == (125, True)
    assert not host.file(marker).exists
    record = last(host)
    assert (record["outcome"], record["refusal"]["code"]) == ("refused", "launcher-tampered")
    assert host.run(run("exit 3")).rc == 3


def test_pl_02_what_a_session_writes_changes_no_policy(host: Host) -> None:
    names = "policy.json plan profile.json approval.json .confined-slots.json .claude/settings.json slots.d/coder/plan"
    write = "mkdir -p ~/$(dirname $each) $(dirname $each); echo '{}' | tee ~/$each > $each"
    script = f"for each in {names}; do {write}; done; exit 0"
    before = host.check_output(f"slotctl policy {SLOT} --json")
    environment = "env CONFINED_SLOTS_PLAN=/tmp/plan CONFINED_SLOT=reviewer"
    assert host.run(f"{environment} {run(script)}").rc == 0
    assert host.check_output(f"slotctl policy {SLOT} --json") == before
    assert last(host)["policy"] == json.loads(before)["fingerprint"]
    host.check_output(run(f"for each in {names}; do rm ~/$each $each; done"))


def test_se_01_a_workspace_has_one_path_wherever_the_caller_stands(host: Host) -> None:
    host.check_output(f"ln -sfn {WORKSPACE} /tmp/link-of-test")
    for directory in ("/", "/tmp/link-of-test", WORKSPACE):
        assert host.check_output(f"cd {directory}; {run('pwd -P; pwd; echo $HOME')}").split() == [
            *[WORKSPACE] * 2,
            f"/var/lib/confined-slots/slots/{SLOT}/homes/shell",
        ]


def test_se_01_a_moved_workspace_is_refused_before_a_cli_starts_anew_in_it(host: Host) -> None:
    move = f"mv {WORKSPACE} {WORKSPACE}.moved; ln -s {WORKSPACE}.moved {WORKSPACE}"
    found = host.run(
        f"{move}; {run('echo ran')}; status=$?; rm {WORKSPACE}; mv {WORKSPACE}.moved {WORKSPACE}; exit $status"
    )
    assert (found.rc, found.stdout) == (125, "")
    assert "policy-invalid" in found.stderr


def test_the_record_names_the_person_behind_sudo(host: Host) -> None:
    words = shlex.quote(f"sudo -n slotctl run {SLOT} -- -c true")
    assert host.run(f"su -s /bin/sh -c {words} oper").rc == 0
    caller = last(host)["caller"]
    assert (caller["user"], caller["uid"]) == ("oper", int(host.check_output("id -u oper")))


# Each mechanism taken away: the test above that leans on it would turn red


MUTANT = """
import sys
sys.dont_write_bytecode = True
release = sys.argv[1]
sys.path.insert(0, release + "/lib")
from confined_slots import _sessions
from slotctl import cli, run, streams, unit
exec(sys.argv[2])
sys.exit(cli.main(release, sys.argv[3:]))
"""
NO_DEATH_SIGNAL = "real = unit.client; unit.client = lambda *given, **more: real(*given, **more)[8:]"
NOT_BOUND = (
    "real = unit.properties; unit.properties = lambda *g, **m: [one for one in real(*g, **m) if one[0] != 'BindsTo']"
)
PASSES_ALL = "streams._is_pipe_or_null = lambda descriptor: True"
NO_RECORD = "_sessions.append = lambda *given: None"
LAUNCHER = "import sys; sys.path.insert(0, sys.argv[1] + '/lib'); from confined_slots import _launch; "
LAUNCHER += (
    "_launch.FOR_THE_CLI = (); _launch.for_the_cli = lambda records, words: words; "
    "_launch.main(sys.argv[1], sys.argv[2:])"
)
DEAF_TO_KEYS = (
    "real = unit.service; unit.service = lambda s, i, w, e, words, **more: "
    f"real(s, i, w, e, ['/usr/bin/python3', '-IS', '-c', {LAUNCHER!r}, release, *words[1:]], **more)"
)


def mutant(patch: str, script: str) -> list[str]:
    """Return the command line of a session under a slotctl with one mechanism taken away."""
    release = "$(readlink -f /opt/confined-slots/current)"
    words = shlex.join(["run", SLOT, "--", "-c", script])
    return ["sh", "-c", f"exec /usr/bin/python3 -IS -c {shlex.quote(MUTANT)} {release} {shlex.quote(patch)} {words}"]


@pytest.mark.parametrize("patch", [NO_DEATH_SIGNAL, NOT_BOUND], ids=["death-signal", "binding"])
def test_without_its_death_signal_or_its_binding_a_session_outlives_slotctl(host: Host, patch: str) -> None:
    started = (
        f"{shlex.join(mutant(patch, HOLD))} > /tmp/out-of-test & pid=$!; {until('grep -q ready /tmp/out-of-test')}"
    )
    found = host.run(
        f"rm -f /tmp/out-of-test; {started}; kill -KILL $pid; sleep 10; pgrep -u slot-{SLOT} bash; slotctl stop {SLOT}"
    )
    assert found.stdout.split("\n")[0].isdecimal()
    nothing_is_left(host, at_once=False)


def test_without_env_ctrl_c_ends_bwrap_and_the_cli_with_it(host: Host) -> None:
    script = "trap 'echo got-INT; exit 6' INT; echo ready; while :; do sleep 0.1; done"
    found = on_terminal(host, "", ["wait", "ready"], ["type", "\x03"], command=mutant(DEAF_TO_KEYS, script))
    assert found["status"] == 130


def test_without_relays_the_callers_terminal_is_in_the_sessions_hands(host: Host) -> None:
    command = mutant(PASSES_ALL, "[ -t 0 ] && echo a terminal")
    assert "a terminal" in on_terminal(host, "", command=["sh", "-c", f"{shlex.join(command)} | cat"])["output"]


def test_without_its_record_a_session_starts_on_a_full_disk(host: Host) -> None:
    found = host.run(f"{FULL_LOG}; {shlex.join(mutant(NO_RECORD, 'echo ran'))}; status=$?; umount {LOG}; exit $status")
    assert (found.rc, found.stdout) == (0, "ran\n")


def test_a_plan_that_was_swapped_after_the_record_does_not_run(host: Host) -> None:
    swapped = "real = run.described; run.described = lambda *given: real(*given) | {'policy': 'sha256:another'}"
    found = host.run(shlex.join(mutant(swapped, "echo ran")))
    assert (found.rc, found.stdout) == (125, "")
    assert "policy-invalid" in found.stderr
    assert last(host)["outcome"] == "refused"
