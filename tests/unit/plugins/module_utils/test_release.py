# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases: made, switched, rolled back, pruned, and whole wherever a run ends."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import _archive, _manifest, _release
from ansible_collections.confined.slots.plugins.module_utils._plan import PLAN_FORMAT
from ansible_collections.confined.slots.plugins.module_utils._refusals import Refusal
from ansible_collections.confined.slots.plugins.module_utils._release import Found, Origin, Release, ReleaseError

from .crashes import Breaker

ORIGIN = Origin("5" * 64, "b" * 64, "0.12.0", "0.12.0-1", "cpython-313")


def nobody(_names: t.Iterable[str]) -> set[str]:
    """Say that no release is in use."""
    return set()


class Host:
    """A host in a directory, on which releases of one file each are made."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.root = directory / "opt"
        self.bwrap = directory / "bwrap"
        self.slots_d = directory / "slots.d"
        self.slots_d.mkdir()
        self.bwrap.write_text("#!/bin/sh\necho bubblewrap 0.12.0\n")
        self.bwrap.chmod(0o755)
        (self.root / "releases").mkdir(parents=True)
        self._directory = directory

    def archive(self, text: str) -> tuple[str, str]:
        """Return the archive of an image that holds the text, and its source."""
        image = self._directory / f"image-{text}"
        if not image.exists():
            (image / "bin").mkdir(parents=True)
            (image / "bin/slot-launcher").write_text(text)
        tree = _archive.collect(str(image), image=True)
        manifest = _release.source_manifest(tree.listed, "1.0")
        path = self._directory / f"archive-{text}"
        if not path.exists():
            with path.open("wb") as out:
                _archive.pack(tree, manifest, out)
        return str(path), _manifest.sha256(manifest)

    def converge(
        self, text: str, keep: int = 3, busy: t.Callable[[t.Iterable[str]], set[str]] = nobody
    ) -> list[tuple[str, str]]:
        """Make the release of a text current, as the module does; return what was done."""
        archive, source = self.archive(text)
        with _release.lock(str(self.root)):
            found = _release.find(str(self.root))
            origin = _release.origin_on_host(source)
            wanted = found.match(origin)
            with contextlib.ExitStack() as stack:
                built = None
                if wanted is None:
                    built = stack.enter_context(_release.incoming(f"{self.root}/releases"))
                    wanted = Release(_release.build(archive, "1.0", origin, built), "1.0", origin=origin)
                steps = _release.plan(wanted, found, keep, busy)
                _release.apply(steps, found, built, str(self.root))
        return [(step.subject, step.action) for step in steps]

    def roll_back(self, target: str | None = None) -> list[tuple[str, str]]:
        """Go back; return what was done."""
        steps = _release.rollback(target, str(self.root), str(self.slots_d))
        return [(step.subject, step.action) for step in steps]

    def current(self) -> str:
        """Return the text of the current release, which is whole."""
        directory = os.path.realpath(self.root / "current")
        _manifest.verify_release(directory)
        return (pathlib.Path(directory) / "bin/slot-launcher").read_text()

    def texts(self) -> dict[str, str]:
        """Return the name of each release by its text."""
        names = sorted(os.listdir(self.root / "releases"))
        return {(self.root / "releases" / name / "bin/slot-launcher").read_text(): name for name in names}

    def unlisted(self) -> list[str]:
        """Return what stands about that is neither a release nor one of the known names."""
        top = set(os.listdir(self.root)) - {"releases", "current", "releases.json", _release.LOCK}
        return sorted(top) + [name for name in os.listdir(self.root / "releases") if name.startswith(".")]


@pytest.fixture(name="host")
def made_host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return a host whose bwrap is a script, and which makes neither filter nor bytecode."""
    host = Host(tmp_path)
    monkeypatch.setattr(_release, "BWRAP", str(host.bwrap))
    monkeypatch.setattr(_release, "COMMAND", str(tmp_path / "slotctl"))
    monkeypatch.setattr(_release, "_seccomp", lambda _directory: bytes(8))
    monkeypatch.setattr(_release, "_bytecode", lambda _directory: {})
    monkeypatch.setattr(_release, "_package", lambda: "0.12.0-1")
    origin = dataclasses.replace(ORIGIN, bwrap_digest=_manifest.sha256(host.bwrap.read_bytes()))
    monkeypatch.setattr(_release, "origin_on_host", lambda source: dataclasses.replace(origin, source=source))
    return host


def test_the_first_release_is_installed_and_made_current(host: Host) -> None:
    done = host.converge("a")
    assert [action for _unused, action in done] == ["install", "switch", "link"]
    assert host.current() == "a"
    assert os.readlink(host.root / "current").startswith("releases/1.0-")
    assert host.unlisted() == []


def test_a_second_converge_does_nothing(host: Host) -> None:
    host.converge("a")
    before = (host.root / "releases.json").stat()
    assert host.converge("a") == []
    assert (host.root / "releases.json").stat() == before


def test_a_release_holds_the_distributions_bwrap_and_says_what_it_is_made_of(host: Host) -> None:
    host.converge("a")
    directory = host.root / "current"
    header, listed = _archive.loads((directory / "MANIFEST.json").read_bytes())
    assert (directory / "bin/bwrap").read_bytes() == host.bwrap.read_bytes()
    assert listed["bin/bwrap"].startswith("0555 ") and listed["lib/seccomp.bpf"].startswith("0444 ")
    assert header["bwrap"] == {"package": "0.12.0-1", "version": "0.12.0"}
    assert header["plan_format"] == PLAN_FORMAT and header["version"] == "1.0"


def test_a_changed_bwrap_of_the_distribution_gives_a_new_release(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.converge("a")
    first = os.readlink(host.root / "current")
    host.bwrap.write_text("#!/bin/sh\necho bubblewrap 0.12.1\n")
    origin = dataclasses.replace(ORIGIN, bwrap_digest=_manifest.sha256(host.bwrap.read_bytes()))
    monkeypatch.setattr(_release, "origin_on_host", lambda source: dataclasses.replace(origin, source=source))
    assert [action for _unused, action in host.converge("a")] == ["install", "switch"]
    assert os.readlink(host.root / "current") != first


def test_a_bwrap_that_changes_meanwhile_is_not_copied(host: Host) -> None:
    host.converge("a")
    host.bwrap.write_text("evil")
    with pytest.raises(ReleaseError, match="changed meanwhile"):
        host.converge("b")
    assert host.current() == "a" and host.unlisted() == []


@pytest.mark.parametrize("path", ["bin/slot-launcher", "bin/bwrap", "lib/seccomp.bpf", "MANIFEST.json"])
def test_a_tampered_current_release_is_set_aside_and_made_anew(host: Host, path: str) -> None:
    host.converge("a")
    host.converge("b")
    name = os.path.basename(os.readlink(host.root / "current"))
    (host.root / "current" / path).write_bytes(b"evil")
    assert [action for _unused, action in host.converge("b")] == ["set aside", "install"]
    assert host.current() == "b"
    (aside,) = host.unlisted()
    assert aside.startswith(f".tampered-{name}-")
    assert (host.root / "releases" / aside / path).read_bytes() == b"evil"
    assert host.converge("b") == []
    host.roll_back()
    assert host.current() == "a", "the one made anew has kept its place in the order"


def test_a_tampered_earlier_release_is_set_aside_too_but_not_while_it_is_in_use(host: Host) -> None:
    host.converge("a")
    host.converge("b")
    name = host.texts()["a"]
    (host.root / "releases" / name / "bin/bwrap").write_bytes(b"evil")
    assert host.converge("b", busy=set) == []
    assert host.converge("b") == [(f"release {name}", "set aside")]
    assert "a" not in {host.current()} and host.converge("b") == []


def test_lr_04_rollback_goes_back_one_by_one_and_skips_what_was_withdrawn(host: Host) -> None:
    for text in "abc":
        host.converge(text)
    names = host.texts()
    assert host.roll_back() == [("release", "switch"), (f"release {names['c']}", "withdraw")]
    assert host.current() == "b"
    host.roll_back()
    assert host.current() == "a"
    with pytest.raises(ReleaseError, match="no release before"):
        host.roll_back()
    assert host.current() == "a"


def test_a_converge_after_a_rollback_restores_what_was_withdrawn_and_says_so(host: Host) -> None:
    host.converge("a")
    host.converge("b")
    host.roll_back()
    name = host.texts()["b"]
    assert host.converge("b") == [(f"release {name}", "restore"), ("release", "switch")]
    assert host.current() == "b"
    assert not any(release.withdrawn for release in _release.list_releases(str(host.root)))


def test_rollback_after_a_withdrawn_release_does_not_choose_it(host: Host) -> None:
    """LR-04: c was rolled back from once; rolling back from d goes to b."""
    for text in "abc":
        host.converge(text)
    host.roll_back()
    host.converge("d")
    host.roll_back()
    assert host.current() == "b"


def test_a_named_release_is_chosen_even_if_it_was_withdrawn(host: Host) -> None:
    for text in "abc":
        host.converge(text)
    names = host.texts()
    host.roll_back(names["a"])
    assert host.current() == "a"
    assert host.roll_back(names["c"]) == [(f"release {names['c']}", "restore"), ("release", "switch")]
    assert host.current() == "c"
    assert host.roll_back(names["c"]) == []


def test_rollback_to_what_is_not_there_or_tampered_changes_nothing(host: Host) -> None:
    host.converge("a")
    host.converge("b")
    with pytest.raises(ReleaseError, match=r"there is no release 1\.0-000000000000"):
        host.roll_back("1.0-000000000000")
    with pytest.raises(ReleaseError, match="there is no release"):
        host.roll_back("../../etc")
    name = host.texts()["a"]
    (host.root / "releases" / name / "bin/bwrap").chmod(0o755)
    for target in (None, name):
        with pytest.raises(ReleaseError, match="tampered"):
            host.roll_back(target)
    assert host.current() == "b"


def test_rollback_is_refused_where_the_plans_have_another_format(host: Host) -> None:
    host.converge("a")
    host.converge("b")
    (host.slots_d / "coder").mkdir()
    plan = host.slots_d / "coder/plan"
    plan.write_bytes(f"confined-slots-plan {PLAN_FORMAT + 1}\0".encode())
    with pytest.raises(ReleaseError, match=f"coder has format {PLAN_FORMAT + 1}"):
        host.roll_back()
    plan.write_bytes(b"something else")
    with pytest.raises(ReleaseError, match="coder has format 0"):
        host.roll_back()
    assert host.current() == "b"
    plan.write_bytes(f"confined-slots-plan {PLAN_FORMAT}\0".encode())
    host.roll_back()
    assert host.current() == "a"


def test_lr_04_pruning_goes_by_the_recorded_order_whatever_the_clock_says(host: Host) -> None:
    for number, text in enumerate("abcd"):
        host.converge(text)
        os.utime(os.path.realpath(host.root / "current"), (10_000 - number, 10_000 - number))
    host.converge("e", keep=2)
    assert set(host.texts()) == {"c", "d", "e"}


def test_lr_04_pruning_keeps_the_current_one_after_failed_releases(host: Host) -> None:
    """LR-04: three releases were rolled back from; the good one is the oldest and stays."""
    for text in "abcd":
        host.converge(text)
    for _unused in range(3):
        host.roll_back()
    assert host.current() == "a"
    host.converge("a", keep=2)
    assert host.current() == "a" and len(host.texts()) == 3


def test_pruning_prefers_releases_that_can_be_rolled_back_to(host: Host) -> None:
    for text in "abc":
        host.converge(text)
    host.roll_back()
    host.converge("d", keep=2)
    assert set(host.texts()) == {"a", "b", "d"}


def test_lr_04_a_release_in_use_is_never_pruned(host: Host) -> None:
    for text in "abc":
        host.converge(text)
    name = host.texts()["a"]
    host.converge("d", keep=1, busy=lambda names: {name} & set(names))
    assert set(host.texts()) == {"a", "c", "d"}
    host.converge("d", keep=1)
    assert set(host.texts()) == {"c", "d"}


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"1.0-000000000000": 1}', '{"x": {"sequence": "a"}}'])
def test_a_lost_record_costs_the_order_only(host: Host, broken: str) -> None:
    host.converge("a")
    host.converge("b")
    (host.root / "releases.json").write_text(broken)
    assert host.converge("b") == []
    host.converge("c")
    host.roll_back()
    assert host.current() in ("a", "b")


def test_what_is_no_link_in_the_commands_place_is_left_alone(host: Host) -> None:
    pathlib.Path(_release.COMMAND).write_text("somebody's")
    with pytest.raises(ReleaseError, match="no link"):
        host.converge("a")
    assert pathlib.Path(_release.COMMAND).read_text() == "somebody's"


def test_a_second_converge_waits_and_then_says_who_holds_the_lock(host: Host) -> None:
    with (
        _release.lock(str(host.root)),
        pytest.raises(ReleaseError, match="another converge or rollback"),
        _release.lock(str(host.root), seconds=0.2),
    ):
        pass


def test_who_locks_the_directory_blocks_no_converge_and_nobody_else_can_open_the_lock(host: Host) -> None:
    directory = os.open(host.root, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    with _release.lock(str(host.root), seconds=0):
        found = (host.root / _release.LOCK).stat()
    os.close(directory)
    assert (found.st_uid, found.st_mode & 0o7777) == (0, 0o600)


@pytest.mark.parametrize("how", ["killed", "full"])
def test_wherever_an_upgrade_ends_a_whole_release_is_current_and_the_next_run_mends_the_rest(
    host: Host, monkeypatch: pytest.MonkeyPatch, how: t.Literal["killed", "full"]
) -> None:
    breaker = Breaker(monkeypatch)
    host.converge("a")
    host.converge("b")
    host.archive("c")  # what the controller does is not broken
    for limit in range(1000):
        upgraded = False
        with breaker.after(limit, how):
            host.converge("c", keep=1)
            upgraded = True
        if upgraded:
            break
        assert host.current() in ("b", "c"), limit
        if how == "full" and host.current() == "b":
            assert host.unlisted() == [], limit
        host.converge("b", keep=5)
        assert host.current() == "b" and host.unlisted() == [], limit
        if "c" in host.texts():  # begin again without it
            host.converge("b", keep=5)
            (host.root / "releases" / host.texts()["c"]).rename(host.root / "releases/.incoming-gone")
            host.converge("b", keep=5)
        host.converge("a", keep=5)
        host.converge("b", keep=5)
    assert host.current() == "c"
    assert 30 < limit < 1000, "the run was broken at each of its changes"


@pytest.mark.parametrize("how", ["killed", "full"])
def test_wherever_a_rollback_ends_a_whole_release_is_current(
    host: Host, monkeypatch: pytest.MonkeyPatch, how: t.Literal["killed", "full"]
) -> None:
    breaker = Breaker(monkeypatch)
    for limit in range(100):
        host.converge("a")
        host.converge("b")
        done = False
        with breaker.after(limit, how):
            host.roll_back()
            done = True
        assert host.current() in ("a", "b")
        if done:
            break
    assert host.current() == "a"
    assert 3 < limit < 100


def test_the_list_shows_every_release_with_its_faults(host: Host) -> None:
    for text in "ab":
        host.converge(text)
    host.roll_back()
    (host.root / "releases" / host.texts()["b"] / "bin/bwrap").write_bytes(b"evil")
    newest, oldest = _release.list_releases(str(host.root))
    assert (newest.withdrawn, newest.active, oldest.withdrawn, oldest.active) == (True, False, False, True)
    assert "bin/bwrap" in (newest.fault or "") and oldest.fault is None


def test_verifying_names_the_active_release_or_the_one_asked_for(host: Host) -> None:
    with pytest.raises(Refusal, match="leads to no release"):
        _release.verify_release(root=str(host.root))
    host.converge("a")
    assert "bin/bwrap" in _release.verify_release(root=str(host.root))
    with pytest.raises(ReleaseError, match="there is no release"):
        _release.verify_release("../releases", str(host.root))
    (host.root / "current/bin/bwrap").write_bytes(b"evil")
    with pytest.raises(Refusal, match="launcher-tampered"):
        _release.verify_release(host.texts()["a"], str(host.root))


def test_an_archive_with_a_link_is_no_release(host: Host, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "tree"
    source.mkdir()
    (source / "bin").mkdir()
    (source / "bin/slot-launcher").symlink_to("x")
    tree = _archive.collect(str(source))
    manifest = _release.source_manifest(tree.listed, "1.0")
    with (tmp_path / "archive").open("wb") as out:
        _archive.pack(tree, manifest, out)
    (tmp_path / "out").mkdir()
    with pytest.raises(ReleaseError, match="holds no links"):
        _release.build(
            str(tmp_path / "archive"), "1.0", _release.origin_on_host(_manifest.sha256(manifest)), str(tmp_path / "out")
        )


@pytest.mark.parametrize(
    ("version", "old"),
    [("0.8.0", True), ("0.11.0", True), ("0.12.0", False), ("0.12", False), ("1.0", False), ("", True), ("x.y", True)],
)
def test_a_bubblewrap_before_0_12_is_told(version: str, old: bool) -> None:
    assert _release.bwrap_is_old(version) is old


def test_the_version_is_that_of_the_collection() -> None:
    from ansible_collections.confined.slots.plugins.module_utils import _version

    galaxy = pathlib.Path(_version.__file__).parents[2] / "galaxy.yml"
    assert f"\nversion: {_version.VERSION}\n" in galaxy.read_text()


releases = st.lists(
    st.builds(
        Release,
        name=st.sampled_from([f"1.0-{number:012x}" for number in range(8)]),
        sequence=st.integers(0, 20),
        withdrawn=st.booleans(),
        origin=st.just(ORIGIN),
        fault=st.none() | st.just("bin/bwrap has not the content that MANIFEST.json lists"),
    ),
    unique_by=(lambda release: release.name, lambda release: release.sequence),
    max_size=8,
)


@hypothesis.given(releases, st.integers(0, 7), st.integers(1, 5), st.sets(st.integers(0, 7)))
def test_a_plan_ends_with_the_wanted_release_and_prunes_nothing_that_is_needed(
    several: list[Release], active: int, keep: int, used: set[int]
) -> None:
    several = [dataclasses.replace(one, active=number == active) for number, one in enumerate(several)]
    busy = {one.name for number, one in enumerate(several) if number in used}
    found = Found(
        tuple(sorted(several, key=lambda one: -one.sequence)), command="/opt/confined-slots/current/bin/slotctl"
    )
    wanted = found.match(ORIGIN) or Release("1.0-ffffffffffff", "1.0", origin=ORIGIN)
    steps = _release.plan(wanted, found, keep, lambda names: busy & set(names))
    gone = {step.subject.partition(" ")[2] for step in steps if step.action in ("prune", "set aside")}
    intact = {one.name for one in several if one.fault is None}
    assert wanted.name not in gone or wanted not in found.releases
    assert not gone & busy
    assert len((intact - gone) - {wanted.name}) >= min(keep, len(intact - {wanted.name}))
    usable = [one for one in several if one.fault is None and not one.withdrawn and one.name != wanted.name]
    if usable:
        assert max(usable, key=lambda one: one.sequence).name not in gone
    switched = [step.after for step in steps if step.action == "switch"]
    assert switched == ([] if found.active and found.active.name == wanted.name else [wanted.name])


def test_the_record_is_plain_json_that_an_operator_can_read(host: Host) -> None:
    host.converge("a")
    ((name, entry),) = json.loads((host.root / "releases.json").read_text()).items()
    assert name == host.texts()["a"] and entry == {"sequence": 1, "withdrawn": False}
