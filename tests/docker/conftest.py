# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The slots with Docker daemons that the inventory declares as docker_slots."""

from __future__ import annotations

import collections.abc
import typing as t

import pytest
from slot_docker import OTHER, SLOT, Docker

if t.TYPE_CHECKING:
    from testinfra.host import Host


@pytest.fixture
def docker(host: Host) -> Docker:
    """The slot whose daemon is attacked."""
    return Docker(host, SLOT).with_image()


@pytest.fixture
def other(host: Host) -> Docker:
    """A slot in compatibility mode, with a dash in its name."""
    return Docker(host, OTHER).with_image()


@pytest.fixture
def declared(host: Host) -> collections.abc.Callable[..., list[dict[str, t.Any]]]:
    """Return the declared slots of these tests, with something of one of them changed."""

    def change(slot: str = "", **more: t.Any) -> list[dict[str, t.Any]]:
        slots: list[dict[str, t.Any]] = host.ansible.get_variables()["docker_slots"]
        return [{**each, **more} if each["name"] == slot else each for each in slots]

    return change
