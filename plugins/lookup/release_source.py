# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The digest by which a host knows the controller's part of its release."""

from __future__ import annotations

DOCUMENTATION = r"""
name: release_source
short_description: The digest of the release as this control node has it
version_added: 0.1.0
description:
  - Returns the digest of all that the module M(confined.slots.release) sends to a host, for pinning it there.
author: confined.slots contributors (@confined-slots)
options:
  image:
    description: Directory on the controller that holds what stands in a release; empty for the collection's own.
    type: str
    default: ""
  version:
    description: Version of the release; empty for the collection's own.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show the digest
  ansible.builtin.debug:
    msg: "{{ lookup('confined.slots.release_source') }}"
"""

RETURN = r"""
_list:
  description: The digest, SHA-256 in hex.
  type: list
  elements: str
"""

import typing as t

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ..module_utils._manifest import Untrusted
from ..plugin_utils import image


class LookupModule(LookupBase):  # type: ignore[misc]
    """Returns one digest."""

    def run(self, terms: list[t.Any], variables: dict[str, t.Any] | None = None, **kwargs: t.Any) -> list[str]:
        """Return it; AnsibleLookupError if the image cannot be read."""
        self.set_options(var_options=variables, direct=kwargs)
        try:
            return [image.collect(self.get_option("image") or None, self.get_option("version") or None).digest]
        except (Untrusted, OSError) as error:
            raise AnsibleLookupError(f"the release cannot be listed: {error} [mend the collection]") from error
