# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's report in a real browser: filter, details, keyboard, no errors, axe's rules, light and dark, size.

Needs Debian's chromium, the package playwright and axe-core (AXE names its axe.min.js); `make browser` sees to it.
Screenshots stay in build/results.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import time
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.filter import fleet
from ansible_collections.confined.slots.plugins.module_utils import _health

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

CHROMIUM = shutil.which("chromium")
AXE = pathlib.Path(os.environ.get("AXE", "build/axe/node_modules/axe-core/axe.min.js"))
PATIENCE = 300_000  # milliseconds
RESULTS = pathlib.Path("build/results")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"
STATES = ("ok", "ok", "ok", "warn", "critical", "unknown")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed [apt-get install chromium]")


def host(name: str, slots: int) -> dict[str, t.Any]:
    """Return what the module says of a host with so many slots."""
    parts = []
    for number in range(slots):
        state = STATES[number % len(STATES)]
        checks = [_health.as_json(f"check-{each}", _health.ok("as made"), 1.0) for each in range(26)]
        checks.append(_health.as_json("marker", _health.Outcome(state, f"found {HOSTILE}", "that", "slotctl x"), 9.0))
        mounts = [{"kind": "bind", "mode": "ro", "target": f"/usr/{each}", "reason": "of all"} for each in range(20)]
        about = {
            "mode": "isolated", "note": "", "enabled": True, "provider": "claude_code", "version": "2.1",
            "certification": "certified", "network": "private", "docker": False, "workspaces": ["main"],
            "capabilities": [{"words": "Use Git identity", "why": "commits"}], "fingerprint": "sha256:0f",
            "mounts": [*mounts, {"kind": "bind", "mode": "rw", "target": HOSTILE, "reason": "hostile"}],
        }  # fmt: skip
        parts.append({"slot": f"slot-{number:04}", "about": about, "checks": checks})
    return _health.report(name, 1796000000.0, 1.5, [_health.as_json("release", _health.ok("as made"), 2.0)], parts, [])


def page_of(tmp_path: pathlib.Path, hosts: int, slots: int) -> str:
    """Write a report and return its address."""
    found = {f"host-{number:02}": host(f"host-{number:02}", slots // hosts) for number in range(hosts)}
    path = tmp_path / "health.html"
    path.write_text(fleet.fleet({**found, "far": {"unreachable": True, "msg": HOSTILE}})["files"]["health.html"])
    return path.as_uri()


@pytest.fixture(scope="module", params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    """Return each colour scheme in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def browser() -> t.Iterator[t.Any]:
    """Return a running browser."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: t.Any) -> t.Iterator[t.Any]:
    """Return a page on which nothing may be said on the console, asked of a network, or opened as a dialog."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: None if request.url.startswith("file:") else said.append(request.url))
    yield page
    page.close()
    assert said == []


def test_it_shows_what_is_wrong_first_and_hostile_words_as_text(page: t.Any, tmp_path: pathlib.Path) -> None:
    page.goto(page_of(tmp_path, 2, 24))
    first = page.locator("#wrong ~ .scroll tbody tr").first
    assert first.get_attribute("data-state") == "critical"
    assert HOSTILE in first.inner_text() and "slotctl x" in first.inner_text()
    assert page.locator("img").count() == 0
    RESULTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=RESULTS / "health-light.png", full_page=True)


def test_search_and_states_filter_and_the_number_is_told(page: t.Any, tmp_path: pathlib.Path) -> None:
    page.goto(page_of(tmp_path, 2, 24))
    page.get_by_label("Search").fill("host-01 slot-0004")
    rows = page.locator("tr.row:visible")
    assert rows.count() == 3 and all("host-01" in text for text in rows.all_inner_texts())
    assert page.locator("#shown").inner_text().startswith("3 of ")
    page.get_by_label("Search").fill("")
    page.get_by_label("Critical").uncheck()
    assert page.locator('tr.row[data-state="critical"]:visible').count() == 0
    page.get_by_label("Critical").check()
    assert page.locator('tr.row[data-state="critical"]:visible').count() > 0


def test_details_open_by_keyboard_and_hold_the_mounts_as_text(page: t.Any, tmp_path: pathlib.Path) -> None:
    page.goto(page_of(tmp_path, 1, 6))
    details = page.locator("details").first
    assert details.locator("li").count() == 0
    details.locator("summary").focus()
    page.keyboard.press("Enter")
    sync_api.expect(details.locator("li")).to_have_count(21, timeout=PATIENCE)
    assert HOSTILE in details.inner_text() and page.locator("img").count() == 0


def test_without_a_pointer_the_first_stop_leads_to_what_is_wrong(page: t.Any, tmp_path: pathlib.Path) -> None:
    page.goto(page_of(tmp_path, 1, 6))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to what is wrong"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "wrong"


def test_axe_finds_no_barrier(browser: t.Any, tmp_path: pathlib.Path, scheme: str) -> None:
    if not AXE.is_file():
        pytest.skip(f"{AXE} is not there [npm install axe-core]")
    # the page lets no script run but its own: the context steps over that for axe
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(page_of(tmp_path, 2, 12))
    page.locator("details summary").first.click()
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    RESULTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=RESULTS / f"health-{scheme}.png", full_page=True)
    context.close()
    words = [f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}" for each in found["violations"]]
    assert words == []


def test_states_differ_by_word_and_by_border_not_by_colour_alone(page: t.Any, tmp_path: pathlib.Path) -> None:
    page.goto(page_of(tmp_path, 1, 12))
    style = "node => getComputedStyle(node).borderStyle"
    borders = {name: page.locator(f".state.{name}").first.evaluate(style) for name in ("ok", "critical", "unknown")}
    assert len(set(borders.values())) == 3
    words = {text.split()[-1] for text in page.locator(".state").all_inner_texts()}
    assert words >= {"OK", "Warning", "Critical", "Unknown"}


def test_on_paper_there_is_no_filter(page: t.Any, tmp_path: pathlib.Path) -> None:
    page.goto(page_of(tmp_path, 1, 6))
    page.emulate_media(media="print")
    assert not page.locator(".filter").is_visible()
    assert page.locator("#wrong").is_visible()


@pytest.mark.parametrize("slots", [1, 100, 2000])
def test_it_works_with_few_and_with_many(page: t.Any, tmp_path: pathlib.Path, slots: int) -> None:
    address = page_of(tmp_path, max(1, slots // 50), slots)
    began = time.monotonic()
    page.goto(address)
    page.get_by_label("Search").fill("slot-0000")
    assert page.locator("tr.row:visible").count() >= 1
    print(f"{slots} slots: opened and filtered in {time.monotonic() - began:.2f} s")
