# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host, a certified provider and a site's capabilities, for tests of what is compiled of them."""

from __future__ import annotations

import dataclasses
import json
import typing as t

from ansible_collections.confined.slots.plugins.module_utils import (
    _capabilities,
    _compatibility,
    _host,
    _layout,
    _policy,
    _profiles,
    _strict,
)
from ansible_collections.confined.slots.plugins.module_utils._declarations import Slot, parse

TREE = "/opt/confined-slots/providers/fake/1.2.3"
PROFILE: dict[str, t.Any] = {
    "name": "fake",
    "profile_version": 3,
    "summary": "A CLI for tests",
    "install": {"kind": "npm", "packages": [{"name": "fake", "version": "1.2.3"}]},
    "executable": "bin/fake",
    "identity": "tree",
    "reasons": {"tree": "the program"},
    "passed": ["LANG"],
    "environment": {"FAKE_HOME": "{home}/.fake"},
    "state": [{"path": ".fake", "holds": ["login", "history"]}, {"path": ".cache/fake", "holds": ["cache"]}],
    "transcript": ".fake/*/{session}.jsonl",
    "headless": ["-p", "--", "{prompt}"],
    "resume": ["--resume", "{session}"],
    "resume_headless": ["--resume", "{session}", "-p", "--", "{prompt}"],
    "credentials": [
        {"name": "FAKE_API_KEY", "by": "environment"},
        {"name": "FAKE_TOKEN", "by": "descriptor", "variable": "FAKE_TOKEN_FD", "refreshable": True},
    ],
    "managed": [{"target": "/etc/fake/settings.json", "content": {"sandbox": False}, "reason": "the slot is it"}],
    "capabilities": {
        "use_fake": {"words": "Use Fake", "why": "runs it", "required": True},
        "use_fake_login": {"words": "Use your existing Fake login", "why": "stays logged in", "state": [".fake"]},
        "use_fake_key": {"words": "Use the Fake key", "why": "no login", "credentials": ["FAKE_API_KEY"]},
    },
    "certification": {
        "status": "certified",
        "evidence": "evidence/fake.json",
        "cli_version": "1.2.3",
        "sha256": "f" * 64,
    },
}
SITE: dict[str, t.Any] = {
    "export_reports": {
        "words": "Export reports to Downloads",
        "why": "people read them",
        "binds": [{"source": "/srv/downloads", "mode": "rw", "reason": "reports land here"}],
    },
    "use_git_identity": {
        "words": "Use Git identity",
        "why": "commits name a robot",
        "variables": {"GIT_AUTHOR_NAME": "Robot"},
    },
    "read_models": {
        "words": "Read the models",
        "why": "work offline",
        "binds": [{"source": "/srv/models", "reason": "models"}],
        "variables": {"MODELS": "/srv/models"},
    },
}
ACCOUNT = _host.Account(20001, 20001)
HOME = _layout.account_home("coder")
PRIVATE = _layout.private_home("coder", "fake")
# What is there of what compatibility mode may mask: all that it knows, one file, and people's homes.
THERE = {path for path, _unused in _compatibility.MASKED} | {"/srv/secret", "/srv/secret.key", "/data/people/bob"}


def source(path: str, **changed: t.Any) -> _host.Source:
    """Return a path of the host with nothing against it."""
    kind = "file" if path.endswith(".key") else "directory"
    return dataclasses.replace(_host.Source(path, kind, path), **changed)  # type: ignore[arg-type]


def host(**changed: t.Any) -> _host.Host:
    """Return a host."""
    paths = ("/srv/downloads", "/srv/models", "/srv/reference", "/srv/data")
    there = _host.Host(
        (("/bin", "usr/bin"), ("/lib", "usr/lib")),
        frozenset(path for path, _unused in (*_strict.SYSTEM_FILES, _strict.RESOLVER)),
        "/etc/resolv.conf -> /run/systemd/resolve/stub-resolv.conf",
        {path: source(path) for path in paths},
        {path: source(path) for path in THERE},
        ("/data/people/bob",),
        {
            "coder": (
                _host.Held(f"{HOME}/.config", "1:2", True, False),
                _host.Held(f"{HOME}/.config/gcloud", "1:3", True, True),
                _host.Held(f"{HOME}/.netrc", "1:4", False, True),
            )
        },
    )
    return dataclasses.replace(there, **changed)


def provider(**changed: t.Any) -> _host.Provider:
    """Return the fake provider as it stands on the host; changed are keys of its profile."""
    profile = _profiles.parse([{**PROFILE, **changed}])["fake"]
    identity = _host.Identity(f"{TREE}/bin/fake", "f" * 64, "1:1:1:1:1")
    return _host.Provider(profile, "1.2.3", (f"{TREE}/bin/fake",), (identity,), ((TREE, "the program"),))


def slot(mode: str, **declared: t.Any) -> Slot:
    """Return one slot called coder."""
    (parsed,) = parse([{"name": "coder", "provider": "fake", "mode": mode, **declared}])
    return parsed


def compiled(
    mode: str, *, on: _host.Host | None = None, by: _host.Provider | None = None, **declared: t.Any
) -> list[_policy.Policy]:
    """Return the policy of one slot, then those of its narrower workspaces."""
    site = _capabilities.parse(SITE)
    return _policy.compile_all(slot(mode, **declared), ACCOUNT, by or provider(), on or host(), site)


def as_read(policy: _policy.Policy) -> dict[str, t.Any]:
    """Return a policy as slotctl and approvals have it."""
    found: dict[str, t.Any] = json.loads(policy.as_text())
    return found
