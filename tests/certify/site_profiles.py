# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copy the profiles that are to be certified for a site: python3 site_profiles.py DIRECTORY PORT

They differ from the collection's own in two things only: the CLI finds the scripted endpoint on that port of the host's
loopback, and verified mode takes them for certified, as the run is to show that they can be.
"""

from __future__ import annotations

import pathlib
import sys
import typing as t

import yaml

PROFILES = pathlib.Path(__file__).resolve().parents[2] / "profiles"
CERTIFIED = ("claude_code", "codex", "pi")  # Pi reads the address from its HOME, where the tests write it


def pointed(profile: dict[str, t.Any], port: int) -> dict[str, t.Any]:
    """Return a profile whose CLI asks the endpoint."""
    address = f"http://127.0.0.1:{port}"
    if profile["name"] == "claude_code":
        profile["environment"]["ANTHROPIC_BASE_URL"] = address
    if profile["name"] == "codex":
        (managed,) = profile["managed"]
        managed["content"] = f'openai_base_url = "{address}/v1"\n{managed["content"]}'
    profile["certification"] |= {"status": "certified", "evidence": "evidence/none.json"}
    return profile


def main(directory: str, port: str) -> None:
    """Write the copies."""
    target = pathlib.Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    for name in CERTIFIED:
        profile = yaml.safe_load((PROFILES / f"{name}.yml").read_text(encoding="utf-8"))
        text = yaml.safe_dump(pointed(profile, int(port)), sort_keys=False)
        (target / f"{name}.yml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
