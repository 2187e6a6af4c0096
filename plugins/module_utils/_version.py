# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's version, which its releases carry (a unit test holds it equal to galaxy.yml)."""

from __future__ import annotations

VERSION = "0.1.0"
