# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of pasta, and what bwrap's word is taken for. How it works is shown on hosts."""

from __future__ import annotations

import os
import pathlib

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


@pytest.mark.parametrize("missing", ["PASTA", "TUN"])
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, missing: str) -> None:
    there = tmp_path / "there"
    there.touch(0o777)
    there.chmod(0o777)
    monkeypatch.setattr(_network, "PASTA", str(there))
    monkeypatch.setattr(_network, "TUN", str(there))
    _network.check()
    monkeypatch.setattr(_network, missing, str(tmp_path / "away"))
    with pytest.raises(Refusal, match=r"network-unavailable: .*away: No such file"):
        _network.check()


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
