# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of pasta, and what bwrap's word is taken for. How it works is shown on hosts."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _launch, _network
from ansible_collections.confined.slots.plugins.module_utils._refusals import Refusal


def told(data: bytes) -> int:
    read_end, write_end = os.pipe()
    os.write(write_end, data)
    os.close(write_end)
    try:
        return _network._first_process(read_end)
    finally:
        os.close(read_end)


def test_pasta_forwards_nothing_to_the_host_that_is_not_asked_for() -> None:
    words = _network.command("/u", "/n", [])
    assert "--no-map-gw" in words
    for option in ("--tcp-ports", "--udp-ports", "--tcp-ns", "--udp-ns"):
        assert words[words.index(option) + 1] == "none"


def test_a_forward_is_a_port_of_the_hosts_loopback_and_nothing_else() -> None:
    words = _network.command("/u", "/n", ["8080", "11434"])
    assert words[words.index("--tcp-ns") + 1] == "8080,11434"
    assert words[words.index("--tcp-ports") + 1] == "none"


@pytest.mark.parametrize("text", [b'{\n    "child-pid": 4711\n}\n', b'{"child-pid": 4711, "mnt-namespace": 9}'])
def test_the_first_process_is_read_out_of_what_bwrap_tells(text: bytes) -> None:
    assert told(text) == 4711


@pytest.mark.parametrize("text", [b"", b"{}", b'{"child-pid": }', b'{"child-pid": x}'])
def test_what_names_no_process_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        told(text)


FIB_TRIE = b"""Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/31 1 0 0
        |-- 127.0.0.1
           /32 host LOCAL
     |-- 10.78.0.1
        /32 host LOCAL
     +-- 172.17.0.0/16 2 0 2
        |-- 172.17.0.0
           /16 link UNICAST
        |-- 172.17.0.5
           /32 host LOCAL
        |-- 172.17.255.255
           /32 link BROADCAST
Local:
     |-- 10.78.0.1
        /32 host LOCAL
"""
IF_INET6 = b"""fd770000000000000000000000000001 01 40 00 80       lo
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000042acfffe110005 184 40 20 80     eth0
"""


def test_each_address_of_the_host_is_found_but_those_that_no_route_leads_to() -> None:
    assert _network.unreachable(FIB_TRIE, IF_INET6) == [
        "10.78.0.1/32",
        "172.17.0.5/32",
        "fd77:0000:0000:0000:0000:0000:0000:0001/128",
    ]
    assert _network.unreachable(b"", b"") == []


@pytest.mark.parametrize("missing", ["PASTA", "TUN", "IP", "NSENTER"])
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, missing: str) -> None:
    there = tmp_path / "there"
    there.touch(0o777)
    there.chmod(0o777)
    monkeypatch.setattr(_network, "PASTA", str(there))
    for name in ("TUN", "IP", "NSENTER"):
        monkeypatch.setattr(_network, name, str(there))
    _network.check()
    monkeypatch.setattr(_network, missing, str(tmp_path / "away"))
    with pytest.raises(Refusal, match=r"network-unavailable: .*away: No such file"):
        _network.check()


@pytest.mark.parametrize("broken", ["_first_process", "_made"])
def test_nothing_starts_where_making_the_network_fails_in_whatever_way(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fails(*_words: object) -> int:
        raise OSError("whatever")

    victim = os.fork()
    if victim == 0:
        signal.pause()
    monkeypatch.setattr(_network, "_first_process", lambda _told: victim)
    monkeypatch.setattr(_network, broken, fails)
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    child = os.fork()
    if child == 0:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
        _network._connect(read_end, write_end, [])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    with pytest.raises(BlockingIOError):
        os.read(read_end, 1)
    if broken == "_first_process":
        os.kill(victim, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL
    os.close(read_end)
    os.close(write_end)


def test_neither_the_child_nor_pasta_gets_a_descriptor_of_the_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    there, secret = tmp_path / "fds", tmp_path / "secret"
    secret.touch()

    def connect(told: int, release: int, _forwards: list[str]) -> None:
        held = [number for number in range(3, 256) if os.path.exists(f"/proc/self/fd/{number}")]
        passed = [number for number in held if os.get_inheritable(number)]
        there.write_text(f"{sorted(held) == sorted([told, release])} {passed}")
        os._exit(0)

    monkeypatch.setattr(_network, "check", lambda: None)
    monkeypatch.setattr(_network, "_connect", connect)
    keep = [os.open(secret, os.O_RDONLY)]
    os.set_inheritable(keep[0], True)
    words = _network.options(keep, [], _launch.close_all_but)
    os.wait()
    try:
        assert there.read_text() == "True []"
        assert words == ["--info-fd", str(keep[1]), "--block-fd", str(keep[2])]
        assert all(os.get_inheritable(number) for number in keep)
    finally:
        for number in keep:
            os.close(number)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exec sleep 60", "sh ended with -9: "),
        ("echo no way >&2; exit 3", "sh ended with 3: no way"),
        ("read line; [ $line = given ]", ""),
    ],
    ids=["hangs", "fails", "works"],
)
def test_what_makes_the_network_is_waited_for_no_longer_than_its_time(
    monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(_network, "SECONDS", 2 if "sleep" in script else 60)
    assert _network._run(["/bin/sh", "-c", script], b"given\n") == said


def test_pasta_waits_for_bwraps_own_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([b"", b"  |-- 0.0.0.0\n", b"  |-- 127.0.0.1\n     /32 host LOCAL\n"])
    monkeypatch.setattr(_network, "_read", lambda path: next(said) if path == "/proc/42/net/fib_trie" else b"")
    assert _network._without_loopback(42) == ""
    monkeypatch.setattr(_network, "_read", lambda _path: b"")
    monkeypatch.setattr(_network, "SECONDS", 0)
    assert "bwrap has not set up the loopback" in _network._without_loopback(42)
