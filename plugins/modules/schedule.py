#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the slots' schedules: sessions that systemd starts without a person."""

from __future__ import annotations

DOCUMENTATION = r"""
module: schedule
short_description: Keep the schedules of slots as timers of systemd
version_added: 0.1.0
description:
  - Keeps a service and a timer for each schedule of the declared slots, and takes those away that are no longer
    declared. A session of a withdrawn schedule that runs is left to end.
  - Has C(slotctl preflight) look at each schedule of an enabled slot. If anything is missing, its timer is not switched
    on (one that is on stays on, so that its runs fail where monitoring sees them), the others are kept, and the module
    fails with all that is missing.
  - The timers of a slot that is not enabled are switched off, with a warning.
  - What a schedule is to do stands in a file that only root writes; no text of a prompt is in a unit file.
  - Schedules of slots that are on the host and not in the list are left as they are.
options:
  randomized_delay:
    description: The most that systemd adds to each start, at random, so that not all begin at once; such as V(10min).
    type: str
    default: 0s
extends_documentation_fragment:
  - confined.slots.attributes
  - confined.slots.slots
attributes:
  check_mode:
    description: Predicts every change. What a preflight would refuse is not known then.
    support: full
  diff_mode:
    description: Shows each file and each timer.
    support: full
author:
  - confined.slots contributors (@confined-slots)
seealso:
  - module: confined.slots.policy
"""

EXAMPLES = r"""
- name: Keep the schedules
  confined.slots.schedule:
    slots:
      - name: coder
        schedules:
          - name: nightly
            calendar: Mon..Fri 03:00
            prompt: Run the tests and write what fails to report.md.
"""

RETURN = r"""
steps:
  description: What was done, or in check mode would be.
  returned: always
  type: list
  elements: dict
  sample: [{"subject": "confined-slots-coder-schedule-nightly.timer", "action": "switch on"}]
refused:
  description: What each schedule would be refused for, by slot and name.
  returned: failure
  type: dict
  sample: {"coder nightly": "credential-missing: … [converge the host with the playbook confined.slots.site]"}
"""

import pwd
import re
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _layout, _ledger, _schedules, _units
from ..module_utils._declarations import Invalid, Slot, parse, slots_argument
from ..module_utils._files import UnsafePath
from ..module_utils._host import UNKNOWN
from ..module_utils._programs import Failed
from ..module_utils._steps import as_result

_DELAY = re.compile(r"(0|[1-9][0-9]{0,5})(s|min|h)\Z")


def converge(params: dict[str, t.Any], check_mode: bool) -> tuple[dict[str, t.Any], dict[str, str], list[str]]:
    """Keep the schedules; return the module's result, what is refused by slot and name, and what to warn of."""
    slots, delay = parse(params["slots"]), params["randomized_delay"]
    if not _DELAY.match(delay):
        raise Invalid(f"randomized_delay is {delay!r:.80}; it can be a whole number with s, min or h, such as 10min")
    with _ledger.exclusive():
        _schedules.check_calendars(slots)
        found = _schedules.find(slots)
        gids = {slot.name: gid_of(slot, predict=check_mode) for slot in slots}
        changes = list(_schedules.plan(slots, gids, found, delay))
        refused: dict[tuple[str, str], str] = {}
        if not check_mode:
            _units.apply(changes, found.timers)
            refused = refusals(slots)
        timers = list(_schedules.to_switch_on(slots, found, {_schedules.timer(*each) for each in refused}))
        if not check_mode:
            _schedules.switch_on(timers)
    off = [
        f"slot '{slot.name}' is not enabled, so none of its schedules is started: {', '.join(names)}"
        for slot in slots
        if not slot.enabled and (names := [schedule.name for schedule in slot.schedules])
    ]
    result = as_result([change.step for change in (*changes, *timers)])
    return result, {" ".join(each): what for each, what in refused.items()}, off


def gid_of(slot: Slot, *, predict: bool) -> int:
    """Return the group of the slot's account; while there is none (a check run before the first converge) UNKNOWN's."""
    try:
        return pwd.getpwnam(_layout.account(slot.name)).pw_gid
    except KeyError:
        if slot.schedules and not predict:
            raise Invalid(f"no account yet for {slot.name} [run the role confined.slots.accounts first]") from None
        return UNKNOWN.gid


def refusals(slots: t.Sequence[Slot]) -> dict[tuple[str, str], str]:
    """Return what each schedule of the enabled slots would be refused for, by slot and name."""
    looked = {
        (slot.name, schedule.name): _schedules.refusal(slot.name, schedule.name)
        for slot in slots
        if slot.enabled
        for schedule in slot.schedules
    }
    return {each: what for each, what in looked.items() if what is not None}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"slots": slots_argument(), "randomized_delay": {"type": "str", "default": "0s"}},
        supports_check_mode=True,
    )
    try:
        result, refused, warnings = converge(module.params, module.check_mode)
    except (Invalid, UnsafePath, Failed) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'the schedules'}: {error.strerror} [mend it and converge again]")
    for warning in warnings:
        module.warn(warning)
    if refused:
        said = [f"slot {each.replace(' ', ', schedule ')}: {what}" for each, what in refused.items()]
        module.fail_json(msg=f"schedules that could not run: {' | '.join(said)}", refused=refused, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
