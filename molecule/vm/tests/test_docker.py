# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rootless Docker on a kernel of its own: what a container shows as well is in tests/docker, and attacked there."""

from __future__ import annotations

import typing as t

import pytest
from slot_docker import OTHER, SLOT, Docker
from test_attacks import MUTATIONS, changed, reached

if t.TYPE_CHECKING:
    from conftest import Guest


@pytest.fixture(scope="module")
def docker(guest: Guest) -> Docker:
    return Docker(guest.host, SLOT).with_image()


@pytest.fixture(scope="module")
def other(guest: Guest) -> Docker:
    return Docker(guest.host, OTHER).with_image()


def test_es_02_a_container_with_everything_reaches_nothing_of_the_host(docker: Docker) -> None:
    assert reached(docker) == []


@pytest.mark.parametrize("row", ["homes", "signals", "devices"])
def test_es_02_with_its_line_of_the_unit_changed_exactly_that_row_fails(docker: Docker, row: str) -> None:
    with changed(docker, *MUTATIONS[row]):
        assert reached(docker) == [row]


def test_a_privileged_container_reaches_nothing_more(docker: Docker) -> None:
    """A container on a container host cannot even start one: it has no sysfs to mount."""
    look = "ls /host /host/etc /host/run; head -c 1 /host/dev/vda && echo disk; head -c 1 /host/dev/kmsg && echo log"
    unload = "echo -n confined-slots-payload > /sys/kernel/security/apparmor/.remove && echo policy"
    tried = docker.session(f"docker run --rm --privileged -v /:/host box sh -c '{look}; {unload}'")
    seen = set(tried.stdout.split())
    assert "etc" in seen, tried.stderr
    assert not seen & {"home", "root", "boot", "shadow", "confined-slots", "dbus", "disk", "log", "policy"}


def test_two_slots_have_daemons_at_once_and_neither_sees_the_others(docker: Docker, other: Docker) -> None:
    named = "docker run -d --name {} box sleep 300 >/dev/null; docker ps --format '{{{{.Names}}}}'"
    assert docker.says(named.format("one")) == "one\n"
    assert other.says(named.format("two")) == "two\n"
    assert docker.says("docker rm -f one") + other.says("docker rm -f two") == "one\ntwo\n"


def test_memory_of_containers_is_limited_by_the_slots_slice(docker: Docker, guest: Guest) -> None:
    """A machine of these tests has no control groups for containers; a guest has."""
    hog = "docker run --rm --memory=2g box sh -c 'head -c 420m /dev/zero | tail -c 400m | wc -c'"
    said = docker.session(f"echo asked; {hog}").stdout
    assert "asked" in said and "419430400" not in said
    kills = guest.run(
        "cat /sys/fs/cgroup/confined.slice/confined-slots.slice/confined-slots-shipper.slice/memory.events"
    )
    assert "oom_kill 0" not in kills
    docker.wait()
    assert docker.says("docker run --rm box echo again") == "again\n"


def test_tasks_of_containers_are_limited_by_the_slots_slice(docker: Docker) -> None:
    bomb = "docker run --rm box sh -c 'i=0; while [ $i -lt 400 ]; do sleep 1000 & i=$((i+1)); done; echo $i' 2>&1"
    said = docker.session(f"echo asked; {bomb}").stdout.split("\n")
    assert "asked" in said and "400" not in said
    docker.wait()


def test_a_session_builds_an_image_and_runs_a_compose_project(docker: Docker) -> None:
    script = """
    set -e; rm -rf project; mkdir project; cd project; echo from-the-workspace > file
    printf 'FROM box\\nCOPY file /file\\nRUN echo built >> /file\\nCMD cat /file /work/file\\n' > Dockerfile
    printf 'services:\\n  one: {build: ., volumes: [".:/work"]}\\n' > compose.yml
    exec 2>/dev/null
    docker compose build >/dev/null; docker compose run --rm -T one; docker compose down
    """
    assert docker.says(script).split() == ["from-the-workspace", "built", "from-the-workspace"]
