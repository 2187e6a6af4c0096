#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the credential files of all slots of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: credentials
short_description: Keep the credential files of all slots
description:
  - Keeps the declared credential of each slot in C(/etc/confined-slots/credentials/NAME/PROVIDER.env), mode C(0600) and
    owned by root in directories that only root enters. systemd reads it when a session starts; no process of a slot
    can.
  - Removes every other file of a declared slot there, so that a changed provider or a withdrawn credential leaves none.
  - Refuses one value for two slots whose CLI renews it, and a login file with a refresh token for any.
  - Neither a value nor its length or hash is ever shown.
version_added: 0.1.0
author: confined.slots contributors (@confined-slots)
options:
  profiles:
    description:
      - Contracts of the providers, as the lookup P(confined.slots.profiles#lookup) gives them.
      - They say which credentials a CLI renews; none is known to be if left out.
    type: list
    elements: dict
    default: []
extends_documentation_fragment:
  - confined.slots.attributes
  - confined.slots.slots
attributes:
  check_mode:
    support: full
  diff_mode:
    description: Shows which files there are, with owner and mode; never what is in them.
    support: full
seealso:
  - module: confined.slots.accounts
  - module: confined.slots.policy
"""

EXAMPLES = r"""
- name: Keep one credential file for each slot that declares one
  confined.slots.credentials:
    slots:
      - name: coder
        provider: claude_code
        credential:
          name: CLAUDE_CODE_OAUTH_TOKEN
          value: "{{ vault_coder_token }}"
    profiles: "{{ lookup('confined.slots.profiles') }}"
"""

RETURN = r"""
steps:
  description: What was changed, or would be in check mode, in order.
  returned: success
  type: list
  elements: dict
  sample:
    - subject: /etc/confined-slots/credentials/coder/claude_code.env
      action: replace credential
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _credentials, _ledger, _profiles, _steps
from ..module_utils._declarations import Invalid, parse, slots_argument
from ..module_utils._files import UnsafePath


def converge(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Keep the files as declared and return the module's result."""
    slots = parse(params["slots"])
    _credentials.check_shared(slots, _profiles.parse(params["profiles"]))
    with _ledger.exclusive():
        changes = list(_credentials.changes(slots, _credentials.find(slots)))
        if not check_mode:
            _credentials.apply(changes)
    return _steps.as_result([change.step for change in changes])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "slots": slots_argument(),
            "profiles": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**converge(module.params, module.check_mode))
    except (Invalid, UnsafePath) as refused:
        module.fail_json(msg=str(refused))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'the credentials'}: {error.strerror} [converge again once mended]")


if __name__ == "__main__":
    main()
