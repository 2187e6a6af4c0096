# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what the scenario `providers` has found on each host to the evidence of a profile's certification."""

from __future__ import annotations

import hashlib
import json
import time
import typing as t

from checks import MODES, Check, checks_of

Json = dict[str, t.Any]

# What of a profile decides how its CLI runs; where one of these changes, the evidence is of another profile.
DECIDES = (
    *("arguments", "credentials", "denied", "environment", "executable", "headless", "identity", "install"),
    *("interpreter", "managed", "passed", "path", "resume_headless", "state", "transcript"),
)


class NotGreen(Exception):
    """Something that speaks against a certification, in a sentence."""


def digest(profile: Json) -> str:
    """Return the sha256 of what decides how a profile's CLI runs."""
    decides = {key: profile.get(key) for key in DECIDES}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def evidence(profile: Json, found: list[Json]) -> Json:
    """Return the evidence from what was found on the hosts; NotGreen names the first thing that is not as expected."""
    name = profile["name"]
    identities = [each["providers"].get(name, {}).get("identity") for each in found]
    if None in identities or any(identity != identities[0] for identity in identities):
        raise NotGreen(f"{name}: the hosts did not run the same CLI: {identities}")
    if identities[0]["profile_version"] != profile["profile_version"]:
        raise NotGreen(f"{name}: profile version {identities[0]['profile_version']} ran [run it anew]")
    every = [checks_of(name, scoped=each["host"]["landlock_scope"]) for each in found]
    return {
        "provider": name,
        **identities[0],
        "profile": digest(profile),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "checks": {check.id: described(check) for checks in every for check in checks},
        "hosts": [
            {**each["host"], "modes": {mode: outcome(each, name, mode, checks) for mode in MODES}}
            for each, checks in zip(found, every, strict=True)
        ],
    }


def described(check: Check) -> Json:
    """Return what evidence says of a check."""
    return {"tries": check.words, **({"note": check.note} if check.note else {})}


def outcome(host: Json, provider: str, mode: str, every: t.Iterable[Check]) -> Json:
    """Return what came of one mode on a host; NotGreen if it is not what is expected."""
    where = f"{provider}, {mode}, {host['host']['distribution']}"
    run = host["providers"][provider]["modes"].get(mode)
    if run is None or not run["first"]["finished"] or run["first"]["status"]:
        raise NotGreen(f"{where}: there was no run to the end")
    found: Json = {"did": [], "did_not": []}
    for check in every:
        wanted, said = "yes" if mode in check.works else "no", run["outcomes"].get(check.id)
        if said != wanted:
            raise NotGreen(f"{where}: {check.id} is {said}, not {wanted}")
        found["did" if said == "yes" else "did_not"].append(check.id)
    found["logged_in"] = bool(run["first"]["credentials"])
    found["processes_left"] = bool(run["left"])
    if mode != "unconfined":
        found["conversation_went_on"] = run["again"]["finished"] and run["again"]["prior_results"] > 0
    expected = {"logged_in": True, "processes_left": mode == "unconfined", "conversation_went_on": True}
    for key in expected.keys() & found.keys():
        if found[key] is not expected[key]:
            raise NotGreen(f"{where}: {key} is {found[key]}")
    return found
