# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where pytest uses several workers, each host's tests stay in one: they change the host one after the other."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of one host one group of pytest-xdist."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        host = callspec.params.get("_testinfra_host") if callspec else None
        if host is not None:
            item.add_marker(pytest.mark.xdist_group(str(host.backend.host)))
