# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""No session of a strict mode reaches a daemon of its CLI that was started outside with its own state."""

from __future__ import annotations

import json
import typing as t

import pytest

from .conftest import CLIS, PORT

if t.TYPE_CHECKING:
    from .conftest import Certification, Json

testinfra_hosts = ["ansible://slot_hosts"]

WORKSPACE = "/var/lib/confined-slots/slots/{slot}/workspaces/main"
CODEX = """\
model = "gpt-5-codex"
model_provider = "scripted"
sandbox_mode = "danger-full-access"
approval_policy = "never"
check_for_update_on_startup = false
[model_providers.scripted]
name = "scripted"
wire_api = "responses"
base_url = "http://127.0.0.1:{port}/v1"
env_key = "CODEX_API_KEY"
[features]
plugins = false
apps = false
daemon_auto_start = true
[analytics]
enabled = false
[projects."{workspace}"]
trust_level = "trusted"
"""
BACKGROUND = ["--bg", "--dangerously-skip-permissions", "go"]


def given(provider: str, mode: str) -> Json:
    """Return what starts a daemon beside a slot, and a session that would use it."""
    slot = CLIS[provider].slot(mode)
    workspace = WORKSPACE.format(slot=slot)
    common = {"slot": slot, "port": PORT, "secret": CLIS[provider].secret, "open": []}
    if provider == "codex":
        files = {".codex/config.toml": CODEX.format(port=PORT, workspace=workspace)}
        return {**common, "files": files, "daemon": ["app-server", "daemon", "start"], "words": ["go"]}
    trusted = {"hasCompletedOnboarding": True, "projects": {workspace: {"hasTrustDialogAccepted": True}}}
    files = {
        ".claude/.claude.json": json.dumps(trusted),
        ".claude/settings.json": json.dumps({"skipDangerousModePermissionPrompt": True}),
    }
    return {**common, "files": files, "daemon": BACKGROUND, "words": BACKGROUND}


@pytest.mark.parametrize("mode", ["isolated", "verified"])
@pytest.mark.parametrize("provider", ["claude_code", "codex"])
def test_no_session_reaches_a_daemon_outside_that_has_its_state(
    certification: Certification, provider: str, mode: str
) -> None:
    found = certification.on_host("daemon_on_host.py", given(provider, mode))
    assert found["daemon"], "no daemon stands outside"
    assert found["outside"] not in found["ran_in"]
    if provider == "codex":
        assert found["ran_in"], found["said"]  # it worked, inside
    else:
        assert "disableAgentView" in found["said"] or "DISABLE_AGENT_VIEW" in found["said"], found["said"]


@pytest.mark.parametrize(
    ("provider", "taken"),
    [
        # its daemon takes what it is to do from files in HOME
        pytest.param("claude_code", ["settings"], id="claude_code"),
        pytest.param("codex", ["settings", "tmp"], id="codex"),
    ],
)
def test_without_what_stops_it_the_session_runs_its_commands_outside(
    certification: Certification, provider: str, taken: list[str]
) -> None:
    found = certification.on_host("daemon_on_host.py", {**given(provider, "isolated"), "open": taken})
    assert found["daemon"], "no daemon stands outside"
    assert found["outside"] in found["ran_in"], found["said"]
