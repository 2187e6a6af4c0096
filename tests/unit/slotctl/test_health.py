# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""MO-03: a check that hangs, dies, breaks or says nothing is unknown by name; and what of checks needs no host."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
import typing as t

import pytest
from confined_slots import _health, _plan
from confined_slots._files import UnsafePath
from confined_slots._health import CouldNot, DoesNotApply, ok
from confined_slots._manifest import Untrusted
from confined_slots._refusals import Refusal
from slotctl import health, report
from slotctl.health import confinement, context, docker, files, limits, logs, policy, runner, sessions

HOST = context.Host(context.Options(), ("coder",))


def check(look: t.Callable[[context.Context], t.Any], name: str = "tried", seconds: float = 60) -> context.Check:
    return context.Check(name, "about it", look, seconds)


def ran(*checks: context.Check, budget: float = 30.0) -> runner.Results:
    """Return what comes of checks of one subject."""
    (found,) = runner.run([runner.Subject(context.Context(HOST, "coder"), checks)], budget, 2)
    return found


def raising(error: BaseException) -> t.Callable[[context.Context], t.Any]:
    def look(_context: context.Context) -> t.Any:
        raise error

    return look


def fine(_context: context.Context) -> _health.Outcome:
    return ok("as it is to be")


def hang(_context: context.Context) -> t.NoReturn:
    while True:
        time.sleep(60)


def hang_deaf(_context: context.Context) -> t.NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(_context)


@pytest.mark.parametrize(
    ("look", "word"),
    [
        pytest.param(hang, "did not end", id="hangs"),
        pytest.param(hang_deaf, "did not end", id="hangs and ignores to be asked"),
        pytest.param(lambda _context: os.kill(os.getpid(), 9), "signal 9", id="is killed"),
        pytest.param(lambda _context: os._exit(0), "exit status 0", id="leaves with success"),
        pytest.param(raising(SystemExit(0)), "exit status", id="ends the program"),
        pytest.param(lambda _context: None, "no result", id="says nothing"),
        pytest.param(lambda _context: True, "no result", id="says true"),
        pytest.param(lambda _context: {"state": "ok"}, "no result", id="says something else"),
        pytest.param(raising(ImportError("no module")), "ImportError", id="lacks a module"),
        pytest.param(raising(OSError(5, "Input/output error", "/x")), "/x: Input/output error", id="cannot read"),
        pytest.param(raising(CouldNot("no tool")), "no tool", id="lacks a tool"),
        pytest.param(lambda _context: context.Outcome("OK", "x"), "is no state", id="mistypes the state"),
    ],
)
def test_mo_03_a_check_that_gives_no_result_is_unknown_and_the_next_has_its_own(
    look: t.Callable[[context.Context], t.Any], word: str
) -> None:
    seconds = 0.5 if look in (hang, hang_deaf) else 60
    found = ran(check(fine, "before"), check(look, seconds=seconds), check(fine, "after"))
    assert [(each["check"], each["state"]) for each in found.checks] == [
        ("before", "ok"),
        ("tried", "unknown"),
        ("after", "ok"),
    ]
    assert word in found.checks[1]["found"]


@pytest.mark.parametrize("error", [Refusal("policy-missing", "gone", "mend"), Untrusted("other's"), UnsafePath("link")])
def test_what_is_refused_is_critical(error: Exception) -> None:
    (found,) = ran(check(raising(error))).checks
    assert found["state"] == "critical" and found["cure"]


def test_what_does_not_apply_has_no_state_and_is_told() -> None:
    found = ran(check(raising(DoesNotApply("none declared"))))
    assert found.checks == []
    assert found.not_applicable == [{"slot": "coder", "check": "tried", "why": "none declared"}]


def test_what_the_budget_does_not_reach_is_unknown_never_left_out() -> None:
    subjects = [runner.Subject(context.Context(HOST, name), (check(hang, seconds=60), check(fine))) for name in "abc"]
    began = time.monotonic()
    found = runner.run(subjects, 0.5, 1)
    assert [[each["state"] for each in one.checks] for one in found] == [["unknown", "unknown"]] * 3
    assert all("budget" in each["found"] for one in found for each in one.checks)
    assert time.monotonic() - began < 30


def test_no_process_is_left_of_a_check_that_was_ended(tmp_path: pathlib.Path) -> None:
    def look(_context: context.Context) -> None:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        (tmp_path / "child").write_text(str(child))
        hang(_context)

    ran(check(look, seconds=3))
    child = int((tmp_path / "child").read_text())
    for _unused in range(1200):
        try:
            os.kill(child, 0)
            if "\nState:\tZ" in pathlib.Path(f"/proc/{child}/status").read_text():
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    pytest.fail("it goes on")


def test_ids_are_unique_and_plain() -> None:
    ids = [each.id for each in (*health.HOST_CHECKS, *health.SLOT_CHECKS)]
    assert len(ids) == len(set(ids)) and all(name.replace("-", "").isalpha() and name.islower() for name in ids)


def test_a_pattern_that_fits_no_check_is_an_error() -> None:
    with pytest.raises(health.NoSuchCheck):
        health.health(context.Options(), checks=["no-such"])


@pytest.mark.parametrize(
    ("data", "blank"),
    [
        (b"", True), (b" \n", True), (b"{}", True), (b'{"a": {"token": "", "at": 0}}', True), (b"[]", True),
        (b'{"token": "x"}', False), (b"{", False), (b"[" * 100000, False), (b"\xff\xfe", False), (None, False),
    ],
)  # fmt: skip
def test_cr_01_a_login_is_blank_if_nothing_is_in_it(data: bytes | None, blank: bool) -> None:
    assert policy.blank(data) is blank


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.500000s", 1_500_000),
        ("2s", 2_000_000),
        ("500ms", 500_000),
        ("1min 30s", 90_000_000),
        ("x", None),
        ("", None),
    ],
)
def test_systemds_spans_are_read(text: str, number: int | None) -> None:
    assert limits.microseconds_of(text) == number


def test_limits_are_compared_as_systemd_words_them() -> None:
    found = limits.expected_of({"memory_max": "2G", "cpu_quota": "150%", "tasks_max": 512})
    assert found == {"MemoryMax": "2147483648", "CPUQuotaPerSecUSec": "1500ms", "TasksMax": "512"}
    assert set(limits.expected_of({}).values()) == {"infinity"}


@pytest.mark.parametrize("start", [None, "", "yesterday", 5, {"x": 1}, "2026-13-45T00:00:00"])
def test_a_session_that_does_not_say_when_it_began_is_not_taken_for_young(start: t.Any) -> None:
    assert sessions.started_at({"start": start}) is None


def test_es_04_listening_abstract_sockets_are_found_by_the_kernels_table(tmp_path: pathlib.Path) -> None:
    (tmp_path / "unix").write_text(
        "Num RefCount Protocol Flags Type St Inode Path\n"
        "0: 00000002 00000000 00010000 0001 01 1 @helper with blanks\n"
        "0: 00000003 00000000 00000000 0001 03 2 @connected\n"
        "0: 00000002 00000000 00010000 0001 01 3 /run/x\n"
        "garbage\n"
    )
    assert confinement.listeners(str(tmp_path / "unix")) == ["@helper with blanks"]


def test_a_name_with_line_breaks_keeps_no_check_from_the_others(tmp_path: pathlib.Path) -> None:
    listens = b"00000002 00000000 00010000 0001 01 1"
    (tmp_path / "unix").write_bytes(
        b"0: " + listens + b" @a\nx x x zz x x x @y\r\x85 \xff\n0: " + listens + b" @b\x1b[2J\n"
    )
    assert confinement.listeners(str(tmp_path / "unix")) == ["@a", "@b\\x1b[2J"]


def test_a_table_of_sockets_without_an_end_is_not_read_to_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "MOST_SOCKETS", 2)
    (tmp_path / "unix").write_bytes(b"0: 00000002 00000000 00010000 0001 01 1 @a\n" * 3)
    assert confinement.listeners(str(tmp_path / "unix")) is None


def test_what_stands_in_a_daemons_place_is_trouble_and_no_traceback(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        assert set(docker.asked(str(tmp_path / name))) == {"trouble"}


@pytest.mark.parametrize(
    ("there", "holds"),
    [
        pytest.param([], False, id="an empty directory"),
        pytest.param(["incoming"], False, id="the empty one by which PID 1 could mount"),
        pytest.param(["incoming", "private"], True, id="PID 1's socket beside it"),
    ],
)
def test_what_a_daemon_sees_is_what_is_there(tmp_path: pathlib.Path, there: list[str], holds: bool) -> None:
    seen = tmp_path / "run/systemd"
    seen.mkdir(parents=True)
    for name in there:
        (seen / name).touch()
    assert docker._holds_anything(str(tmp_path), "/run/systemd") is holds
    assert not docker._holds_anything(str(tmp_path), "/run/docker.sock")
    assert docker._holds_anything(str(tmp_path), "/run/systemd/private") is ("private" in there)


@pytest.mark.parametrize(("rules", "size"), [(b"a {\n  maxsize 16M\n}", 16 << 20), (b"maxsize 5", 5)])
def test_lg_01_the_size_of_the_rules_is_the_one_that_is_compared(rules: bytes, size: int) -> None:
    assert logs.largest(rules) == size


def test_lg_01_rules_without_a_size_are_unknown() -> None:
    with pytest.raises(CouldNot):
        logs.largest(b"# maxsize 5M of old\nsize 3")


def test_lg_04_sizes_are_counted_without_following_links(tmp_path: pathlib.Path) -> None:
    (tmp_path / "home/deep").mkdir(parents=True)
    (tmp_path / "home/deep/log").write_bytes(b"x" * 100_000)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/large").write_bytes(b"x" * 1_000_000)
    (tmp_path / "home/link").symlink_to(tmp_path / "other")
    taken, whole = files.size_of([str(tmp_path / "home"), str(tmp_path / "home/link")])
    assert whole and 100_000 <= taken < 200_000


def test_lg_04_what_the_slot_closes_to_itself_is_not_taken_for_empty(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open/closed").mkdir(parents=True)
    scandir = os.scandir

    def closed(path: t.Any) -> t.Any:
        if str(path).endswith("closed"):
            raise PermissionError
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert files.size_of([str(tmp_path)])[1] is False
    assert files.size_of([str(tmp_path / "gone")])[1] is True


def test_lg_04_a_tree_too_large_to_count_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(files, "MOST_ENTRIES", 3)
    assert files.size_of([str(tmp_path)])[1] is False


POLICY: dict[str, t.Any] = {
    "slot": "coder",
    "network": "private",
    "forwards": [8080],
    "provider": {"command": ["/bin/bash"]},
    "isolation": [{"flag": "--unshare-pid", "reason": "x"}],
    "mounts": [{"kind": "bind", "target": "/usr", "reason": "x", "source": "/usr", "mode": "ro"}],
    "environment": {"set": {"HOME": "/h"}, "pass": ["TERM"]},
}
PLAN: list[_plan.Record] = [
    ("slot", "coder"), ("command", "/bin/bash"), ("flag", "--unshare-pid"), ("network", "private"), ("forward", "8080"),
    ("hostname", "coder"), ("bind", "ro", "/usr", "/usr"), ("set", "HOME", "/h"), ("pass", "TERM"),
]  # fmt: skip


class Slot:
    """A slot with a policy and a plan."""

    policy, records = POLICY, PLAN


def test_mo_05_the_policy_that_people_see_and_the_plan_are_the_same_records() -> None:
    slot = t.cast(t.Any, Slot())
    assert policy.promised(slot) == [record for record in PLAN if record[0] in policy.SHOWN]


@pytest.mark.parametrize("number", range(1, len(PLAN)))
def test_mo_05_whatever_is_taken_out_of_the_plan_is_missed(number: int) -> None:
    slot = t.cast(t.Any, Slot())
    found = [record for record in (*PLAN[:number], *PLAN[number + 1 :]) if record[0] in policy.SHOWN]
    assert policy.promised(slot) != found


def test_every_record_of_a_plan_is_shown_or_compared_elsewhere() -> None:
    elsewhere = {"label", "onexec", "landlock"} | {
        "slot",
        "enabled",
        "fingerprint",
        "ids",
        "workspace",
        "own",
        "identity",
        "credential",
        "approved",
        "policy",
    }
    assert set(_plan.ARITY) == policy.SHOWN | elsewhere


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"sauce": 1}', '{"source": 1, "declared": [{}]}', '{"state_bytes": "x"}', "{" * 9999]
)
def test_options_of_another_form_are_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(report._files, "read", lambda _path, _limit: text.encode())
    with pytest.raises(report.Impossible):
        report._options(str(tmp_path / "options"))


def test_options_are_taken_as_the_role_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"source": "ab", "declared": [{"name": "coder", "mode": "verified"}], "state_bytes": 5}
    monkeypatch.setattr(report._files, "read", lambda _path, _limit: json.dumps(given).encode())
    found = report._options("/x")
    assert (found.source, found.state_bytes) == ("ab", 5)
    assert found.declared is not None and found.declared["coder"].mode == "verified"


def test_people_see_what_is_wrong_first_with_the_cure() -> None:
    checks = [
        _health.as_json("a", ok("fine"), 1),
        _health.as_json("b", _health.warn("old", "new", "renew"), 1),
        _health.as_json("c", _health.critical("gone", "there", "mend"), 1),
    ]
    text = report.show(_health.report("box", 1.0, 1.0, checks, [], []), everything=True).splitlines()
    assert [line.split()[0] for line in text[:4]] == ["STATE", "critical", "warn", "ok"]
    assert "gone [mend]" in text[1]
