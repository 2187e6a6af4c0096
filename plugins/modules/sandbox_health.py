#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a host and its slots, by looking and by trying."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sandbox_health
short_description: Check a host and its slots, by looking and by trying
version_added: 0.1.0
description:
  - Looks at all that slots depend on, starts a process in the sandbox of each slot, and says what holds.
  - It changes nothing.
  - The checks that run are the controller's own, sent for this run, and the release is compared with the digest of the
    controller's copy. What stands on the host is not asked whether it is well.
  - A check that could not run, broke or took too long is V(unknown), never V(ok); a check that has nothing to look at
    is in RV(not_applicable) and has no state.
  - The checks, their states and this shape of the result are an interface; docs/monitoring.md lists them.
options:
  only_slots:
    description: Names of slots to look at, and nothing of the host itself; all of it if left out.
    type: list
    elements: str
    default: []
  only_checks:
    description: Ids of checks to make, C(*) standing for any text; all if left out.
    type: list
    elements: str
    default: []
  fail_on:
    description:
      - The state from which on the task fails. A check that is V(unknown) fails it as V(critical) does.
      - With V(never) the result is all that tells.
    type: str
    choices: [critical, warn, never]
    default: critical
  declared:
    description:
      - The slots as the inventory declares them.
      - What differs on the host in mode, provider, network or enabled is critical.
      - Without it the slots are taken as they are found.
    type: list
    elements: dict
  source:
    description:
      - Digest of the release that the host must have, where that is not the one of this collection.
      - The module M(confined.slots.release) compares with the same digest.
    type: str
  budget:
    description: Seconds for all checks of the host; what was not looked at by then is V(unknown).
    type: int
    default: 120
  credential_days:
    description: Age in days from which on a credential should be replaced.
    type: int
    default: 365
  state_bytes:
    description: Bytes from which on the homes of a slot have grown too large.
    type: int
    default: 10737418240
  free_bytes:
    description: Free bytes that a file system should have, unless O(free_percent) of it is less.
    type: int
    default: 1073741824
  free_percent:
    description: Free part of a file system, in percent.
    type: int
    default: 5
  rotation_days:
    description: Days within which logrotate must have run.
    type: int
    default: 8
  archive:
    description: The checks themselves on the host; the action plugin fills it in.
    type: path
  archive_source:
    description: Digest of the checks; the action plugin fills it in.
    type: str
extends_documentation_fragment:
  - confined.slots.attributes
attributes:
  check_mode:
    support: full
    description: Does the same in check mode, since it changes nothing.
  diff_mode:
    support: none
    description: There is nothing to show.
author:
  - confined.slots contributors (@confined-slots)
"""

EXAMPLES = r"""
- name: Check the host and all its slots
  confined.slots.sandbox_health:

- name: Prove that the confinement of one slot holds, and see the result whatever it is
  confined.slots.sandbox_health:
    only_slots: [coder]
    only_checks: [sandbox, marker, view]
    fail_on: never
"""

RETURN = r"""
state:
  description: The worst state of all checks, in the order V(ok), V(warn), V(unknown), V(critical).
  returned: always
  type: str
  sample: ok
summary:
  description: The state and what is wrong first, in one line.
  returned: always
  type: str
counts:
  description: How many checks have each state.
  returned: always
  type: dict
  sample: {"ok": 61, "warn": 1, "unknown": 0, "critical": 0}
checks:
  description: The checks of the host.
  returned: always
  type: list
  elements: dict
  contains:
    check:
      description: Id of the check.
      type: str
    state:
      description: V(ok), V(warn), V(critical) or V(unknown).
      type: str
    found:
      description: What was found.
      type: str
    expected:
      description: What was expected.
      type: str
    cure:
      description: What mends it, empty if nothing has to be mended.
      type: str
    milliseconds:
      description: How long the check took.
      type: float
slots:
  description: The slots, each with RV(slots[].slot), its RV(slots[].state), what it is, and its checks.
  returned: always
  type: list
  elements: dict
  contains:
    slot:
      description: Name of the slot.
      type: str
    state:
      description: The worst state of its checks.
      type: str
    about:
      description: Mode, provider, network, capabilities in words, mounts; as far as its plan can be read.
      type: dict
    checks:
      description: Its checks, as RV(checks).
      type: list
      elements: dict
not_applicable:
  description: Checks that had nothing to look at, each with slot (empty for the host), check and why.
  returned: always
  type: list
  elements: dict
seconds:
  description: How long all checks took.
  returned: always
  type: float
time:
  description: When the run began, in seconds since the epoch.
  returned: always
  type: float
host:
  description: The name that the host has for itself.
  returned: always
  type: str
schema:
  description: Version of this shape.
  returned: always
  type: int
"""

import json
import os
import socket
import subprocess
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _archive, _health, _release
from ..module_utils._declarations import Invalid, parse
from ..module_utils._manifest import Untrusted
from ..module_utils._refusals import printable

NUMBERS = ("credential_days", "state_bytes", "free_bytes", "free_percent", "rotation_days")
# Beyond the budget: unpacking, and asking systemd once for all slots.
PATIENCE = 30


def look(params: dict[str, t.Any], directory: str) -> _health.Json:
    """Return the report of the checks that were sent, run in a directory of root's; CouldNot if there is none."""
    try:
        _archive.unpack(params["archive"], params["archive_source"], directory)
    except (Untrusted, OSError) as error:
        raise _health.CouldNot(f"the checks cannot be unpacked: {error}") from None
    options = {key: params[key] for key in (*NUMBERS, "source", "declared")}
    command = [_release.PYTHON, "-IS", f"{directory}/bin/slotctl", "health", "--json", "--options=-"]
    command += [f"--budget={params['budget']}", *(f"--check={each}" for each in params["only_checks"])]
    command += params["only_slots"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(options),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=_release.ENVIRONMENT,
            cwd="/",
            timeout=params["budget"] + PATIENCE,
            check=False,
        )
    except FileNotFoundError:
        raise _health.CouldNot(f"{_release.PYTHON} is not there") from None
    except subprocess.TimeoutExpired:
        raise _health.CouldNot(f"the checks have not ended in {params['budget'] + PATIENCE} s") from None
    try:
        return _health.check_report(json.loads(done.stdout))
    except (ValueError, RecursionError) as error:
        said = printable(" ".join(done.stderr.split())[-400:]) or str(error)
        raise _health.CouldNot(f"the checks ended with {done.returncode} and gave no report: {said}") from None


def main() -> None:
    """Look, and say."""
    module = AnsibleModule(
        argument_spec={
            "only_slots": {"type": "list", "elements": "str", "default": []},
            "only_checks": {"type": "list", "elements": "str", "default": []},
            "fail_on": {"type": "str", "choices": ["critical", "warn", "never"], "default": "critical"},
            "declared": {"type": "list", "elements": "dict"},
            "source": {"type": "str"},
            "budget": {"type": "int", "default": 120},
            "credential_days": {"type": "int", "default": 365},
            "state_bytes": {"type": "int", "default": 10 << 30},
            "free_bytes": {"type": "int", "default": 1 << 30},
            "free_percent": {"type": "int", "default": 5},
            "rotation_days": {"type": "int", "default": 8},
            "archive": {"type": "path"},
            "archive_source": {"type": "str"},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not (params["archive"] and params["archive_source"]):
        module.fail_json("archive is missing; its action plugin fills it in [call confined.slots.sandbox_health]")
    if not 1 <= params["budget"] <= 3600:
        module.fail_json(f"budget is {params['budget']}; it can be 1 to 3600 [give it some seconds a slot]")
    try:
        parse(params["declared"] or [])
        # each is a name, and no option of slotctl
        parse([{"name": name} for name in dict.fromkeys(params["only_slots"])])
        with _release.incoming(os.path.realpath(module.tmpdir)) as directory:
            found = look(params, directory)
    except Invalid as error:
        module.fail_json(str(error))
    except _health.CouldNot as error:
        found = _health.failed(socket.gethostname(), time.time(), str(error))
    result = {**found, "summary": _health.summary(found), "changed": False}
    if found["state"] in _health.FAILING[params["fail_on"]]:
        module.fail_json(result["summary"], **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
