# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a session gets as its standard streams, and copying."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import socket
import subprocess
import sys
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slotctl.streams import MOST_KEPT, Relay, Streams, copy

LIBRARY = pathlib.Path(__file__).resolve().parents[3] / "roles" / "launcher" / "files" / "release" / "lib"
ASK = f"""
import json, os, sys
sys.path.insert(0, {str(LIBRARY)!r})
from slotctl.streams import Streams, open_missing
open_missing()
streams = Streams(terminal=False)
found = [given == number for number, given in enumerate(streams.given)], streams.given[1] == streams.given[2]
open(sys.argv[1], "w").write(json.dumps(found))
"""


def ask(directory: pathlib.Path, **streams: t.Any) -> tuple[list[bool], bool]:
    """Return which standard streams a session would get as they are, and whether its output and error are one."""
    answer = directory / "answer"
    subprocess.run([sys.executable, "-IS", "-c", ASK, str(answer)], check=True, **streams)
    passed, one = json.loads(answer.read_text())
    return passed, one


def test_pipes_pass_and_error_is_copied(tmp_path: pathlib.Path) -> None:
    found = ask(tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert found == ([True, True, False], False)


def test_one_pipe_for_output_and_error_stays_one(tmp_path: pathlib.Path) -> None:
    found = ask(tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert found == ([True, False, False], True) or found == ([True, True, False], True)


def test_a_terminal_never_passes(tmp_path: pathlib.Path) -> None:
    _unused, slave = pty.openpty()
    assert ask(tmp_path, stdin=slave, stdout=slave, stderr=slave) == ([False, False, False], True)


def test_a_socket_never_passes(tmp_path: pathlib.Path) -> None:
    ours, _unused = socket.socketpair()
    assert ask(tmp_path, stdin=ours, stdout=ours, stderr=ours) == ([False, False, False], True)


@pytest.mark.parametrize(("flags", "passes"), [(os.O_RDONLY, True), (os.O_RDWR, False)])
def test_a_file_passes_as_input_if_it_can_only_be_read(tmp_path: pathlib.Path, flags: int, passes: bool) -> None:
    (tmp_path / "file").touch()
    given_file = os.open(tmp_path / "file", flags)
    found = ask(tmp_path, stdin=given_file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert found[0][0] is passes


def test_a_file_never_passes_as_output(tmp_path: pathlib.Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        assert ask(tmp_path, stdin=subprocess.DEVNULL, stdout=file, stderr=file) == ([True, False, False], True)


def test_closed_streams_are_opened_on_nothing(tmp_path: pathlib.Path) -> None:
    answer = tmp_path / "answer"
    subprocess.run(
        ["sh", "-c", 'exec "$0" -IS -c "$1" "$2" <&- >&- 2>&-', sys.executable, ASK, str(answer)], check=True
    )
    assert json.loads(answer.read_text())[0][:2] == [True, True]


@given(st.lists(st.binary(min_size=1, max_size=9000), max_size=6))
def test_a_relay_copies_every_byte_in_order_and_keeps_the_end(pieces: list[bytes]) -> None:
    source, into = os.pipe()
    out, target = os.pipe()
    relay = Relay(source, target, owns_target=False)
    written = b""
    for piece in pieces:
        os.write(into, piece)
        for _unused in range(2 + len(piece) // 1000):
            copy([relay], (), 0)
        written += os.read(out, len(piece))
    os.close(into)
    while relay.open:
        copy([relay], (), 0)
    assert written == b"".join(pieces)
    assert relay.kept == written[-MOST_KEPT:]
    for descriptor in (out, target):
        os.close(descriptor)


def test_a_reader_that_goes_away_closes_the_source() -> None:
    source, into = os.pipe()
    out, target = os.pipe()
    relay = Relay(source, target, owns_target=False)
    os.close(out)
    os.write(into, b"x")
    for _unused in range(3):
        copy([relay] if relay.open else [], (), 0)
    assert not relay.open
    with pytest.raises(BrokenPipeError):
        os.write(into, b"y")
    os.close(into)
    os.close(target)


@pytest.mark.parametrize(("target", "losses"), [("/dev/full", ["standard output: No space left on device"]), ("", [])])
def test_a_full_disk_is_told_from_a_reader_that_went_away(target: str, losses: list[str]) -> None:
    source, into = os.pipe()
    out, gone = os.pipe()
    os.close(out)
    relay = Relay(source, os.open(target, os.O_WRONLY) if target else gone, owns_target=False)
    os.write(into, b"x")
    while relay.open:
        copy([relay], (), 0)
    streams = Streams(terminal=True)
    streams.outward = [relay]
    descriptor, relay.target = relay.target, 1
    assert streams.losses() == losses
    for each in sorted({into, gone, descriptor}):
        os.close(each)
