# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attacks from inside a session, and from outside on what the next one will run.

Runs on provisioned hosts (molecule).
"""

from __future__ import annotations

import json
import typing as t

import pytest
from waiting import held

if t.TYPE_CHECKING:
    from testinfra.backend.base import CommandResult
    from testinfra.host import Host

STATE = "/var/lib/confined-slots/slots"
LEAST_MUTATIONS = 60


def session(host: Host, script: str, *words: str, slot: str = "coder", before: str = "") -> CommandResult:
    """Run a script in a session of slot, its words as $1 and so on; before is shell of the caller's."""
    quoted = " ".join(host.backend.quote("%s", word) for word in (script, "bash", *words))
    return host.run(f"{before} slotctl run {slot} -- -c {quoted}")


@pytest.mark.parametrize("slot", ["coder", "outgoing"])
def test_mo_05_what_the_policy_claims_holds_and_each_part_taken_away_is_noticed_by_exactly_its_probe(
    host: Host, slot: str
) -> None:
    rows = json.loads(host.check_output(f"slotctl selftest {slot} --json"))
    assert [row["name"] for row in rows if not row["ok"]] == []
    assert sum(row["kind"] == "mutation" for row in rows) >= LEAST_MUTATIONS


def test_the_probes_hold_in_a_slot_whose_name_systemd_has_to_escape(host: Host) -> None:
    rows = json.loads(host.check_output("slotctl selftest build-er --no-mutations --json"))
    assert rows and [row["name"] for row in rows if not row["ok"]] == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["a b", "x*y", "--bind", "-c"], id="spaces-globs-dashes"),
        pytest.param(["line\nbreak", "tab\t", ""], id="breaks-and-nothing"),
        pytest.param(["$HOME", "${PATH}", "%h", "%%", "$$", "\\x41", '"', "'"], id="what-systemd-would-expand"),
        pytest.param(["ünïcode", "日本"], id="unicode"),
    ],
)
def test_bw_14_arguments_arrive_byte_for_byte(host: Host, words: list[str]) -> None:
    found = session(host, 'printf "%s\\0" "$@"', *words)
    assert found.stdout == "".join(f"{word}\0" for word in words)


def test_arguments_stand_in_no_unit_that_others_can_read(host: Host) -> None:
    shown = "systemctl show 'confined-slots-coder-*.service' --property=ExecStart"
    with held(host, "coder", ": a-secret-prompt"):
        found = host.check_output(f"{shown}; cat /run/systemd/transient/confined-slots-coder-*")
    assert "slot-launcher" in found
    assert "a-secret-prompt" not in found


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("exit 125", 125), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_the_exit_status_is_the_clis_own(host: Host, script: str, status: int) -> None:
    assert session(host, script).rc == status


def test_es_08_nothing_of_the_callers_environment_comes_along(host: Host) -> None:
    names = (
        "LD_PRELOAD PYTHONPATH PYTHONSTARTUP NODE_OPTIONS BASH_ENV ENV "
        "GIT_DIR SSH_AUTH_SOCK GPG_TTY DOCKER_HOST TMUX AWS_SECRET_ACCESS_KEY"
    )
    before = "env " + " ".join(f"{name}=/nonexistent/s3cret" for name in names.split())
    found = session(host, "env; tr '\\0' '\\n' </proc/1/environ", before=before)
    assert "s3cret" not in found.stdout
    assert "HOME=" in found.stdout


def test_es_13_no_descriptor_of_the_caller_is_inherited(host: Host) -> None:
    caller = (
        "import os; os.dup2(os.open('/', os.O_RDONLY), 7); os.dup2(7, 900); "
        "os.execvp('slotctl', ['slotctl', 'run', 'coder', '--', '-c', 'ls /proc/self/fd'])"
    )
    assert host.check_output(f'python3 -c "{caller}"').split() == ["0", "1", "2", "3"]


@pytest.mark.parametrize("slot", ["coder", "outgoing"])
def test_pl_04_nothing_of_ours_listens_for_whoever_connects(host: Host, slot: str) -> None:
    with held(host, slot):
        listening = host.check_output("ss -Hlnp --tcp --udp --unix")
    assert "systemd" in listening, "the listing shows who listens"
    for program in ("slotctl", "slot-launcher", "bwrap", "pasta", "systemd-run"):
        assert f'"{program}' not in listening


def test_es_13_a_directory_as_standard_input_is_no_way_out(host: Host) -> None:
    found = host.run("slotctl run coder -- -c 'ls /proc/self/fd/0/; cat /proc/self/fd/0/etc/shadow' </")
    assert "shadow" not in found.stdout
    assert "root:" not in found.stdout


@pytest.mark.parametrize(
    "attempt",
    [
        "systemd-run --user touch {marker}",
        "systemd-run touch {marker}",
        "busctl list",
        "echo touch {marker} | at now",
        "echo '* * * * * touch {marker}' | crontab -",
        "tmux -S /tmp/tmux-$(id -u)/default new-window",
        "sudo -n touch {marker}",
        "su -c 'touch {marker}'",
        "newuidmap $$ 0 1000 1",
        "logger --socket-errors=on x",
    ],
)
def test_es_03_nothing_starts_outside(host: Host, attempt: str) -> None:
    marker = "/var/tmp/confined-slots-marker"
    host.run(f"rm -f {marker}")
    assert session(host, attempt.format(marker=marker)).rc not in (0, 125)
    assert not host.file(marker).exists


def test_es_06_a_tmux_server_of_the_same_account_is_out_of_reach(host: Host) -> None:
    if not host.exists("tmux"):
        pytest.skip("tmux is missing on the host")
    try:
        host.check_output("runuser -u slot-coder -- tmux new-session -d -s host")
        before = host.check_output("runuser -u slot-coder -- tmux list-windows -t host -F '#{window_id}'")
        uid = host.user("slot-coder").uid
        inside = session(
            host,
            f"tmux new-window; tmux -S /tmp/tmux-{uid}/default new-window; echo ${{TMUX:-none}}",
            before=f"TMUX=/tmp/tmux-{uid}/default,1,0",
        )
        assert inside.stdout.strip() == "none"
        assert host.check_output("runuser -u slot-coder -- tmux list-windows -t host -F '#{window_id}'") == before
    finally:
        host.run("runuser -u slot-coder -- tmux kill-server")


@pytest.mark.parametrize("request_code", ["0x5412", "0x541C"])
def test_es_05_typing_into_the_terminal_is_refused_on_a_real_one(host: Host, request_code: str) -> None:
    inject = (
        f"import fcntl\\ntry: fcntl.ioctl(0, {request_code}, b\\'x\\')\\n"
        "except OSError as error: print(\\'errno\\', error.errno)\\nelse: print(\\'injected\\')"
    )
    found = host.run(f"""script -qec "slotctl run coder -- -c \\"python3 -c \\$'{inject}'\\"" /dev/null""")
    assert "errno 1" in found.stdout, found.stdout
    assert "injected" not in found.stdout


def test_se_07_orphans_are_reaped(host: Host) -> None:
    dead = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null"
    script = f"for i in $(seq 300); do (true &); done; for i in $(seq 100); do sleep 0.2; {dead} >&2 || exit 0; done"
    assert session(host, f"{script}; exit 1").rc == 0


def test_nothing_survives_the_end_of_a_session(host: Host) -> None:
    started = "until pgrep -xf 'sleep 4711' >/dev/null; do sleep 0.1; done"
    assert session(host, f"setsid nohup sleep 4711 >/dev/null 2>&1 & disown; {started}").rc == 0
    assert host.run("pgrep -f 'sleep 4711'").rc == 1


@pytest.mark.parametrize(
    "path",
    [f"{STATE}/coder/workspaces/main", f"{STATE}/coder/workspaces", f"{STATE}/coder/homes/shell", f"{STATE}/coder"],
)
def test_es_10_the_account_cannot_put_another_directory_in_the_place_of_a_bind(host: Host, path: str) -> None:
    for attempt in (f"mv {path} {path}.away", f"rmdir {path}", f"ln -sfn /etc {path}.link"):
        assert host.run(f"runuser -u slot-coder -- {attempt}").failed


@pytest.mark.parametrize(
    "path",
    [
        "/opt/confined-slots/current",
        "/etc/confined-slots/slots.d/coder/plan",
        "/etc/systemd/system/confined-slots-coder.slice",
        "/var/log/confined-slots/coder/sessions.jsonl",
    ],
)
def test_pl_02_the_account_cannot_change_what_runs_next(host: Host, path: str) -> None:
    for attempt in ("echo x >>", "rm -f", "mv -t /tmp", "chmod 777", "ln -sf /etc/shadow"):
        host.run(f"runuser -u slot-coder -- sh -c '{attempt} {path}'")
        assert host.run("runuser -u slot-coder -- test -w %s", path).rc == 1
        assert host.file(path).exists
    assert session(host, "exit 3").rc == 3


def test_lr_06_a_copy_of_the_cli_in_home_does_not_take_its_place(host: Host) -> None:
    plant = r"printf '#!/bin/sh\necho evil\n' >$d/bash; chmod +x $d/bash"
    session(host, f"mkdir -p ~/.local/bin ~/bin; for d in ~/.local/bin ~/bin; do {plant}; done")
    try:
        assert session(host, "command -v bash; echo $0 $BASH").stdout.strip() == "/usr/bin/bash\nbash /usr/bin/bash"
    finally:
        session(host, "rm -rf ~/.local/bin ~/bin")


def test_cr_03_a_refused_launch_leaves_no_trace_in_home(host: Host) -> None:
    listing = f"find {STATE}/coder/homes {STATE}/coder/workspaces | sort"
    before = host.check_output(listing)
    assert host.run("slotctl run coder --workspace nothing").rc == 125
    assert host.check_output(listing) == before


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("slotctl run nobody --json", "slot-unknown"),
        ("slotctl run ../coder --json", "slot-unknown"),
        ("slotctl run coder --workspace review/../main --json", "workspace-unknown"),
    ],
)
def test_a_refusal_has_its_code_and_names_the_cure(host: Host, command: str, code: str) -> None:
    found = host.run(command)
    refusal = json.loads(found.stderr.splitlines()[-1])
    assert (found.rc, refusal["refusal"]) == (125, code)
    assert refusal["cure"]
    assert "Traceback" not in found.stderr


def test_scratch_in_memory_is_bounded(host: Host) -> None:
    found = session(host, "head -c 1100M /dev/zero >/dev/shm/x; stat -c %s /dev/shm/x")
    assert int(found.stdout) <= 1 << 30


@pytest.mark.parametrize("slot", ["coder", "reviewer", "build-er"])
def test_every_slot_runs_whatever_systemd_makes_of_its_name(host: Host, slot: str) -> None:
    found = session(host, "echo $CONFINED_SLOT; id -un; cat /proc/self/cgroup", slot=slot)
    assert found.stdout.split()[:2] == [slot, f"slot-{slot}"]
    assert (
        host.check_output("systemctl show --property=Slice --value confined-slots-%s.slice", slot.replace("-", r"\x2d"))
        == "confined-slots.slice"
    )


def test_the_operator_sees_what_a_session_wrote(host: Host) -> None:
    assert session(host, "echo done >result").rc == 0
    assert host.file(f"{STATE}/coder/workspaces/main/result").content_string == "done\n"
