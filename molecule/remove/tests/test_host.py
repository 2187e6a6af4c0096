# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host itself is fit for the scenario."""

from __future__ import annotations

import testinfra.host

testinfra_hosts = ["ansible://slot_hosts"]


def test_systemd_runs_without_a_failed_unit(host: testinfra.host.Host) -> None:
    assert host.check_output("systemctl is-system-running") == "running"
