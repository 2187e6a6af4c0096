# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is the same of every module."""

from __future__ import annotations


class ModuleDocFragment:
    """Each module says for itself what check mode predicts and what a diff shows."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Can run in check mode and return what it would change, without changing it.
  diff_mode:
    description: Shows what was changed, or in check mode would be.
  idempotent:
    description: A second run changes nothing.
    support: full
  platform:
    description: Linux with systemd.
    platforms: posix
    support: full
"""
