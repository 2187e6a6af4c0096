# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A private network: a way out, none to the host, and no session without it."""

from __future__ import annotations

import collections.abc
import contextlib
import shlex
import typing as t

import pytest
import testinfra
from waiting import held, soon, until

if t.TYPE_CHECKING:
    from testinfra.backend.base import CommandResult
    from testinfra.host import Host

SLOT = "outgoing"
FORWARDED = 18080
LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    client, _address = server.accept()
    client.sendall(b"the host\\n")
    client.close()
"""
SAY = "exec 3<>/dev/tcp/{address}/{port} && head -n 1 <&3"


def session(host: Host, script: str) -> CommandResult:
    """Run a script in a session of the slot."""
    return host.run(f"slotctl run {SLOT} -- -c {shlex.quote(script)}")


@contextlib.contextmanager
def listening(host: Host, port: int, address: str = "127.0.0.1") -> collections.abc.Iterator[None]:
    """Have the host say something to whoever connects."""
    words = shlex.join(["python3", "-c", LISTEN, address, str(port)])
    pid = host.check_output(f"{words} >/dev/null 2>&1 & echo $!")
    try:
        soon(host, f"ss -Hltn sport = :{port} | grep -q .")
        yield
    finally:
        host.run(f"kill {pid}; {until(f'[ ! -e /proc/{pid} ]')}")


def gateway(host: Host) -> str:
    """Return the host's default gateway, by which pasta could mean the host itself."""
    return str(host.check_output("ip -4 route show default | cut -d' ' -f3"))


def test_a_private_network_reaches_other_machines_from_the_first_moment(
    host: Host, request: pytest.FixtureRequest
) -> None:
    others = [each for each in host.ansible.get_variables()["groups"]["slot_hosts"] if each != host.backend.host]
    if not others:
        pytest.skip("another test host is missing")
    inventory = request.config.getoption("ansible_inventory")
    other = testinfra.get_host(f"ansible://{others[0]}", ansible_inventory=inventory)
    address = other.ansible.get_variables()["ansible_host"]
    assert session(host, SAY.format(address=address, port=22)).stdout.startswith("SSH-2.0")


def test_names_are_looked_up_by_the_hosts_resolver(host: Host) -> None:
    script = "sed -n 's,.*https*://\\([^/: ]*\\).*,\\1,p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null"
    name = host.run(f"{script} | head -n 1").stdout.strip()
    known = host.run(f"getent ahostsv4 {name} | cut -d' ' -f1") if name else None
    if known is None or not known.stdout:
        pytest.skip("a resolver is missing: the test host cannot look up its own mirror")
    found = session(host, f"getent ahostsv4 {name} | cut -d' ' -f1").stdout.split()
    again = host.check_output(f"getent ahostsv4 {name} | cut -d' ' -f1")  # a mirror may have many addresses
    assert found and set(found) <= {*known.stdout.split(), *again.split()}


@pytest.mark.parametrize("address", ["127.0.0.1", "GATEWAY", "169.254.1.1", "OWN"])
def test_nothing_that_listens_on_the_hosts_loopback_answers(host: Host, address: str) -> None:
    own = host.check_output("hostname -I").split()[0]
    shown = {"GATEWAY": gateway(host), "OWN": own}.get(address, address)
    with listening(host, 18081):
        assert host.check_output(SAY.format(address="127.0.0.1", port=18081).join(("bash -c '", "'"))) == "the host"
        found = session(host, f"timeout 9 bash -c {shlex.quote(SAY.format(address=shown, port=18081))}; echo done")
    assert found.stdout == "done\n"


def test_no_other_address_of_the_host_answers(host: Host) -> None:
    address = "10.78.0.1"
    host.check_output(f"ip address add {address}/32 dev lo")
    try:
        with listening(host, 18081, "0.0.0.0"):
            say = SAY.format(address=address, port=18081)
            assert host.check_output(f"bash -c {shlex.quote(say)}") == "the host"
            found = session(host, f"timeout 9 bash -c {shlex.quote(say)}; echo done")
    finally:
        host.run(f"ip address del {address}/32 dev lo")
    assert found.stdout == "done\n"


def test_only_a_forwarded_port_of_the_hosts_loopback_answers(host: Host) -> None:
    with listening(host, FORWARDED):
        assert session(host, SAY.format(address="127.0.0.1", port=FORWARDED)).stdout == "the host\n"


def test_es_04_each_session_has_a_loopback_of_its_own(host: Host) -> None:
    say = SAY.format(address="127.0.0.1", port=18082)
    serve = f"python3 -c {shlex.quote(LISTEN)} 127.0.0.1 18082 & until ({say}) 2>/dev/null; do sleep 0.1; done"
    with held(host, SLOT, serve):
        assert session(host, say).rc not in (0, 125)


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        pytest.param("mv /usr/bin/pasta /usr/bin/pasta.away", "mv /usr/bin/pasta.away /usr/bin/pasta", id="no-pasta"),
        pytest.param("chmod 600 /dev/net/tun", "chmod 666 /dev/net/tun", id="no-tun"),
    ],
)
def test_pl_01_without_what_makes_the_network_no_session_starts(host: Host, broken: str, mended: str) -> None:
    host.check_output(broken)
    try:
        found = session(host, "echo it ran")
    finally:
        host.check_output(mended)
    assert (found.rc, found.stdout) == (125, "")
    assert "network-unavailable" in found.stderr


def test_pl_01_a_pasta_that_fails_ends_the_session_before_its_cli_starts(host: Host) -> None:
    host.check_output("mv /usr/bin/pasta /usr/bin/pasta.away")
    try:
        host.check_output("printf '#!/bin/sh\\necho no luck >&2; exit 3\\n' > /usr/bin/pasta; chmod 755 /usr/bin/pasta")
        found = session(host, "echo it ran")
    finally:
        host.check_output("mv /usr/bin/pasta.away /usr/bin/pasta")
    assert (found.rc, found.stdout) == (125, "")
    assert "pasta ended with 3: no luck" in found.stderr


def test_the_end_of_a_session_is_the_end_of_its_pasta(host: Host) -> None:
    assert session(host, "true").rc == 0
    assert host.run(f"pgrep -u slot-{SLOT}").stdout == ""
