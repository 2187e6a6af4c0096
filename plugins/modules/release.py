#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the release of launcher and slotctl on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release
short_description: Keep the release of launcher and slotctl that a host's slots run with
version_added: 0.1.0
description:
  - Builds a release of C(slot-launcher), C(slotctl), their library and the distribution's C(bwrap) below
    C(/opt/confined-slots/releases), verifies every file of it as read back from the disk, and makes it current by one
    rename.
  - The controller sends its part only if the host has no intact release made of it.
  - Every release is verified at each run. One that was tampered with is set aside as C(.tampered-NAME-*) and, if it is
    the wanted one, made anew.
  - C(/usr/local/sbin/slotctl) is kept as a link to the current release's C(slotctl).
  - Releases are pruned, but never the current one, nor one that a running process needs.
  - A kill or a full disk at any point leaves the release that was current.
author:
  - confined.slots contributors (@confined-slots)
extends_documentation_fragment:
  - confined.slots.attributes
attributes:
  check_mode:
    support: full
    details:
      - A release that the host lacks is built in a temporary directory, so that its name can be told.
  diff_mode:
    support: full
options:
  state:
    description:
      - V(present) makes the controller's release current.
      - V(rolled_back) makes the previous release current that is not withdrawn, or the one named by O(target), and
        marks the newer one that is left as withdrawn. A later run with V(present) makes it usable again, and says so.
    type: str
    choices: [present, rolled_back]
    default: present
  target:
    description:
      - With O(state=rolled_back), the name of the release to go to; withdrawn ones may be named.
    type: str
  keep:
    description:
      - How many releases beside the current one are kept for a rollback.
    type: int
    default: 3
  image:
    description:
      - Directory on the controller that holds what stands in a release.
      - Without it, the collection's own is taken.
    type: path
  version:
    description:
      - Version of the release, the first part of its name.
      - Without it, the collection's own is taken.
    type: str
  source:
    description:
      - Digest of the controller's part of the release; the action plugin fills it in.
    type: str
  archive:
    description:
      - The controller's part of the release on the host; the action plugin fills it in when the host lacks it.
    type: path
"""

EXAMPLES = r"""
- name: Keep the release
  confined.slots.release:

- name: Go back to the release before
  confined.slots.release:
    state: rolled_back
"""

RETURN = r"""
release:
  description: Name of the release that is current now (in check mode, that would be).
  type: str
  returned: success
  sample: 0.1.0-3f2a91c07b4d
previous:
  description: Name of the release that was current before, V(null) if none was.
  type: str
  returned: success
releases:
  description: The releases found, the newest activation first.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Name of the release.
      type: str
    active:
      description: Whether it was current.
      type: bool
    withdrawn:
      description: Whether a rollback has left it.
      type: bool
    sequence:
      description: Place in the order in which releases were made current.
      type: int
    fault:
      description: Why it cannot be trusted, V(null) if it can.
      type: str
set_aside:
  description: Paths of releases set aside earlier, since they were tampered with; kept until an operator removes them.
  type: list
  elements: str
  returned: success
bwrap:
  description: The distribution's bubblewrap that the release has a copy of.
  type: dict
  returned: with O(state=present)
  contains:
    version:
      description: What C(bwrap --version) says.
      type: str
    package:
      description: Version of the distribution's package.
      type: str
    digest:
      description: SHA-256 of the program.
      type: str
needs_archive:
  description: Whether the host lacks the controller's part; for the action plugin.
  type: bool
  returned: with O(state=present)
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

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _files, _layout, _release
from ..module_utils._steps import as_result


def roll_back(module: AnsibleModule) -> dict[str, t.Any]:
    """Return the result of going back."""
    found = _release.find()
    steps = _release.plan_rollback(found, module.params["target"], _release.plan_formats())
    if not module.check_mode:
        _release.apply_rollback(found, steps)
    return as_result(steps) | describe(found, next((s.after for s in steps if s.action == "switch"), None))


def keep_release(module: AnsibleModule) -> dict[str, t.Any]:
    """Return the result of making the wanted release current, or that the archive is needed for it."""
    found = _release.find()
    version = module.params["version"]
    try:
        origin = _release.origin_on_host(module.params["source"])
        wanted = found.match(origin)
        if wanted is None and module.params["archive"] is None:
            return {"changed": False, "needs_archive": True}
        bwrap = {"version": origin.bwrap_version, "package": origin.bwrap_package, "digest": origin.bwrap_digest}
        if wanted is not None:
            return finish(module, found, wanted, None) | {"bwrap": bwrap}
        parent = os.path.realpath(module.tmpdir) if module.check_mode else _layout.RELEASES
        with _release.incoming(parent) as directory:
            name = _release.build(module.params["archive"], version, origin, directory)
            wanted = _release.Release(name, version, origin=origin)
            return finish(module, found, wanted, directory) | {"bwrap": bwrap}
    except _release.Lacking:
        if not module.check_mode:
            raise
        # The packages of this very run would be there: predict what can be said without them.
        return finish(module, found, _release.Release(f"{version}-unknown", version), None)


def finish(
    module: AnsibleModule, found: _release.Found, wanted: _release.Release, built: str | None
) -> dict[str, t.Any]:
    """Take the steps and return the result."""
    steps = _release.plan(wanted, found, module.params["keep"], _release.busy_releases)
    if not module.check_mode:
        _release.apply(steps, found, built)
    return as_result(steps) | describe(found, wanted.name) | {"needs_archive": False}


def describe(found: _release.Found, name: str | None) -> dict[str, t.Any]:
    """Return the part of the result that every state has."""
    previous = found.active.name if found.active else None
    fields = ("name", "active", "withdrawn", "sequence", "fault")
    return {
        "release": name or previous,
        "previous": previous,
        "releases": [{field: getattr(release, field) for field in fields} for release in found.releases],
        "set_aside": list(found.aside),
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "rolled_back"], "default": "present"},
            "target": {"type": "str"},
            "keep": {"type": "int", "default": 3},
            "image": {"type": "path"},
            "version": {"type": "str"},
            "source": {"type": "str"},
            "archive": {"type": "path"},
        },
        supports_check_mode=True,
    )
    state, keep = module.params["state"], module.params["keep"]
    if not 1 <= keep <= 100:
        module.fail_json(f"keep is {keep}; it can be 1 to 100 [keep at least one release to go back to]")
    if state == "present" and not (module.params["source"] and module.params["version"]):
        module.fail_json("source is missing; its action plugin fills it in [call confined.slots.release]")
    try:
        with _release.kept(_layout.RELEASES, predict=module.check_mode):
            result = roll_back(module) if state == "rolled_back" else keep_release(module)
    except _release.ReleaseError as error:
        module.fail_json(str(error))
    except _files.UnsafePath as error:
        module.fail_json(f"{error} [give {_layout.OPT} and all above it to root]")
    except OSError as error:
        module.fail_json(
            f"{error.filename or _layout.OPT}: {error.strerror}; the release that was current is still current"
            " [make room, or mend the file system, and converge again]"
        )
    bwrap = result.get("bwrap")
    if bwrap and _release.bwrap_is_old(bwrap["version"]):
        module.warn(_release.BWRAP_WARNING.format(version=bwrap["version"]))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
