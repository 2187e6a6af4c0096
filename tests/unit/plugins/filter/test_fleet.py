# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's report: every host is in it, whatever hosts say stands in it as text, and it is one file."""

from __future__ import annotations

import html.parser
import json
import re
import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.confined.slots.plugins.filter import fleet
from ansible_collections.confined.slots.plugins.module_utils import _health

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}</script><!--\x1b]0;x\x07"


def host(text: str = "coder", state: str = "ok") -> dict[str, t.Any]:
    """Return what the module says of a host whose words are all the given one."""
    check = _health.as_json("marker", _health.Outcome(state, text, text, text), 1.0)
    about = {
        "mode": "isolated", "note": text, "enabled": True, "provider": text, "version": text, "certification": text,
        "network": "private", "docker": False, "capabilities": [{"words": text, "why": text}], "workspaces": [text],
        "fingerprint": text, "mounts": [{"kind": "bind", "mode": "ro", "target": text, "reason": text}],
    }  # fmt: skip
    slots = [{"slot": text, "about": about, "checks": [check]}]
    own = [_health.as_json("release", _health.ok("as made"), 2.0)]
    return _health.report(text, 1796000000.0, 1.5, own, slots, [{"slot": text, "check": "quota", "why": text}])


class Page(html.parser.HTMLParser):
    """The elements and attributes of a page, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and data.strip():
            self.scripts.append(data)


def test_what_hosts_say_stays_text_on_the_page() -> None:
    hostile = Page(fleet.fleet({HOSTILE: host(HOSTILE, "critical")})["files"]["health.html"])
    plain = Page(fleet.fleet({"box": host("x", "critical")})["files"]["health.html"])
    assert hostile.tags == plain.tags
    assert len(hostile.scripts) == 2 and hostile.scripts[1] == plain.scripts[1]
    assert not [name for name, _value in hostile.attributes if name.startswith("on")]


def test_without_escaping_the_page_would_have_been_another(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fleet.jinja2.Environment
    monkeypatch.setattr(fleet.jinja2, "Environment", lambda **words: real(**{**words, "autoescape": False}))
    page = Page(fleet.fleet({HOSTILE: host(HOSTILE, "critical")})["files"]["health.html"])
    assert page.tags.count("img") > 0


def test_the_page_loads_nothing_and_only_its_own_script_may_run() -> None:
    text = fleet.fleet({"box": host()})["files"]["health.html"]
    page = Page(text)
    assert not [value for name, value in page.attributes if name in ("src", "href") and not str(value).startswith("#")]
    assert "url(" not in text and "@import" not in text
    policy = next(str(value) for name, value in page.attributes if name == "content" and "default-src" in str(value))
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert f"script-src 'sha256-{fleet._hash(page.scripts[1])}'" in policy


def test_a_host_that_was_not_reached_or_said_nothing_is_unknown() -> None:
    found = fleet.fleet({"far": {"unreachable": True, "msg": "no route"}, "mute": {}, "box": host(), "odd": "x"})
    report = json.loads(found["files"]["health.json"])
    assert {each["host"]: each["state"] for each in report["hosts"]} == {
        "far": "unknown", "mute": "unknown", "box": "ok", "odd": "unknown",
    }  # fmt: skip
    assert found["state"] == "unknown"
    assert "it was not reached: no route" in found["files"]["health.json"]


def test_without_any_host_there_is_no_report() -> None:
    with pytest.raises(AnsibleFilterError, match="no host"):
        fleet.fleet({})


def test_a_host_goes_by_its_name_in_the_inventory() -> None:
    report = json.loads(fleet.fleet({"box-1": host("something else")})["files"]["health.json"])
    assert report["hosts"][0]["host"] == "box-1"


def test_the_worst_stands_first() -> None:
    text = fleet.fleet({"a": host("w", "warn"), "b": host("c", "critical"), "c": host("u", "unknown")})
    order = re.findall(r'<tr class="row" data-state="(\w+)"', text["files"]["health.html"])
    assert order[:3] == ["critical", "unknown", "warn"]
