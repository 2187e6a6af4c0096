# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""AppArmor and Landlock from what the host has over the plan to the launcher (that they hold is shown in the guest)."""

from __future__ import annotations

import subprocess
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import (
    _apparmor_profiles,
    _host,
    _landlock,
    _launch,
    _plan,
    _policy,
)
from ansible_collections.confined.slots.plugins.module_utils._refusals import Refusal

from .compiling import compiled, host

WALLS = ("label", "onexec", "landlock")
LABEL = ("label", _apparmor_profiles.LAUNCHER)


def walls(**declared: t.Any) -> list[_plan.Record]:
    """Return the walls in the plan of a slot on a host that has all."""
    (policy,) = compiled("isolated", on=host(confined=True, scope="3"), **declared)
    return [record for record in _plan.load(policy.plan()) if record[0] in WALLS]


def test_a_plan_asks_for_what_the_host_has() -> None:
    assert walls() == [LABEL, ("landlock", "3")]
    nesting = ("onexec", _apparmor_profiles.NESTING_BWRAP)
    assert walls(nested_sandbox=True) == [LABEL, nesting, ("landlock", "3")]
    (bare,) = compiled("isolated")
    assert not bare.walls


def test_walls_grant_nothing_so_a_policy_is_the_same_with_them() -> None:
    (with_them,), (without,) = compiled("isolated", on=host(confined=True, scope="3")), compiled("isolated")
    assert with_them.fingerprint() == without.fingerprint() and with_them.plan() != without.plan()


def test_only_a_slot_that_may_nest_gives_up_the_flag_and_its_policy_is_another() -> None:
    (plain,), (nesting,) = compiled("isolated"), compiled("isolated", nested_sandbox=True)
    assert set(plain.flags) - set(nesting.flags) == {_policy.NO_NESTING}
    assert plain.fingerprint() != nesting.fingerprint()


@pytest.mark.parametrize(
    ("found", "starts"),
    [
        (f"{_apparmor_profiles.LAUNCHER} (enforce)", True),
        (f"{_apparmor_profiles.LAUNCHER} (complain)", False),
        ("unconfined", False),
        ("", False),
    ],
)
def test_bw_01_the_launcher_runs_in_its_profile_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, found: str, starts: bool
) -> None:
    monkeypatch.setattr(_launch, "_first_line", lambda _path: found)
    _launch.check_label([])  # a host without AppArmor
    if starts:
        _launch.check_label([LABEL])
        return
    with pytest.raises(Refusal, match=f"sandbox-unavailable: .*{_apparmor_profiles.LAUNCHER}, the AppArmor profile"):
        _launch.check_label([LABEL])


def test_a_profile_that_cannot_be_changed_to_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launch, "APPARMOR", "nowhere/")
    _launch.change_profile([])
    with pytest.raises(Refusal, match="sandbox-unavailable: AppArmor profile some-profile"):
        _launch.change_profile([("onexec", "some-profile")])
    with pytest.raises(Refusal, match="sandbox-unavailable: the launcher runs as '/proc/self/attr/nowhere/current"):
        _launch.check_label([LABEL])


def test_the_cli_comes_after_landlock_where_there_is_one() -> None:
    assert _launch.for_the_cli([], ["/bin/x"])[0] == _launch.ENV
    words = _launch.for_the_cli([("landlock", "3")], ["/bin/x", "--version"])
    assert words[0] == _landlock.PERL and words[-3:] == ["3,HUP,INT,QUIT,TERM,TSTP", "/bin/x", "--version"]


def run(scope: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run words within a scope."""
    return subprocess.run(_landlock.scoped(scope, ("INT",), [*words]), capture_output=True, text=True, check=False)


def test_what_runs_within_a_scope_does_so_whole_or_not_at_all() -> None:
    done = run("3", "/bin/sh", "-c", "echo ran")
    if _host.landlock_abi() >= _landlock.SCOPE_ABI:
        assert (done.returncode, done.stdout) == (0, "ran\n")
    else:
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr.startswith("slot-launcher: sandbox-unavailable: Landlock: ")


def test_a_scope_that_the_kernel_does_not_know_is_a_refusal() -> None:
    done = run(str(1 << 60), "/bin/sh", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (125, "")


def test_a_program_that_is_not_there_ends_as_a_shell_has_it() -> None:
    # the calls are taken out: what follows them is the same on every kernel
    after = _landlock._PROGRAM[_landlock._PROGRAM.index("$SIG") :]
    for words, status in ((["/nowhere/x"], 127), (["/etc"], 126)):
        command = [_landlock.PERL, "-e", f"my @signals = ('INT'); {after}", "--", *words]
        assert subprocess.run(command, capture_output=True, check=False).returncode == status
