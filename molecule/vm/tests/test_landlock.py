# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Landlock's scope, which this kernel has: what a session with the host's network cannot reach all the same."""

from __future__ import annotations

import json
import typing as t

from waiting import soon

LISTEN = """
import socket, time
server = socket.socket(socket.AF_UNIX)
server.bind('\\0confined-slots-test')
server.listen()
time.sleep(300)
"""
CONNECT = "import socket; socket.socket(socket.AF_UNIX).connect('\\0confined-slots-test')"


def test_es_04_no_abstract_socket_of_the_host_answers_a_session_that_shares_its_network(guest: t.Any) -> None:
    guest.run('systemd-run --quiet --unit=test-abstract python3 -c "$(cat)"', given=LISTEN)
    try:
        soon(guest.host, "grep -q @confined-slots-test /proc/net/unix")
        refused = guest.session("shipper", f'python3 -c "{CONNECT}"')
        outside = guest.asked(f'python3 -c "{CONNECT}"')
    finally:
        guest.run("systemctl stop test-abstract")
    assert outside.returncode == 0, outside.stderr
    assert "PermissionError" in refused.stderr


def test_its_own_abstract_sockets_and_signals_work(guest: t.Any) -> None:
    script = "import socket, os, signal; s = socket.socket(socket.AF_UNIX); s.bind('\\0own'); s.listen();"
    script += " socket.socket(socket.AF_UNIX).connect('\\0own'); os.kill(os.getppid(), 0); print('works')"
    assert guest.session("shipper", f'python3 -c "{script}"; true').stdout == "works\n"


def test_the_mutations_of_landlock_and_of_apparmor_are_caught_by_their_probes(guest: t.Any) -> None:
    for slot, words, names in (
        ("shipper", "Landlock", ["no Landlock"]),
        ("shipper", "userns", ["no --disable-userns"]),
        ("nester", "AppArmor", ["no AppArmor"]),
        ("coder", "outside of", ["launcher outside of its profile"]),
        ("coder", "of environment", ["launcher without its check of environment"]),
    ):
        rows = json.loads(guest.asked(f"slotctl selftest {slot} --only '{words}' --json").stdout)
        assert [row["name"] for row in rows if row["kind"] == "mutation"] == names
        assert [row for row in rows if not row["ok"]] == []
        assert {"label"} <= {row["name"] for row in rows if row["kind"] == "probe"}


def test_a_cli_behind_landlock_has_its_signals_and_exit_status(guest: t.Any) -> None:
    assert guest.session("shipper", "exit 42").returncode == 42
    assert guest.session("shipper", "kill -INT $$; sleep 1").returncode == 130
    assert guest.session("shipper", "grep -E 'SigIgn|SigBlk' /proc/self/status").stdout.split()[1::2] == ["0" * 16] * 2
