# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules accounts, credentials and removal say what they would do, refuse in a sentence, and show no secret."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import types
import typing as t

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.confined.slots.plugins.module_utils import _accounts, _credentials, _ledger, _removal
from ansible_collections.confined.slots.plugins.module_utils._ledger import Entry, Ids, Ledger
from ansible_collections.confined.slots.plugins.modules import accounts, credentials, removal

HASH = "$6$rounds=656000$abcdefghijklmnop$" + "x" * 86
IDS = Ids(20000, 200_000_000, 65536)

Run = t.Callable[..., dict[str, t.Any]]


@pytest.fixture(autouse=True)
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the modules a host with nothing on it, and fail if one is changed."""

    def refuse(*_arguments: t.Any) -> None:
        raise AssertionError("the host would have been changed")

    monkeypatch.setattr(_ledger, "exclusive", contextlib.nullcontext)
    monkeypatch.setattr(_ledger, "load", Ledger)
    monkeypatch.setattr(_accounts, "find", lambda _slots: _accounts.Found())
    monkeypatch.setattr(_credentials, "find", lambda _slots: {})
    for module, name in ((_accounts, "apply"), (_credentials, "apply"), (_removal, "apply"), (_ledger, "save")):
        monkeypatch.setattr(module, name, refuse)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a module in check mode and returns what it prints."""

    def run_module(module: types.ModuleType, **arguments: t.Any) -> dict[str, t.Any]:
        with (
            patch_module_args({**arguments, "_ansible_check_mode": True, "_ansible_diff": True}),
            pytest.raises(SystemExit),
        ):
            module.main()
        printed: dict[str, t.Any] = json.loads(capsys.readouterr().out)
        return printed

    return run_module


def test_check_mode_tells_the_ids_that_a_slot_would_get(run: Run) -> None:
    result = run(accounts, slots=[{"name": "a"}, {"name": "b", "console_password_hash": HASH}], shell="/bin/sh")
    assert result["changed"] is True
    assert result["accounts"]["b"] == {"uid": 20001, "gid": 20001, "subid_first": 200_065_536, "subid_count": 65536}
    assert result["steps"][0]["action"] == "record"


def test_an_03_neither_result_nor_diff_nor_invocation_shows_a_secret(run: Run) -> None:
    slots = [{"name": "a", "console_password_hash": HASH, "credential": {"name": "API_KEY", "value": "sk-SECRET"}}]
    for module in (accounts, credentials):
        result = run(module, slots=slots)
        assert result["changed"] is True and result["diff"]
        assert "SECRET" not in json.dumps(result) and HASH not in json.dumps(result)


@pytest.mark.parametrize("module", [pytest.param(accounts, id="accounts"), pytest.param(credentials, id="credentials")])
def test_a_slot_that_cannot_be_is_refused_in_a_sentence(run: Run, module: types.ModuleType) -> None:
    result = run(module, slots=[{"name": "Not a name"}])
    assert result["failed"] is True and result["msg"].startswith("slots[0].name is 'Not a name'; it can be")
    assert "exception" not in result


def test_a_shell_that_the_host_lacks_is_refused(run: Run) -> None:
    assert "shell is '/bin/none', which is no program" in run(accounts, slots=[{"name": "a"}], shell="/bin/none")["msg"]


def test_no_slots_need_no_change(run: Run) -> None:
    assert run(accounts, slots=[])["changed"] is False
    assert run(credentials, slots=[])["changed"] is False


def test_removing_an_unknown_slot_is_refused_before_any_other_is_removed(run: Run) -> None:
    assert run(removal, names=["a"])["msg"].startswith("slot-unknown: no slot 'a'")


def test_removing_a_slot_again_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ledger, "load", lambda: Ledger({}, (("a", IDS),)))
    result = run(removal, names=["a"])
    assert (result["changed"], result["archives"]) == (False, [])


def test_check_mode_tells_the_archives_that_a_removal_would_make(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ledger, "load", lambda: Ledger({"a": Entry(IDS)}))
    found = dataclasses.replace(_removal.Found("a", IDS, leaving=False), workspaces=True)
    monkeypatch.setattr(_removal, "find", lambda _name, _ledger: found)
    result = run(removal, names=["a", "a"])
    assert result["archives"] == ["/var/lib/confined-slots/archive/a-20000-workspaces.tar.gz"]
    assert [step["action"] for step in result["steps"]] == ["begin removal", "archive workspaces", "retire"]
