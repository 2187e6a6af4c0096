# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lookup of provider profiles."""

from __future__ import annotations

DOCUMENTATION = r"""
name: profiles
short_description: The provider profiles, the collection's and the site's own
version_added: 0.1.0
description:
  - Reads the contracts of the providers (one YAML file each), checks them, and returns them for the modules
    M(confined.slots.policy) and M(confined.slots.providers).
author:
  - confined.slots contributors (@confined-slots)
options:
  _terms:
    description: Names of providers; without any, all profiles are returned.
    type: list
    elements: str
  site:
    description:
      - Directory on the control node with profiles of the site's own, C(NAME.yml) each.
      - One of the name of a profile of the collection takes its place as a whole.
      - Empty for none.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Keep the policies
  confined.slots.policy:
    slots: "{{ slots }}"
    profiles: "{{ lookup('confined.slots.profiles', site='/srv/profiles') }}"
"""

RETURN = r"""
_raw:
  description: The profiles, sorted by name.
  type: list
  elements: dict
"""

import os
import typing as t

import yaml
from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ..module_utils import _profiles
from ..module_utils._declarations import Invalid

OWN = os.path.normpath(os.path.join(os.path.dirname(__file__), "../../profiles"))


def read_directory(directory: str) -> dict[str, dict[str, t.Any]]:
    """Return the profiles in a directory by name; Invalid if a file is no YAML mapping or has another's name."""
    found = {}
    for file in sorted(os.listdir(directory)):
        name, ending = os.path.splitext(file)
        if ending not in (".yml", ".yaml") or file.startswith("."):
            continue
        path = os.path.join(directory, file)
        with open(path, encoding="utf-8") as stream:
            try:
                entry = yaml.safe_load(stream)
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise Invalid(f"{path} is not YAML: {' '.join(str(error).split())} [mend it]") from None
        try:
            _profiles.parse([entry])
        except Invalid as error:
            raise Invalid(f"{path}: {error}") from None
        if entry["name"] != name:
            raise Invalid(f"{path} is the profile '{entry['name']}' [name the file {entry['name']}{ending}]")
        found[name] = entry
    return found


class LookupModule(LookupBase):  # type: ignore[misc]
    """Returns the profiles as data."""

    def run(
        self, terms: list[str], variables: dict[str, t.Any] | None = None, **kwargs: t.Any
    ) -> list[dict[str, t.Any]] | list[list[dict[str, t.Any]]]:
        """Return the profiles of the names asked for, or all."""
        self.set_options(var_options=variables, direct=kwargs)
        # not of type path: that makes the current directory of an empty one
        site = os.path.expanduser(self.get_option("site"))
        try:
            profiles = read_directory(OWN) | (read_directory(site) if site else {})
            known = _profiles.parse(list(profiles.values()))
            for term in terms:
                _profiles.named(term, known, "provider")
        except Invalid as error:
            raise AnsibleLookupError(str(error)) from error
        except OSError as error:
            raise AnsibleLookupError(f"{error.filename}: {error.strerror} [mend the site's profiles]") from error
        return [[profiles[name] for name in sorted(terms or profiles)]]
