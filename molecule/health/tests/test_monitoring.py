# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""MO-02 and MO-03 on a host: the result reaches node exporter, journal and Nagios, and is seen to grow old there."""

from __future__ import annotations

import collections.abc
import json
import pathlib

import pytest
from waiting import until

from .conftest import COLLECTION, SLOTCTL, Operator

testinfra_hosts = ["ansible://slot_hosts"]

DIRECTORY = "/var/lib/prometheus/node-exporter"
FILE = f"{DIRECTORY}/confined_slots.prom"
LAST = "/var/lib/confined-slots/monitoring/last.json"
START = "systemctl start confined-slots-health.service"
PACKAGES = "prometheus prometheus-node-exporter"
FETCH = """python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:9100/metrics").read().decode())'"""


@pytest.fixture(scope="module", autouse=True)
def exporter(operator: Operator) -> collections.abc.Iterator[None]:
    """Have Debian's node exporter and promtool, and the checks write for them."""
    install = f"DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends {PACKAGES}"
    if not operator.says("command -v promtool && command -v prometheus-node-exporter"):
        done = operator.host.run(f"apt-get -q update && {install} && systemctl disable --quiet --now prometheus")
        if done.failed:
            pytest.skip(f"needs the packages {PACKAGES} on the test host")
    words = ("--tags", "monitoring", "-e", json.dumps({"slots": operator.slots()}))
    done = operator.played("confined.slots.site", *words, "-e", f"monitoring_textfile_directory={DIRECTORY}")
    assert done.returncode == 0, done.stdout + done.stderr
    operator.do(until(f"{FETCH} > /dev/null 2>&1"))
    yield
    operator.played("confined.slots.site", *words)
    operator.do(f"rm -f {FILE}")


def metrics(operator: Operator) -> dict[str, float]:
    """Return what the node exporter tells of us."""
    lines = [line for line in operator.do(FETCH).splitlines() if line.startswith("confined_slots")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_the_exporter_tells_what_was_found_and_promtool_takes_it(operator: Operator) -> None:
    operator.do(START)
    told = metrics(operator)
    assert told['confined_slots_health_check_state{check="marker",slot="patient"}'] == 0
    assert told["confined_slots_health_schema_version"] == 1
    age = float(operator.do("date +%s.%N")) - told["confined_slots_health_timestamp_seconds"]
    assert 0 <= age < 600
    assert operator.do(f"promtool check metrics < {FILE} 2>&1") == ""
    assert operator.do(f"stat -c '%U:%G %a' {FILE} {LAST}").split("\n") == ["root:root 644", "root:root 600"]
    assert operator.do(f"ls -A {DIRECTORY}") == "confined_slots.prom"


def test_promtool_takes_the_rules_and_old_numbers_raise_the_alert(operator: Operator) -> None:
    rules = (COLLECTION / "roles/monitoring/files/prometheus-rules.yml").read_text("utf-8")
    tests = (pathlib.Path(__file__).parent / "rules_test.yml").read_text("utf-8")
    operator.do(
        f"mkdir -p /run/rules; cat > /run/rules/prometheus-rules.yml <<'END'\n{rules}\nEND\n"
        f"cat > /run/rules/rules_test.yml <<'END'\n{tests}\nEND"
    )
    operator.do("cd /run/rules; promtool check rules prometheus-rules.yml; promtool test rules rules_test.yml")
    broken = "sed -i 's/> 900/> 900000/' prometheus-rules.yml; promtool test rules rules_test.yml"
    assert not operator.says(f"cd /run/rules; {broken}")


def test_the_expressions_of_the_dashboard_ask_for_metrics_that_there_are(operator: Operator) -> None:
    board = json.loads((COLLECTION / "roles/monitoring/files/grafana-dashboard.json").read_text("utf-8"))
    names = {name.partition("{")[0] for name in metrics(operator)}
    for panel in board["panels"]:
        for target in panel["targets"]:
            rule = json.dumps({"groups": [{"name": "x", "rules": [{"record": "x", "expr": target["expr"]}]}]})
            operator.do(f"cat > /run/board.yml <<'END'\n{rule}\nEND\npromtool check rules /run/board.yml")
            assert any(name in target["expr"] for name in names), target["expr"]


def test_changes_of_state_are_told_to_the_journal_once(operator: Operator) -> None:
    asked = "journalctl --sync; journalctl _UID=0 CONFINED_SLOTS_EVENT=health CONFINED_SLOTS_CHECK=account-files"
    operator.do(START)
    before = len(operator.do(f"{asked} -o cat -q").splitlines())
    operator.do(f"chmod o+r /etc/shadow; {START}; {START}; chmod o-r /etc/shadow; {START}; {START}")
    lines = operator.do(f"{asked} -o cat -q").splitlines()[before:]
    assert [line.partition(":")[2].split(":")[0].strip() for line in lines] == [
        "account-files is critical, was ok",
        "account-files is ok, was critical",
    ]


def test_mo_02_the_metrics_of_a_removed_slot_vanish_with_it(operator: Operator) -> None:
    slot = {"name": "short-lived"}
    words = ("--tags", "accounts,policy,permissions", "-e", json.dumps({"slots": [slot]}))
    assert operator.played("confined.slots.site", *words).returncode == 0
    operator.do(START)
    assert any('slot="short-lived"' in name for name in metrics(operator))
    removal = ("-e", "slot=short-lived", "-e", "workspaces=delete")
    assert operator.played("confined.slots.remove_slot", *removal).returncode == 0
    assert not any('slot="short-lived"' in name for name in metrics(operator))


def test_mo_02_a_run_that_is_cut_short_leaves_no_old_ok_behind(operator: Operator) -> None:
    operator.do(START)
    operator.do("systemctl start --no-block confined-slots-health.service")
    running = "systemctl show -p SubState confined-slots-health.service | grep -q start"
    operator.do(f"{until(running)}; systemctl kill --kill-whom=main --signal=KILL confined-slots-health.service")
    operator.do(until("systemctl is-failed --quiet confined-slots-health.service"))
    told = metrics(operator)
    assert told["confined_slots_health_state"] == 3
    assert told['confined_slots_health_check_state{check="health",slot=""}'] == 3
    operator.do(START)


def test_mo_02_a_full_disk_keeps_the_old_file_whole_and_the_run_fails(operator: Operator) -> None:
    operator.do(f"mount -t tmpfs -o size=64k,mode=0755 tmpfs {DIRECTORY}; {START}")
    try:
        whole = operator.do(f"cat {FILE}")
        operator.do(f"cat /dev/zero > {DIRECTORY}/full 2> /dev/null || true")
        assert not operator.says(START)
        assert operator.do(f"cat {FILE}") == whole
    finally:
        operator.do(f"umount {DIRECTORY}")


def test_a_link_in_the_exporters_directory_is_replaced_and_one_on_the_way_refused(operator: Operator) -> None:
    operator.do(f"ln -sf /etc/hostname {FILE}; {START}; test ! -L {FILE}; ! grep -q confined /etc/hostname")
    operator.do(f"mv {DIRECTORY} {DIRECTORY}.away; ln -s /etc {DIRECTORY}")
    try:
        assert not operator.says(START)
        assert not operator.says("test -e /etc/confined_slots.prom")
    finally:
        operator.do(f"rm {DIRECTORY}; mv {DIRECTORY}.away {DIRECTORY}; {START}")


@pytest.mark.parametrize(
    ("broken", "mended", "status"),
    [
        pytest.param("true", "true", {0, 1}, id="well, or with what the test host lacks"),
        pytest.param("chmod o+r /etc/shadow", "chmod o-r /etc/shadow", {2}, id="critical"),
        pytest.param("mv /usr/bin/bwrap /usr/bin/bw.away", "mv /usr/bin/bw.away /usr/bin/bwrap", {3}, id="unknown"),
    ],
)
def test_mo_03_as_a_nagios_plugin_it_says_one_line_and_its_status(
    operator: Operator, broken: str, mended: str, status: set[int]
) -> None:
    operator.do(broken)
    try:
        done = operator.host.run(f"{SLOTCTL} health --nagios")
    finally:
        operator.do(mended)
    assert done.rc in status, done.stdout
    (line,) = done.stdout.splitlines()
    text, _unused, numbers = line.partition(" | ")
    assert text.split()[1] in ("OK", "WARN", "CRITICAL", "UNKNOWN")
    assert dict(word.split("=") for word in numbers.split()).keys() == {
        "ok",
        "warn",
        "unknown",
        "critical",
        "slots",
        "time",
    }


def test_pl_09_two_failed_runs_in_a_row_make_health_critical(operator: Operator) -> None:
    """The fake CLI ends with 3, so that each run of the schedule fails."""
    unit = "confined-slots-patient-schedule-nightly.service"
    found = []
    for _run in range(2):
        operator.host.run(f"systemctl start {unit}")
        report = operator.health("patient --check=schedules")
        found.append(report["slots"][0]["checks"][0]["state"])
    assert found == ["warn", "critical"]
    operator.do(f"systemctl reset-failed {unit}; rm /var/log/confined-slots/patient/sessions.jsonl")
    operator.kept("permissions", slots=operator.slots())
