# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker comes from the distribution's packages, which would start a daemon of root's by themselves."""

from __future__ import annotations

import json
import subprocess
import typing as t

import pytest

if t.TYPE_CHECKING:
    from testinfra.host import Host

ROOTFUL = ("containerd.service", "docker.service", "docker.socket")
PACKAGES = "docker.io docker-cli docker-buildx containerd rootlesskit slirp4netns"
PURGE = f"for name in {PACKAGES}; do ! dpkg -s $name >/dev/null 2>&1 || apt-get -q -y purge $name || exit; done"


def converge(host: Host, inventory: str) -> str:
    chosen = ("-i", inventory, "--limit", str(host.backend.host), "--tags", "rootless_docker")
    slots = json.dumps({"slots": host.ansible.get_variables()["docker_slots"]})
    words = ["ansible-playbook", *chosen, "-e", slots, "confined.slots.site"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def states(host: Host) -> list[str]:
    units = " ".join(ROOTFUL)
    return str(host.run(f"systemctl is-active {units}; systemctl is-enabled {units}").stdout).split()


def test_the_packages_are_installed_and_leave_no_daemon_of_roots_running_or_enabled(
    host: Host, request: pytest.FixtureRequest
) -> None:
    if host.run("apt-get -q update && apt-cache show docker.io").rc != 0:
        pytest.skip("the distribution's mirror is missing: this host does not reach it")
    inventory = request.config.getoption("ansible_inventory")
    host.run("systemctl stop 'confined-slots-docker@*'")
    host.check_output(f"export DEBIAN_FRONTEND=noninteractive; {PURGE}")
    converge(host, inventory)
    assert states(host) == ["inactive"] * 3 + ["disabled"] * 3
    assert host.run("ls -d /etc/systemd/system/*.d/confined-slots-hold.conf").stdout == ""
    assert host.service("confined-slots-docker@shipper").is_running
    assert "changed=0" in converge(host, inventory)


def test_a_rootful_unit_that_the_host_had_is_left_as_it_is(host: Host, request: pytest.FixtureRequest) -> None:
    host.check_output("systemctl enable --quiet --now containerd.service")
    try:
        assert "changed=0" in converge(host, request.config.getoption("ansible_inventory"))
        assert host.run("systemctl is-active containerd; systemctl is-enabled containerd").stdout.split() == [
            "active",
            "enabled",
        ]
    finally:
        host.check_output("systemctl disable --quiet --now containerd.service")
