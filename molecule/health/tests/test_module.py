# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module and the playbook: they compare with the controller's own, and nothing on the host vouches for itself."""

from __future__ import annotations

import json
import pathlib

from ansible_collections.confined.slots.plugins.module_utils import _health

from .conftest import Operator, bad_of
from .table import FORGE, UNFORGE, python

testinfra_hosts = ["ansible://slot_hosts"]


def test_the_module_gives_a_report_the_same_in_check_mode_and_changes_nothing(operator: Operator) -> None:
    found = operator.module("sandbox_health", only_slots=["patient"], fail_on="never")
    _health.check_report(found)
    assert found["changed"] is False and found["summary"]
    assert [slot["slot"] for slot in found["slots"]] == ["patient"] and found["checks"] == []
    checked = operator.module("sandbox_health", check=True, only_slots=["patient"], fail_on="never")
    assert bad_of(checked) == bad_of(found) == {} and checked["changed"] is False


def test_a_release_that_is_consistent_in_itself_and_not_the_controllers_is_critical(operator: Operator) -> None:
    """slotctl on the host believes its manifest; the module compares with the controller's own copy."""
    try:
        operator.do(python(FORGE, "lib/slotctl/approve.py", "longer"))
        own = bad_of(operator.health("--check=release"))
        found = operator.module("sandbox_health", only_checks=["release"], fail_on="never")
    finally:
        operator.do(UNFORGE)
    assert own == {}
    assert bad_of(found) == {("", "release"): "critical"}


def test_a_slotctl_that_lies_is_not_asked(operator: Operator) -> None:
    lie = """#!/bin/sh\necho '{"schema": 1, "state": "ok"}'"""
    path = "/opt/confined-slots/current/bin/slotctl"
    operator.do(f"cp -p {path} /run/slotctl; cat > {path} <<'END'\n{lie}\nEND")
    try:
        found = operator.module("sandbox_health", only_checks=["release"], fail_on="never")
    finally:
        operator.do(f"cat /run/slotctl > {path}; rm /run/slotctl")
    assert bad_of(found) == {("", "release"): "critical"}


def test_a_pinned_digest_takes_the_place_of_the_controllers(operator: Operator) -> None:
    found = operator.module("sandbox_health", only_checks=["release"], source="0" * 64, fail_on="never")
    assert bad_of(found) == {("", "release"): "critical"}


def test_mo_03_the_module_fails_where_something_is_critical_or_unknown(operator: Operator) -> None:
    operator.do("chmod o+r /etc/shadow")
    try:
        critical = operator.module("sandbox_health", only_checks=["account-files"])
        never = operator.module("sandbox_health", only_checks=["account-files"], fail_on="never")
    finally:
        operator.do("chmod o-r /etc/shadow")
    assert "account-files critical" in critical["msg"] and critical["state"] == "critical"
    assert never["state"] == "critical" and "msg" not in never
    operator.do("mv /usr/bin/bwrap /usr/bin/bw.away")
    try:
        unknown = operator.module("sandbox_health", only_checks=["bwrap"])
    finally:
        operator.do("mv /usr/bin/bw.away /usr/bin/bwrap")
    assert "bwrap unknown" in unknown["msg"] and unknown["changed"] is False


def test_a_filter_that_fits_nothing_is_no_health(operator: Operator) -> None:
    assert operator.module("sandbox_health", only_checks=["no-such-check"])["state"] == "unknown"
    assert operator.module("sandbox_health", only_slots=["ghost"])["state"] == "unknown"


def test_the_name_of_a_slot_can_be_no_option(operator: Operator) -> None:
    found = operator.module("sandbox_health", only_slots=["--textfile=/run/pwned"], fail_on="never")
    assert "name is '--textfile=/run/pwned'" in found["msg"]
    assert not operator.says("test -e /run/pwned")


def test_a_slot_that_is_declared_and_not_there_is_critical(operator: Operator) -> None:
    declared = [*operator.slots(), {"name": "ghost"}]
    found = operator.module("sandbox_health", only_checks=["slots"], declared=declared, fail_on="never")
    assert bad_of(found) == {("", "slots"): "critical"}


def test_the_playbook_writes_the_report_with_a_host_that_is_not_reached(
    operator: Operator, tmp_path: pathlib.Path
) -> None:
    far = {"ansible_host": "192.0.2.1", "ansible_ssh_common_args": "-o ConnectTimeout=1"}
    hosts = {"all": {"children": {"slot_hosts": {"hosts": {"far-away": far}}}}}
    (tmp_path / "more.yml").write_text(json.dumps(hosts))
    chosen = ("--inventory", str(tmp_path / "more.yml"), "--limit", f"{operator.host.backend.host},far-away")
    words = ("-e", f"health_report={tmp_path}", *chosen)
    done = operator.played("confined.slots.health", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "health.json").read_text())
    states = {each["host"]: each["state"] for each in report["hosts"]}
    assert set(states) == {str(operator.host.backend.host), "far-away"} and states["far-away"] == "unknown"
    assert 'host="far-away"' in (tmp_path / "health.prom").read_text()
    assert "far-away" in (tmp_path / "health.html").read_text()
    assert operator.played("confined.slots.health", *words, "-e", "health_fail_on=critical").returncode != 0
