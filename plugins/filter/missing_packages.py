# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages a host lacks, by the files that they bring."""

from __future__ import annotations

import fnmatch
import typing as t

DOCUMENTATION = r"""
name: missing_packages
short_description: Which packages a host lacks
version_added: 0.1.0
description:
  - Returns the packages of which no file was found.
options:
  _input:
    description: Packages as dictionaries with C(package) and C(file), the last part of which may be a pattern.
    type: list
    elements: dict
    required: true
  found:
    description: Paths of the host's files.
    type: list
    elements: str
    required: true
author:
  - confined.slots contributors (@confined-slots)
"""

EXAMPLES = r"""
# has sudo and lacks strace
missing: "{{ [{'package': 'sudo', 'file': '/usr/bin/sudo'}, {'package': 'strace', 'file': '/usr/bin/strace'}]
  | confined.slots.missing_packages(['/usr/bin/sudo']) }}"
"""

RETURN = r"""
_value:
  description: Names of packages.
  type: list
  elements: str
"""


def missing_packages(needs: t.Iterable[t.Mapping[str, str]], found: t.Iterable[str]) -> list[str]:
    """Return the packages of which no file was found."""
    there = list(found)
    return [need["package"] for need in needs if not fnmatch.filter(there, need["file"])]


class FilterModule:
    """The filter, as Ansible asks for it."""

    def filters(self) -> dict[str, t.Any]:
        """Return the filters by name."""
        return {"missing_packages": missing_packages}
