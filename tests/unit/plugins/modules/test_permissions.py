# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module permissions: what it does, what it only says, and when it fails."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.confined.slots.plugins.module_utils import _layout, _permissions
from ansible_collections.confined.slots.plugins.module_utils._files import Found, Owned, UnsafePath
from ansible_collections.confined.slots.plugins.modules import permissions

FILES = {
    "/etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nslot-coder:x:20000:20000::/h:/bin/sh\n",
    "/etc/group": b"root:x:0:\nslot-coder:x:20000:\n",
}
HOME = _layout.account_home("coder")
LOG = _layout.log("coder")
PLAN = _layout.plan("coder")

Run = t.Callable[..., dict[str, t.Any]]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, Found | UnsafePath | None]:
    """Return the host's paths as they are found; one that is not named there is as it should be."""
    paths: dict[str, Found | UnsafePath | None] = {}

    def find(nodes: t.Iterable[_permissions.Node]) -> t.Iterator[tuple[_permissions.Node, t.Any]]:
        plan = _permissions.Node(PLAN, Owned(0, 20000, 0o640), "input", made=False)
        for node in [*nodes, plan]:
            right = Found("directory" if node.kind == "directory" else "file", node.owned)
            yield node, paths.get(node.path, right)

    monkeypatch.setattr(_permissions, "find", find)
    monkeypatch.setattr(_permissions, "docker_problems", lambda _accounts: [])
    monkeypatch.setattr(permissions, "read", FILES.get)
    return paths


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of the changes that were applied, which happens nowhere but in this list."""
    paths: list[str] = []
    monkeypatch.setattr(_permissions, "apply", lambda change: paths.append(change.node.path))
    return paths


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the module for the slot coder and returns what it prints, with its own warnings."""
    warnings: list[str] = []
    monkeypatch.setattr(permissions.AnsibleModule, "warn", lambda _module, text: warnings.append(text))

    def run_module(*, check: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        given = {"slots": [{"name": "coder"}], **arguments, "_ansible_check_mode": check, "_ansible_diff": True}
        with patch_module_args(given), pytest.raises(SystemExit):
            permissions.main()
        printed: dict[str, t.Any] = json.loads(capsys.readouterr().out)
        return {**printed, "warnings": warnings}

    return run_module


def test_a_host_that_is_as_declared_is_not_changed(run: Run, host: dict[str, t.Any], applied: list[str]) -> None:
    assert run()["changed"] is False
    assert applied == []


def test_check_mode_says_what_would_be_done_and_does_nothing(
    run: Run, host: dict[str, t.Any], applied: list[str]
) -> None:
    host[LOG] = Found("directory", Owned(0, 20000, 0o777))
    result = run(check=True)
    assert result["steps"] == [{"subject": LOG, "action": "repair"}]
    assert (result["diff"][0]["before"], result["diff"][0]["after"]) == ("0:20000 0777\n", "0:20000 0750\n")
    assert applied == []


def test_check_mode_predicts_slots_whose_account_is_still_to_be_made(
    run: Run, host: dict[str, t.Any], applied: list[str]
) -> None:
    host[_layout.account_home("new")] = None
    result = run(check=True, slots=[{"name": "new"}])
    assert [entry["after"] for entry in result["diff"]] == ["?:? 0700\n"]
    assert result["warnings"] == []
    assert not result.get("failed")


def test_a_slot_without_an_account_fails_and_the_others_converge(
    run: Run, host: dict[str, t.Any], applied: list[str]
) -> None:
    host[HOME] = None
    result = run(slots=[{"name": "new"}, {"name": "coder"}])
    assert result["failed"] is True
    assert "account-missing: slot new" in result["msg"]
    assert applied == [HOME]


def test_es12_an_unsafe_path_fails_by_name_after_the_rest_has_converged(
    run: Run, host: dict[str, t.Any], applied: list[str]
) -> None:
    host[HOME] = Found("link", Owned(20000, 20000, 0o777))
    host[LOG] = Found("directory", Owned(0, 0, 0o777))
    result = run()
    assert result["failed"] is True
    assert result["problems"][0].startswith(f"unsafe-path: {HOME} is a link")
    assert applied == [LOG]
    assert result["changed"] is True


def test_es12_an_open_plan_is_never_given_a_closed_mode(run: Run, host: dict[str, t.Any], applied: list[str]) -> None:
    host[PLAN] = Found("file", Owned(0, 20000, 0o666))
    assert "unsafe-path" in run()["msg"]
    assert applied == []


def test_check_mode_only_warns_of_what_an_earlier_role_would_mend(
    run: Run, host: dict[str, t.Any], applied: list[str]
) -> None:
    host[PLAN] = Found("file", Owned(0, 20000, 0o666))
    result = run(check=True)
    assert not result.get("failed")
    assert PLAN in str(result["warnings"])


def test_repair_only_repairs_warns_and_creates_nothing(run: Run, host: dict[str, t.Any], applied: list[str]) -> None:
    host[HOME] = None
    host[LOG] = Found("directory", Owned(0, 0, 0o777))
    host[_layout.SLOTS_D] = Found("link", Owned(0, 0, 0o777))
    result = run(repair_only=True, slots=[{"name": "coder"}, {"name": "new"}])
    assert not result.get("failed")
    assert applied == [LOG]
    assert [_layout.SLOTS_D in warning for warning in result["warnings"]] == [True]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        pytest.param(UnsafePath("/x is a link"), "unsafe-path: /x is a link", id="link"),
        pytest.param(OSError(30, "Read-only file system"), "Read-only file system", id="read-only"),
    ],
)
def test_a_change_that_fails_is_named_and_nothing_below_it_is_tried(
    run: Run, host: dict[str, t.Any], monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    tried: list[str] = []

    def fail(change: _permissions.Change) -> None:
        tried.append(change.node.path)
        raise error

    host[_layout.state("coder")] = None
    host[HOME] = None
    monkeypatch.setattr(_permissions, "apply", fail)
    result = run()
    assert says in result["msg"]
    assert result["changed"] is False
    assert tried == [_layout.state("coder")]


def test_a_declaration_that_cannot_be_is_refused_before_anything_is_looked_at(run: Run) -> None:
    assert "'Coder'" in run(slots=[{"name": "Coder"}])["msg"]
