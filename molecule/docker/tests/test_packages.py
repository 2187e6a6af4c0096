# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker comes from the distribution's packages, which would start a daemon of root's by themselves."""

from __future__ import annotations

import typing as t

import pytest
from operators import Operator

if t.TYPE_CHECKING:
    from testinfra.host import Host

ROOTFUL = ("containerd.service", "docker.service", "docker.socket")
PACKAGES = "docker.io docker-cli docker-buildx containerd rootlesskit slirp4netns"
PURGE = f"for name in {PACKAGES}; do ! dpkg -s $name >/dev/null 2>&1 || apt-get -q -y purge $name || exit; done"


def converge(host: Host) -> str:
    operator = Operator.of(host)
    return operator.play("confined.slots.site", "--tags", "rootless_docker", slots=operator.variables()["docker_slots"])


def states(host: Host) -> list[str]:
    units = " ".join(ROOTFUL)
    return str(host.run(f"systemctl is-active {units}; systemctl is-enabled {units}").stdout).split()


def test_the_packages_are_installed_and_leave_no_daemon_of_roots_running_or_enabled(host: Host) -> None:
    if host.run("apt-get -q update && apt-cache show docker.io").rc != 0:
        pytest.skip("the distribution's mirror is missing: this host does not reach it")
    host.run("systemctl stop 'confined-slots-docker@*'")
    host.check_output(f"export DEBIAN_FRONTEND=noninteractive; {PURGE}")
    converge(host)
    assert states(host) == ["inactive"] * 3 + ["disabled"] * 3
    assert host.run("ls -d /etc/systemd/system/*.d/confined-slots-hold.conf").stdout == ""
    assert host.service("confined-slots-docker@shipper").is_running
    assert "changed=0" in converge(host)


def test_a_rootful_unit_that_the_host_had_is_left_as_it_is(host: Host) -> None:
    host.check_output("systemctl enable --quiet --now containerd.service")
    try:
        assert "changed=0" in converge(host)
        assert host.run("systemctl is-active containerd; systemctl is-enabled containerd").stdout.split() == [
            "active",
            "enabled",
        ]
    finally:
        host.check_output("systemctl disable --quiet --now containerd.service")
