#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the providers (coding CLIs) of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: providers
short_description: Keep the providers (coding CLIs) of a host root-owned, at exact versions
version_added: 0.1.0
description:
  - Lays the tree of each provider below C(/opt/confined-slots/providers/NAME/VERSION), owned by root, every file
    verified against its manifest as read back from the disk, and records the manifest's digest.
  - The control node fetches a tree with npm, or takes it from a local archive; nothing that was fetched is executed
    there. The packed tree is kept in the user's cache directory, and sent only to hosts that lack it.
  - Every file of every tree is verified at each run. A tree that has drifted is replaced.
  - A new version is laid beside the old one; the slots use it once their policy is compiled again. Old versions are
    removed when neither a slot's plan nor a process needs them.
author:
  - confined.slots contributors (@confined-slots)
extends_documentation_fragment:
  - confined.slots.attributes
attributes:
  check_mode:
    support: full
    details:
      - Nothing is fetched then, so the digest of a tree that is not there yet is not known.
  diff_mode:
    support: full
options:
  providers:
    description:
      - The providers to keep, where something else is wanted than what their profiles say.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the provider's profile.
        type: str
        required: true
      version:
        description: One exact version; ranges and tags are refused. Without it, the one that the profile pins.
        type: str
      source:
        description: Where its tree comes from. Without it, what the profile says.
        type: str
        choices: [builtin, npm, archive]
      archive:
        description:
          - With O(providers[].source=archive), a tar archive on the control node that holds the tree.
          - The paths of the provider's profile are looked for in it.
        type: path
      sha256:
        description: SHA-256 that the archive must have.
        type: str
      tree:
        description: Digest of the manifest that the tree must have, as an earlier run has returned it.
        type: str
  names:
    description:
      - Names of providers that must be there as their profiles pin them, unless O(providers) names them too.
    type: list
    elements: str
    default: []
  profiles:
    description: Contracts of the providers, as the lookup P(confined.slots.profiles#lookup) gives them.
    type: list
    elements: dict
    required: true
  keep:
    description: How many versions of each provider are kept beside the one in use.
    type: int
    default: 1
  archives:
    description: The packed trees on the host; the action plugin fills it in when the host lacks them.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Keep the shell and Codex
  confined.slots.providers:
    names: [shell, codex]
    profiles: "{{ lookup('confined.slots.profiles') }}"

- name: Keep Pi from an archive, for a site without a registry
  confined.slots.providers:
    providers:
      - name: pi
        source: archive
        archive: /srv/packages/pi-1.6.0.tar.gz
        sha256: 5f1c4ac2e44e9ae5d5a0b1b2f4f5f9f1d4e5c6b7a8091a2b3c4d5e6f708192a3
    profiles: "{{ lookup('confined.slots.profiles') }}"
"""

RETURN = r"""
providers:
  description: The providers by name, each with V(version), V(path) and V(tree), the digest of its manifest.
  type: dict
  returned: success
  sample: {"shell": {"version": "distribution", "path": "/usr/bin/bash", "tree": null}}
needs:
  description: Names of providers whose packed trees the host lacks; for the action plugin.
  type: list
  elements: str
  returned: success
machine:
  description: The host's machine, as C(uname -m) says it.
  type: str
  returned: success
steps:
  description: What was done (in check mode, would be).
  type: list
  elements: dict
  returned: success
  contains:
    subject:
      description: What the step is about.
      type: str
    action:
      description: What is done to it.
      type: str
"""

import platform
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _files, _layout, _profiles, _providers, _release
from ..module_utils._declarations import Invalid
from ..module_utils._steps import Step, as_result


def keep_providers(module: AnsibleModule) -> dict[str, t.Any]:
    """Return the result of keeping them all, or which trees are needed for it."""
    profiles = _profiles.parse(module.params["profiles"])
    entries = _providers.parse(module.params["providers"], module.params["names"], profiles)
    wanted = _providers.wanted_of(entries, profiles)
    records = _providers.records()
    leftovers = _providers.leftovers(wanted)
    steps = [Step("leftovers of killed runs", "remove", "\n".join(leftovers))] if leftovers else []
    plans: list[tuple[_providers.Wanted, _providers.Found, list[Step]]] = []
    for one in wanted:
        found = _providers.find(one, records.get(one.name))
        if one.profile.kind == "builtin" and found.fault and not module.check_mode:
            module.fail_json(f"provider '{one.name}': {found.fault}")
        unused = _providers.unused(one.name)
        plans.append((one, found, _providers.plan(one, found, records.get(one.name), module.params["keep"], unused)))
    lacking = [one.name for one, _unused, todo in plans if any(step.action in ("install", "replace") for step in todo)]
    result: dict[str, t.Any] = {"needs": lacking, "machine": platform.machine()}
    if not module.check_mode:
        needs = [name for name in lacking if name not in module.params["archives"]]
        if needs:
            return result | {"needs": needs, "changed": False}
        for leftover in leftovers:
            _providers.remove(leftover)
    told = {}
    for one, found, todo in plans:
        tree = None if module.check_mode else take(module, one, todo)
        told[one.name] = _providers.result_of(one, found, tree)
        steps += todo
    return result | as_result(steps) | {"providers": told}


def take(module: AnsibleModule, wanted: _providers.Wanted, steps: list[Step]) -> str | None:
    """Take the steps for one provider; return the digest of a tree that was laid anew."""
    if not any(step.action in ("install", "replace") for step in steps):
        _providers.apply(steps, wanted, None)
        return None
    archive = module.params["archives"][wanted.name]
    digest = archive["digest"]
    if wanted.tree not in (None, digest):
        raise _providers.ProviderError(
            f"provider '{wanted.name}' {wanted.version}: its tree has digest {digest}, not the pinned {wanted.tree}"
            " [find out what has changed in it, then pin the new digest]"
        )
    with _providers.incoming(_layout.PROVIDERS) as directory:
        _providers.lay(archive["path"], digest, wanted, directory)
        _providers.apply(steps, wanted, (directory, digest))
    return str(digest)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "providers": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "version": {"type": "str"},
                    "source": {"type": "str", "choices": list(_providers.SOURCES)},
                    "archive": {"type": "path"},
                    "sha256": {"type": "str"},
                    "tree": {"type": "str"},
                },
            },
            "names": {"type": "list", "elements": "str", "default": []},
            "profiles": {"type": "list", "elements": "dict", "required": True},
            "keep": {"type": "int", "default": 1},
            "archives": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    keep = module.params["keep"]
    if not 1 <= keep <= 100:
        module.fail_json(f"keep is {keep}; it can be 1 to 100 [plans of slots name the version before until compiled]")
    try:
        with _release.kept(_layout.PROVIDERS, predict=module.check_mode):
            result = keep_providers(module)
    except (Invalid, _providers.ProviderError, _release.ReleaseError) as error:
        module.fail_json(str(error))
    except _files.UnsafePath as error:
        module.fail_json(f"{error} [give {_layout.OPT} and all above it to root]")
    except OSError as error:
        module.fail_json(
            f"{error.filename or _layout.OPT}: {error.strerror}; the providers are as they were"
            " [make room, or mend the file system, and converge again]"
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
