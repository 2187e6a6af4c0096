# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read out of a trace, however its names are spelt; what makes it partial; and what candidate it comes to."""

from __future__ import annotations

import json
import typing as t

import pytest
import yaml
from ansible_collections.confined.slots.plugins.module_utils import _discovery
from ansible_collections.confined.slots.plugins.module_utils._discovery import Access, Trace, candidate, read_trace
from hypothesis import given
from hypothesis import strategies as st

LAUNCHER = "/opt/confined-slots/releases/1-0/bin/slot-launcher"
WORKSPACE = "/var/lib/confined-slots/slots/coder/workspaces/main"
HOME = "/var/lib/confined-slots/slots/coder/homes/cli"
POLICY: dict[str, t.Any] = {
    "mounts": [
        {"kind": "bind", "target": "/usr", "source": "/usr", "mode": "ro", "reason": "programs"},
        {"kind": "bind", "target": "/etc/ssl/certs", "source": "/etc/ssl/certs", "mode": "ro", "reason": "for TLS"},
        {"kind": "tmpfs", "target": "/tmp", "mode": "1777", "reason": "scratch"},
        {"kind": "home", "target": HOME, "reason": "a HOME in memory"},
        {"kind": "bind", "target": f"{HOME}/.cli", "source": "/x", "mode": "rw", "reason": "Use your login"},
        {"kind": "mask", "target": f"{HOME}/.ssh", "reason": "programs keep secrets there"},
        {"kind": "workspace", "target": WORKSPACE, "mode": "rw", "reason": "the workspace"},
        {"kind": "seal", "target": "/", "reason": "nothing can be added"},
    ]
}
names = st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name and name.strip(b"/.") != b"")


def spelt(name: bytes) -> str:
    """Return a name as strace writes it in hexadecimal."""
    return "".join(f"\\x{byte:02x}" for byte in name)


def opened(path: bytes, result: str = "-1 ENOENT (No such file or directory)", flags: str = "O_RDONLY") -> str:
    """Return the line of an openat in the workspace."""
    return f'openat(AT_FDCWD<{spelt(WORKSPACE.encode())}>, "{spelt(path)}", {flags}) = {result}'


def traced(*lines: str, ends: bool = True) -> bytes:
    """Return a trace: process 10 is the launcher, 11 what bwrap makes of it, 12 the CLI, whose lines are given."""
    begin = [
        "10    --- stopped by SIGSTOP ---",
        "10    --- SIGCONT {si_signo=SIGCONT, si_code=SI_USER, si_pid=1, si_uid=0} ---",
        f'10    execve("{spelt(LAUNCHER.encode())}", [...], 0x7f /* 9 vars */) = 0',
        f"10    {opened(b'/etc/of-the-launcher')}",
        "10    clone(child_stack=NULL, flags=CLONE_NEWNS|CLONE_NEWPID|SIGCHLD) = 11",
        f"11    {opened(b'/etc/of-bwrap')}",
        "11    clone(child_stack=NULL, flags=SIGCHLD) = 2",
        f'12    execve("{spelt(b"/usr/bin/cli")}", [...], 0x7f /* 9 vars */) = 0',
    ]
    end = (
        ["12    +++ exited with 0 +++", "11    +++ exited with 0 +++", "10    +++ killed by SIGKILL +++"]
        if ends
        else []
    )
    whole = [*begin, *(line if line[:1].isdigit() else f"12    {line}" for line in lines), *end]
    return "".join(f"{line}\n" for line in whole).encode()


def read(*lines: str) -> Trace:
    """Return what is read of a trace with these lines of the CLI."""
    return read_trace(traced(*lines), LAUNCHER)


def asked(*lines: str) -> list[Access]:
    """Return what the CLI tried but for its own start, once sure that the trace is complete."""
    trace = read(*lines)
    assert trace.faults == ()
    return [each for each in trace.accesses if each.what != "/usr/bin/cli"]


@given(names, names)
def test_a_name_is_read_as_it_was_whatever_its_bytes_are(name: bytes, forged: bytes) -> None:
    path = b"/etc/" + name.replace(b"/", b"-") + b"\n12    " + forged.replace(b"/", b"-") + b'", O_RDONLY) = 3'
    assert asked(opened(path)) == [Access("read", _discovery.decoded(path), "ENOENT")]


@given(st.binary(max_size=300))
def test_whatever_bytes_stand_in_a_trace_it_is_read_or_partial_and_nothing_breaks(data: bytes) -> None:
    trace = read_trace(data, LAUNCHER)
    assert trace.faults
    candidate(trace, POLICY, {})


@given(st.binary(min_size=1, max_size=80), st.integers(min_value=0))
def test_a_trace_with_anything_put_into_it_is_partial_or_says_the_same_or_more(forged: bytes, place: int) -> None:
    lines = traced(opened(b"/etc/wanted")).split(b"\n")
    lines.insert(place % len(lines), forged)
    trace = read_trace(b"\n".join(lines), LAUNCHER)
    assert trace.faults or Access("read", "/etc/wanted", "ENOENT") in trace.accesses


@given(st.integers(min_value=0))
def test_a_trace_that_was_cut_short_anywhere_is_partial(length: int) -> None:
    whole = traced(opened(b"/etc/wanted"), opened(b"/usr/x", "3<\\x2f\\x75>"))
    assert read_trace(whole, LAUNCHER).faults == ()
    assert read_trace(whole[: length % len(whole)], LAUNCHER).faults


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        pytest.param(opened(b"/usr/x", f"3<{spelt(b'/usr/y')}>"), Access("read", "/usr/y", ""), id="where a link led"),
        pytest.param(opened(b"a/../b"), Access("read", f"{WORKSPACE}/b", "ENOENT"), id="in its directory"),
        pytest.param(
            opened(b"/etc/x", flags="O_WRONLY|O_CREAT, 0666"), Access("write", "/etc/x", "ENOENT"), id="write"
        ),
        pytest.param(
            f'newfstatat(3<{spelt(b"/etc")}>, "{spelt(b"x")}", 0x7ffe, 0) = -1 EACCES (Permission denied)',
            Access("look", "/etc/x", "EACCES"),
            id="from a descriptor",
        ),
        pytest.param(
            f"connect(3<{spelt(b'socket:[1]')}>, {{sa_family=AF_INET6, sin6_port=htons(9), sin6_flowinfo=htonl(0),"
            f' inet_pton(AF_INET6, "{spelt(b"::1")}", &sin6_addr), sin6_scope_id=0}}, 28) = -1 ECONNREFUSED (Refused)',
            Access("connect", "[::1]:9", "ECONNREFUSED"),
            id="the internet",
        ),
        pytest.param(
            f'connect(3<{spelt(b"socket:[1]")}>, {{sa_family=AF_UNIX, sun_path=@"{spelt(b"bus")}"}}, 6) = 0',
            Access("connect", "@bus", ""),
            id="an abstract socket",
        ),
    ],
)
def test_a_call_says_what_was_tried_where_and_how_that_ended(line: str, wanted: Access) -> None:
    assert asked(line) == [wanted]


def test_a_rename_touches_both_of_its_names() -> None:
    line = f'rename("{spelt(b"/etc/a")}", "{spelt(b"/etc/b")}") = -1 EROFS (Read-only file system)'
    assert asked(line) == [Access("write", "/etc/a", "EROFS"), Access("write", "/etc/b", "EROFS")]


def test_calls_that_other_processes_cut_in_two_are_joined() -> None:
    first, _unused, rest = opened(b"/etc/x").partition(", O_")
    lines = (
        f"12    {first} <unfinished ...>",
        f"13    {opened(b'/etc/y')}",
        f"12    <... openat resumed>, O_{rest}",
        "13    +++ killed by SIGSEGV (core dumped) +++",
    )
    assert {each.what for each in asked(*lines)} == {"/etc/x", "/etc/y"}


def test_a_thread_that_executes_a_program_goes_on_as_its_process() -> None:
    lines = (
        f'14    execve("{spelt(b"/bin/sh")}", [...], 0x7f /* 9 vars */ <unfinished ...>',
        "12    ???( <unfinished ...>",
        "12    +++ superseded by execve in pid 14 +++",
        "12    <... execve resumed>)             = 0",
    )
    assert asked(*lines) == [Access("execute", "/bin/sh", "")]


def test_what_launcher_and_bwrap_do_outside_is_not_the_clis() -> None:
    assert not {"/etc/of-the-launcher", "/etc/of-bwrap"} & {each.what for each in read().accesses}


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        pytest.param(("ptrace(PTRACE_TRACEME)            = -1 EPERM (Operation not permitted)",), "ptrace", id="wary"),
        pytest.param(
            ("clone(child_stack=NULL, flags=CLONE_UNTRACED|SIGCHLD) = 3",), "cannot be traced", id="hides a child"
        ),
        pytest.param((f"15    {opened(b'/etc/x')}",), "1 processes have no end", id="lost a process"),
        pytest.param(('read(3, "x", 1) = 1',), "none of strace's", id="a call that is not traced"),
        pytest.param(("<... openat resumed>) = 3",), "none of strace's", id="an end without a beginning"),
    ],
)
def test_what_may_have_gone_unseen_makes_a_trace_partial(lines: tuple[str, ...], fault: str) -> None:
    faults = read(*lines).faults
    assert fault in faults[0]


def test_a_trace_that_began_too_late_is_partial() -> None:
    late = b"\n".join(traced().split(b"\n")[3:])
    assert "it does not begin with the launcher" in read_trace(late, LAUNCHER).faults


def there(path: str, kind: str = "directory", *, shut: bool = False, **more: str) -> dict[str, t.Any]:
    """Return what stands on the host where a path leads."""
    return {"source": {"path": path, "kind": kind, "real": path, **more}, "shut": shut}


def test_a_candidate_has_what_is_there_outside_and_was_refused() -> None:
    trace = read(opened(b"/srv/data"), opened(b"/srv/data/x"), opened(b"/srv/nothing"), opened(b"/tmp/x"))
    host = {"/srv/data": there("/srv/data"), "/srv/data/x": there("/srv/data/x", "file"), "/tmp/x": there("/tmp/x")}
    found = candidate(trace, POLICY, host)
    assert [(each["path"], each["mode"]) for each in found["wanted"]] == [("/srv/data", "ro")]
    assert found["complete"] and found["barred"] == []


def test_more_refusals_than_are_looked_for_make_a_discovery_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = read(opened(b"/srv/a"), opened(b"/srv/b"))
    monkeypatch.setattr(_discovery, "MOST_REFUSED", 1)
    assert _discovery.refused(trace, POLICY) == ["/srv/a"]
    found = candidate(trace, POLICY, {})
    assert not found["complete"] and "only the first" in found["faults"][0]


@pytest.mark.parametrize(
    ("path", "source", "why"),
    [
        pytest.param("/home/a/.ssh/id", there("/home/a/.ssh/id", "file"), "nothing at, in or around /home", id="home"),
        pytest.param("/srv/key", there("/srv/key", "file", shut=True), "owner and mode", id="not readable"),
        pytest.param("/srv/d", there("/srv/d", socket="/srv/d/s"), "is a socket", id="a socket in it"),
        pytest.param("/srv/d", there("/srv/d", writable_parent="/srv"), "written by others than root", id="others'"),
        pytest.param(f"{HOME}/.ssh", there(f"{HOME}/.ssh"), "nothing at, in or around", id="masked"),
        pytest.param("/srv/\udcff", there("/srv/\udcff"), "not UTF-8", id="no text"),
    ],
)
def test_what_no_policy_could_have_is_shown_with_the_reason_and_not_proposed(
    path: str, source: dict[str, t.Any], why: str
) -> None:
    found = candidate(read(opened(path.encode("utf-8", "surrogateescape"))), POLICY, {path: source})
    assert found["wanted"] == []
    assert why in found["barred"][0]["why"]
    assert path.encode("unicode_escape", "backslashreplace").decode() not in _discovery.overlay(found, "coder", "s")


def test_what_was_to_be_written_is_proposed_writable_if_it_is_a_directory() -> None:
    trace = read(opened(b"/srv/d", flags="O_RDWR|O_CREAT, 0666"), opened(b"/srv/f", flags="O_RDWR"))
    found = candidate(trace, POLICY, {"/srv/d": there("/srv/d"), "/srv/f": there("/srv/f", "file")})
    assert [(each["path"], each["mode"]) for each in found["wanted"]] == [("/srv/d", "rw")]
    assert "bind its directory" in found["barred"][0]["why"]


def test_a_candidate_says_what_is_granted_and_not_used_and_what_is_forgotten() -> None:
    made = opened(f"{HOME}/.config/x".encode(), "3<" + spelt(f"{HOME}/.config/x".encode()) + ">", "O_WRONLY|O_CREAT")
    kept = opened(f"{HOME}/.cli/x".encode(), "3<" + spelt(f"{HOME}/.cli/x".encode()) + ">", "O_WRONLY|O_CREAT")
    found = candidate(read(made, kept), POLICY, {})
    assert found["forgotten"] == [".config"]
    assert found["unused"] == [{"path": "/etc/ssl/certs", "reason": "for TLS"}]


@given(st.lists(st.text(min_size=1, max_size=20).filter(lambda name: "/" not in name and "\0" not in name), max_size=5))
def test_an_overlay_is_yaml_that_names_each_path_and_leaves_the_reasons_open(paths: list[str]) -> None:
    wanted = [{"path": f"/srv/{path}", "mode": "ro"} for path in paths]
    network = [{"what": f"@{path}", "error": "ECONNREFUSED"} for path in paths]
    text = _discovery.overlay({"wanted": wanted, "network": network}, "coder", "s")
    if any(0xD800 <= ord(letter) <= 0xDFFF for path in paths for letter in path):
        return
    binds = yaml.safe_load(text)["binds"]
    assert [(bind["source"], bind["reason"]) for bind in binds] == [(each["path"], "") for each in wanted]


def test_the_same_evidence_gives_the_same_candidate() -> None:
    data, host = traced(opened(b"/srv/b"), opened(b"/srv/a")), {"/srv/a": there("/srv/a"), "/srv/b": there("/srv/b")}
    twice = [json.dumps(candidate(read_trace(data, LAUNCHER), POLICY, host)) for _unused in range(2)]
    assert twice[0] == twice[1]


def test_every_call_that_is_looked_at_is_traced_and_none_that_carries_contents() -> None:
    assert set(_discovery.CALLS) < set(_discovery.TRACED)
    assert not {"read", "write", "sendto", "sendmsg", "recvfrom", "setxattr", "symlink"} & set(_discovery.TRACED)
