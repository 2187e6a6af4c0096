# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the profiles' evidence from what the scenario `providers` has found: python3 tests/certify FOUND PROFILES

FOUND is the directory with a file for each host; PROFILES that of the profiles, with `evidence/` in it. Nothing is
written unless every check came out, on every host and in every mode, as `checks.py` expects it.
"""

from __future__ import annotations

import json
import pathlib
import sys

import yaml
from evidence import NotGreen, evidence


def main(found: str, profiles: str) -> int:
    """Write a file for each provider and return the exit status."""
    directory = pathlib.Path(profiles)
    hosts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(pathlib.Path(found).glob("*.json"))]
    try:
        if not hosts:
            raise NotGreen(f"{found} has nothing [run molecule's scenario providers first]")
        ready = {}
        for name in sorted(hosts[0]["providers"]):
            profile = yaml.safe_load((directory / f"{name}.yml").read_text(encoding="utf-8"))
            ready[f"{name}-{profile['profile_version']}.json"] = evidence(profile, hosts)
    except NotGreen as error:
        print(f"certify: {error}", file=sys.stderr)
        return 1
    for file, about in ready.items():
        target = directory / "evidence" / file
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {target}: {about['cli_version']}, executable {about['executable']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
