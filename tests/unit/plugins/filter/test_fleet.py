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


def deep() -> t.Any:
    """Return lists in lists, more than JSON can be written of."""
    found: t.Any = []
    for _unused in range(100_000):
        found = [found]
    return found


MALFORMED = [
    pytest.param(("counts",), None, "ok", id="no counts are no matter"),
    pytest.param(("counts",), {"ok": "many"}, "ok", id="counts that are texts are no matter"),
    pytest.param(("slots", 0, "state"), "splendid", "ok", id="the state of a slot is made anew"),
    pytest.param(("slots", 0, "state"), None, "ok", id="the state of a slot is made anew where it lacks one"),
    pytest.param(("slots", 0, "about", "more"), deep, "unknown", id="deep"),
    pytest.param(("slots", 0, "about", "more"), [[{}]], "ok", id="more than is asked for is left out"),
    pytest.param(("state",), ["ok"], "unknown", id="state is a list"),
    pytest.param(("schema",), True, "ok", id="schema is true, which is 1"),
    pytest.param(("host",), None, "unknown", id="no name"),
    pytest.param(("seconds",), "1", "unknown", id="seconds are a text"),
    pytest.param(("seconds",), True, "unknown", id="seconds are true"),
    pytest.param(("seconds",), float("nan"), "unknown", id="seconds are no number"),
    pytest.param(("time",), float("inf"), "unknown", id="time without end"),
    pytest.param(("time",), -1, "unknown", id="time before all time"),
    pytest.param(("time",), 10**400, "unknown", id="time beyond floats"),
    pytest.param(("checks",), {}, "unknown", id="checks are no list"),
    pytest.param(("checks", 0), None, "unknown", id="a check is nothing"),
    pytest.param(("checks", 0, "found"), None, "unknown", id="found nothing"),
    pytest.param(("checks", 0, "cure"), ["x"], "unknown", id="a list of cures"),
    pytest.param(("checks", 0, "state"), ["ok"], "unknown", id="a list of states"),
    pytest.param(("checks", 0, "milliseconds"), None, "unknown", id="no milliseconds"),
    pytest.param(("checks", 0, "milliseconds"), 10**400, "unknown", id="milliseconds beyond floats"),
    pytest.param(("slots",), "coder", "unknown", id="slots are a text"),
    pytest.param(("slots", 0), [], "unknown", id="a slot is a list"),
    pytest.param(("slots", 0, "slot"), None, "unknown", id="a slot without a name"),
    pytest.param(("slots", 0, "slot"), "", "unknown", id="a slot that passes for the host"),
    pytest.param(("slots", 0, "slot"), "\ud800", "unknown", id="half a character"),
    pytest.param(("slots", 0, "about"), None, "unknown", id="nothing about a slot"),
    pytest.param(("slots", 0, "about"), {"mode": "isolated"}, "unknown", id="only a mode"),
    pytest.param(("slots", 0, "about"), {"mounts": 1}, "unknown", id="no mode, and mounts"),
    pytest.param(("slots", 0, "about", "mode"), {}, "unknown", id="the mode is a mapping"),
    pytest.param(("slots", 0, "about", "note"), "\udfff", "unknown", id="half a character in a note"),
    pytest.param(("slots", 0, "about", "network"), ["none"], "unknown", id="a list of networks"),
    pytest.param(("slots", 0, "about", "mounts"), None, "unknown", id="mounts are nothing"),
    pytest.param(("slots", 0, "about", "mounts"), ["/"], "unknown", id="a mount is a text"),
    pytest.param(("slots", 0, "about", "capabilities"), [{}], "unknown", id="a capability without words"),
    pytest.param(("slots", 0, "about", "workspaces"), [1], "unknown", id="a workspace is a number"),
    pytest.param(("not_applicable",), True, "unknown", id="beside is no list"),
    pytest.param(("not_applicable", 0), "x", "unknown", id="beside is a text"),
]


@pytest.mark.parametrize(("place", "what", "state"), MALFORMED)
def test_a_host_that_lies_does_not_keep_the_others_from_their_report(
    place: tuple[t.Any, ...], what: t.Any, state: str
) -> None:
    lie: t.Any = host()
    *way, last = place
    inner = lie
    for step in way:
        inner = inner[step]
    inner[last] = what() if what is deep else what
    found = fleet.fleet({"box": host(), "liar": lie})
    report = json.loads(found["files"]["health.json"], parse_constant=pytest.fail)
    assert {each["host"]: each["state"] for each in report["hosts"]} == {"box": "ok", "liar": state}
    assert report["counts"] == {
        "ok": 4 if state == "ok" else 2,
        "warn": 0,
        "unknown": int(state != "ok"),
        "critical": 0,
    }
    for text in found["files"].values():
        text.encode()
    samples = [line.rpartition(" ") for line in found["files"]["health.prom"].splitlines() if line[0] != "#"]
    assert len({name for name, _unused, _number in samples}) == len(samples)
    for _name, _unused, number in samples:
        float(number)


@pytest.mark.parametrize(
    "again", [("checks",), ("slots",), ("slots", 0, "checks")], ids=["host", "slot", "slot's check"]
)
def test_a_host_that_says_the_same_twice_breaks_no_textfile(again: tuple[t.Any, ...]) -> None:
    lie: t.Any = host()
    found = lie
    for step in again:
        found = found[step]
    found.append(found[0])
    text = fleet.fleet({"box": host(), "liar": lie})["files"]["health.prom"]
    names = [line.rpartition(" ")[0] for line in text.splitlines()]
    assert len(set(names)) == len(names) and 'confined_slots_health_state{host="liar"} 3' in text


@pytest.mark.parametrize("message", [None, ["x"], {"a": "b"}, 7, "\ud800"])
def test_what_a_host_gives_for_a_message_is_told_if_it_is_a_text(message: t.Any) -> None:
    found = fleet.fleet({"far": {"unreachable": True, "msg": message}})
    (far,) = json.loads(found["files"]["health.json"])["hosts"]
    assert far["checks"][0]["found"].startswith("it was not reached: ")
    for text in found["files"].values():
        text.encode()


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
