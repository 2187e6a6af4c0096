# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sandbox_health said of many hosts, as one report: for programs, for Prometheus and for people."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
import typing as t
from collections.abc import Mapping

import jinja2
from ansible.errors import AnsibleFilterError

from ..module_utils import _health

DOCUMENTATION = r"""
name: fleet
short_description: Make one report of what sandbox_health said of many hosts
version_added: 0.1.0
author: confined.slots contributors (@confined-slots)
description:
  - Returns the worst state and the texts of three files, C(health.json), C(health.prom) and C(health.html).
  - A host without a result, or that was not reached, is C(unknown) in them.
  - The HTML is one file that needs no server and loads nothing; whatever a host says stands in it as text.
options:
  _input:
    description: The registered results of M(confined.slots.sandbox_health) by the names of the hosts.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the worst state
  ansible.builtin.debug:
    msg: "{{ ({inventory_hostname: found} | confined.slots.fleet).state }}"
"""

RETURN = r"""
_value:
  description: C(state), C(summary), and C(files), the texts by the names of the files.
  type: dict
"""

TEMPLATES = os.path.normpath(os.path.join(os.path.dirname(__file__), "../../playbooks/templates"))
WORDS = {"ok": "OK", "warn": "Warning", "critical": "Critical", "unknown": "Unknown"}
SIGNS = {"ok": "✓", "warn": "!", "critical": "✗", "unknown": "?"}


def fleet(results: t.Any) -> dict[str, t.Any]:
    """Return state, summary and the files' texts; AnsibleFilterError if there is no host at all."""
    if not isinstance(results, Mapping) or not results:
        raise AnsibleFilterError("fleet: there is no host; give it the results by the names of the hosts")
    found = _health.fleet({str(name): _plain(result) for name, result in results.items()}, time.time())
    slots = sum(len(host["slots"]) for host in found["hosts"])
    counts = ", ".join(f"{found['counts'][state]} {state}" for state in reversed(_health.STATES))
    return {
        "state": found["state"],
        "summary": f"{found['state']}: {len(found['hosts'])} hosts, {slots} slots, checks: {counts}",
        "files": {
            "health.json": json.dumps(found, indent=1) + "\n",
            "health.prom": _health.prometheus_of(found["hosts"]),
            "health.html": html(found),
        },
    }


def _plain(result: t.Any) -> t.Any:
    """Return a result as JSON has it, None for one that JSON cannot have: that of another host may be a report."""
    try:
        return json.loads(json.dumps(result, default=str))
    except (TypeError, ValueError, RecursionError):
        return None


def html(found: _health.Json) -> str:
    """Return the page for people."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script, style = (_read(name) for name in ("health.js", "health.css"))
    order = {state: number for number, state in enumerate(reversed(_health.STATES))}
    wrong = [(host["host"], slot, check) for host in found["hosts"] for slot, check in _health.complaints(host)]
    return environment.get_template("health.html.j2").render(
        fleet=found,
        wrong=sorted(wrong, key=lambda one: (order[one[2]["state"]], one[0], one[1])),
        slots=sorted(
            ((host["host"], slot) for host in found["hosts"] for slot in host["slots"]),
            key=lambda one: (order[one[1]["state"]], one[0], one[1]["slot"]),
        ),
        details=_embedded(_details(found)),
        when=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found["time"])),
        words=WORDS,
        signs=SIGNS,
        states=_health.STATES[::-1],
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
    )


def _details(found: _health.Json) -> _health.Json:
    """Return what is folded away: the mounts of every slot, each line of a mount kept once for all of them."""
    lines: dict[str, int] = {}
    mounts: dict[str, list[int]] = {}
    for host in found["hosts"]:
        for slot in host["slots"]:
            numbers = []
            for mount in slot["about"].get("mounts", ()):
                words = [str(mount.get(key, "")) for key in ("kind", "mode", "target", "reason")]
                numbers.append(lines.setdefault(json.dumps(words), len(lines)))
            mounts[f"{host['host']}/{slot['slot']}"] = numbers
    return {"lines": [json.loads(line) for line in lines], "mounts": mounts}


def _embedded(data: _health.Json) -> str:
    """Return data as JSON that cannot end the element in which it stands."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _read(name: str) -> str:
    with open(os.path.join(TEMPLATES, name), encoding="utf-8") as file:
        return file.read()


class FilterModule:
    """The filter, as Ansible finds it."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Return the filter by its name."""
        return {"fleet": fleet}
