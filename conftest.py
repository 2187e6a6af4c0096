# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where pytest uses several workers, each host's tests stay in one: they change the host one after the other."""

from __future__ import annotations

import typing as t

from xdist.scheduler import LoadScopeScheduling

if t.TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer


class ByHost(LoadScopeScheduling):
    """Gives each worker the tests of a host, whose name stands in their ids: `…[ansible://slot-debian13-…]`."""

    def _split_scope(self, nodeid: str) -> str:
        _unused, found, rest = nodeid.partition("[ansible://slot-")
        return rest.partition("]")[0].partition("-")[0] if found else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByHost:
    """Return the scheduler of pytest-xdist."""
    return ByHost(config, log)
