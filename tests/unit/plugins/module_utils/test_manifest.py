# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests: their canonical form, and that no change of a tree goes unseen."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import _archive, _manifest
from ansible_collections.confined.slots.plugins.module_utils._refusals import Refusal

DIGEST = _manifest.sha256(b"x")
NAMES = [
    pytest.param("bin/tool", id="plain"),
    pytest.param("with a space", id="space"),
    pytest.param("-rf", id="leading dash"),
    pytest.param("zwei\nZeilen", id="line break"),
    pytest.param('quote": "0555 x', id="quote"),
    pytest.param("back\\slash\\", id="backslash"),
    pytest.param("übung/日本", id="unicode"),
    pytest.param("\U0001f600", id="beyond the basic plane"),
    pytest.param(os.fsdecode(b"\xff\xfe"), id="undecodable"),
    pytest.param("\x7f\x1b[31m", id="control characters"),
    pytest.param(" }", id="like the end of the list"),
    pytest.param("n" * 255, id="very long"),
]
names = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=20)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4).map("/".join)
values = st.one_of(
    st.builds(lambda mode, data: f"{mode} {_manifest.sha256(data)}", st.sampled_from(("0444", "0555")), st.binary()),
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=1).map("link ".__add__),
)


class Release(t.NamedTuple):
    """A small release on disk."""

    directory: pathlib.Path
    files: dict[str, str]


def lay(directory: pathlib.Path, contents: dict[str, bytes], links: dict[str, str] | None = None) -> dict[str, str]:
    """Lay files and links with their manifest into a new directory; return what is listed."""
    directory.mkdir(mode=0o755)
    listed = {}
    for path, content in contents.items():
        mode = 0o555 if path.startswith("bin/") else 0o444
        _archive.write_file(str(directory), path, content, mode)
        listed[path] = f"{mode:04o} {_manifest.sha256(content)}"
    for path, target in (links or {}).items():
        (directory / path).symlink_to(target)
        listed[path] = f"link {target}"
    _archive.write_file(str(directory), _manifest.MANIFEST, _archive.dumps(listed, {"version": "1.0"}))
    return listed


def digest_at(directory: pathlib.Path) -> str:
    """Return the digest of the manifest of a tree."""
    return _manifest.sha256((directory / _manifest.MANIFEST).read_bytes())


@pytest.fixture(name="release")
def laid_release(tmp_path: pathlib.Path) -> Release:
    """Return a release of four files, its name ending as its manifest wants."""
    contents = {"bin/bwrap": b"\x7fELF", "bin/tool": b"#!/bin/sh\n", "lib/a/b.py": b"pass\n", "lib/empty.py": b""}
    files = lay(tmp_path / "new", contents)
    named = tmp_path / f"1.0-{digest_at(tmp_path / 'new')[:12]}"
    (tmp_path / "new").rename(named)
    return Release(named, files)


def refusal_of(release: Release) -> Refusal:
    """Return the refusal that verifying raises; fail if there is none."""
    with pytest.raises(Refusal) as caught:
        _manifest.verify_release(str(release.directory))
    assert caught.value.code == "launcher-tampered"
    assert caught.value.cure == _manifest.RELEASE_CURE
    return caught.value


def test_an_untouched_release_is_verified_and_its_digests_are_returned(release: Release) -> None:
    assert _manifest.verify_release(str(release.directory)) == {path: v[5:] for path, v in release.files.items()}


@pytest.mark.parametrize("path", ["bin/bwrap", "bin/tool", "lib/a/b.py", "lib/empty.py", "MANIFEST.json"])
@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(lambda file: file.write_bytes(file.read_bytes() + b"#"), id="appended"),
        pytest.param(lambda file: file.write_bytes(b"\0" + file.read_bytes()[1:]), id="a byte changed"),
        pytest.param(lambda file: file.chmod(0o755), id="mode changed"),
        pytest.param(lambda file: file.chmod(0o666), id="writable by others"),
        pytest.param(lambda file: file.chmod(0o4555), id="setuid"),
        pytest.param(lambda file: os.chown(file, 1000, -1), id="given away"),
        pytest.param(lambda file: file.unlink(), id="removed"),
        pytest.param(
            lambda file: (file.rename(file.with_name("old")), file.symlink_to("old")), id="a link in its place"
        ),
        pytest.param(lambda file: (file.unlink(), os.mkfifo(file, 0o444)), id="a pipe in its place"),
        pytest.param(lambda file: (file.unlink(), file.mkdir(0o755)), id="a directory in its place"),
    ],
)
def test_a_change_of_any_file_is_refused_and_named(
    release: Release, path: str, tamper: t.Callable[[pathlib.Path], object]
) -> None:
    tamper(release.directory / path)
    assert path in refusal_of(release).what


@pytest.mark.parametrize(
    "add",
    [
        pytest.param(lambda top: (top / "lib/extra.py").write_text("x"), id="a file"),
        pytest.param(lambda top: (top / "lib/a/extra").symlink_to("/etc"), id="a link"),
        pytest.param(lambda top: (top / "extra").mkdir(0o755), id="an empty directory"),
        pytest.param(lambda top: (top / "lib/a/extra.pyc").write_bytes(b""), id="bytecode"),
        pytest.param(lambda top: os.mkfifo(top / "bin/extra"), id="a pipe"),
    ],
)
def test_what_is_not_listed_is_refused_and_named(release: Release, add: t.Callable[[pathlib.Path], object]) -> None:
    add(release.directory)
    assert "extra" in refusal_of(release).what


@pytest.mark.parametrize("path", ["", "bin", "lib", "lib/a"])
@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(lambda place: place.chmod(0o775), id="writable by a group"),
        pytest.param(lambda place: place.chmod(0o1777), id="sticky and writable"),
        pytest.param(lambda place: os.chown(place, 1000, -1), id="given away"),
        pytest.param(lambda place: place.chmod(0o700), id="closed"),
    ],
)
def test_a_directory_that_is_not_as_it_was_made_is_refused(
    release: Release, path: str, tamper: t.Callable[[pathlib.Path], object]
) -> None:
    tamper(release.directory / path)
    assert str(release.directory / path).rstrip("/") in refusal_of(release).what


def test_a_directory_above_that_others_can_write_is_refused_unless_it_is_sticky(
    release: Release, tmp_path: pathlib.Path
) -> None:
    tmp_path.chmod(0o1777)
    _manifest.verify_release(str(release.directory))
    tmp_path.chmod(0o777)
    assert str(tmp_path) in refusal_of(release).what


def test_a_link_on_the_way_to_the_release_is_refused(release: Release, tmp_path: pathlib.Path) -> None:
    (tmp_path / "current").symlink_to(release.directory.name)
    assert "link" in refusal_of(release._replace(directory=tmp_path / "current")).what


def test_a_release_under_another_name_is_refused(release: Release) -> None:
    other = release.directory.rename(release.directory.with_name("1.0-000000000000"))
    assert "name" in refusal_of(release._replace(directory=other)).what


def test_a_manifest_rewritten_for_a_changed_file_is_refused(release: Release) -> None:
    """Whoever changes a file and its line still has the directory's name against them."""
    (release.directory / "bin/tool").write_bytes(b"evil")
    listed = {**release.files, "bin/tool": f"0555 {_manifest.sha256(b'evil')}"}
    (release.directory / "MANIFEST.json").write_bytes(_archive.dumps(listed, {"version": "1.0"}))
    assert "MANIFEST.json" in refusal_of(release).what


def test_a_missing_release_is_refused(tmp_path: pathlib.Path) -> None:
    assert "No such file" in refusal_of(Release(tmp_path / "1.0-0", {})).what


def test_without_the_hash_check_a_tampered_file_would_pass(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: with the hash taken out of the check, exactly the change of a content goes unseen."""
    (release.directory / "bin/tool").write_bytes(b"evil")
    refusal_of(release)
    listed = {os.stat(release.directory / path).st_ino: value[5:] for path, value in release.files.items()}
    monkeypatch.setattr(_manifest, "sha256_of", lambda descriptor: listed[os.fstat(descriptor).st_ino])
    _manifest.verify_release(str(release.directory))


def test_the_descriptor_of_a_listed_file_gives_the_bytes_that_were_hashed(release: Release) -> None:
    descriptor = _manifest.open_listed(str(release.directory), "bin/bwrap", release.files["bin/bwrap"])
    try:
        (release.directory / "bin/bwrap").rename(release.directory / "bin/old")
        (release.directory / "bin/bwrap").write_bytes(b"replaced")
        assert os.read(descriptor, 100) == b"\x7fELF"
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_a_listed_file_with_other_bytes_gives_no_descriptor(release: Release) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (release.directory / "bin/bwrap").write_bytes(b"evil")
    with pytest.raises(_manifest.Untrusted, match="bin/bwrap"):
        _manifest.open_listed(str(release.directory), "bin/bwrap", release.files["bin/bwrap"])
    assert len(os.listdir("/proc/self/fd")) == before


def test_verifying_leaves_no_descriptor_open_however_it_ends(release: Release) -> None:
    before = os.listdir("/proc/self/fd")
    _manifest.verify_release(str(release.directory))
    (release.directory / "lib/a").chmod(0o777)
    refusal_of(release)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("name", NAMES)
def test_a_tree_may_hold_files_and_links_of_any_name(tmp_path: pathlib.Path, name: str) -> None:
    listed = lay(tmp_path / "tree", {name: b"content"}, {"link": name})
    digest = digest_at(tmp_path / "tree")
    assert _manifest.verify_tree(str(tmp_path / "tree"), digest) == listed
    assert _manifest.verify_tree(str(tmp_path / "tree"), digest, ("link",)) == listed
    (tmp_path / "tree" / name).write_bytes(b"CONTENT")
    for paths in (None, (name,), ("link",)):
        with pytest.raises(Refusal) as caught:
            _manifest.verify_tree(str(tmp_path / "tree"), digest, paths)
        assert caught.value.code == "provider-changed"
        assert caught.value.what.isprintable()


def test_a_link_that_leads_elsewhere_than_listed_is_refused(tmp_path: pathlib.Path) -> None:
    lay(tmp_path / "tree", {"a": b"1", "b": b"2"}, {"link": "a"})
    digest = digest_at(tmp_path / "tree")
    (tmp_path / "tree/link").unlink()
    (tmp_path / "tree/link").symlink_to("b")
    with pytest.raises(Refusal, match=r"provider-changed: .*link"):
        _manifest.verify_tree(str(tmp_path / "tree"), digest)


def test_a_missing_tree_is_told_from_a_changed_one(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Refusal) as caught:
        _manifest.verify_tree(str(tmp_path / "tree"), DIGEST)
    assert caught.value.code == "provider-missing"
    lay(tmp_path / "tree", {"a": b""})
    with pytest.raises(Refusal) as caught:
        _manifest.verify_tree(str(tmp_path / "tree"), DIGEST)
    assert caught.value.code == "provider-changed"


@pytest.mark.parametrize(
    ("path", "target"),
    [
        pytest.param("a", "bin/run", id="over a link to a directory"),
        pytest.param("bin/run", "bin/run", id="plain"),
        pytest.param("twice", "bin/run", id="over two links"),
        pytest.param("bin/up", "bin/run", id="up and down again"),
    ],
)
def test_links_inside_a_tree_are_resolved_as_the_kernel_would(path: str, target: str) -> None:
    run = f"0555 {DIGEST}"
    listed = {"bin/run": run, "b": "link bin", "a": "link b/run", "twice": "link a", "bin/up": "link ../b/run"}
    assert _manifest.resolve(path, listed) == target


@pytest.mark.parametrize("path", ["missing", "loop", "out", "bin", "bin/run/below", ""])
def test_a_path_that_leads_to_no_listed_file_is_not_resolved(path: str) -> None:
    listed = {"bin/run": f"0555 {DIGEST}", "loop": "link loop", "out": "link ../bin/run"}
    with pytest.raises(_manifest.Untrusted):
        _manifest.resolve(path, listed)


@hypothesis.given(st.text())
def test_text_is_quoted_as_json_does(text: str) -> None:
    assert _manifest.quoted(text) == json.dumps(text)


@hypothesis.given(st.dictionaries(paths, values, min_size=1), st.dictionaries(st.sampled_from("abxyz"), st.text()))
def test_what_is_dumped_is_read_back_the_same(listed: dict[str, str], header: dict[str, str]) -> None:
    manifest = _archive.dumps(listed, header)
    assert _manifest.entries(manifest) == listed == json.loads(manifest)["files"]
    assert _archive.loads(manifest) == (header, listed)


@hypothesis.given(st.dictionaries(paths, values, min_size=1), st.data())
def test_a_manifest_with_a_byte_changed_is_refused_or_still_canonical(
    listed: dict[str, str], data: st.DataObject
) -> None:
    """Reading it line by line never gives other files than a JSON parser would."""
    manifest = bytearray(_archive.dumps(listed, {}))
    manifest[data.draw(st.integers(0, len(manifest) - 1))] = data.draw(st.integers(0, 255))
    try:
        header, found = _archive.loads(bytes(manifest))
    except _manifest.Untrusted:
        return
    assert _archive.dumps(found, header) == bytes(manifest)
    assert json.loads(bytes(manifest))["files"] == found


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([], id="no file"),
        pytest.param([f'  "a": "0755 {DIGEST}"'], id="a mode that no file of ours has"),
        pytest.param([f'  "a": "0555 {DIGEST[:-1]}"'], id="a short digest"),
        pytest.param([f'  "a": "0555 {DIGEST.upper()}"'], id="a digest in capitals"),
        pytest.param([f'  "../a": "0555 {DIGEST}"'], id="a way out"),
        pytest.param([f'  "/a": "0555 {DIGEST}"'], id="an absolute path"),
        pytest.param([f'  "a//b": "0555 {DIGEST}"'], id="an empty part"),
        pytest.param([f'  "b": "0555 {DIGEST}",', f'  "a": "0555 {DIGEST}"'], id="out of order"),
        pytest.param([f'  "a": "0555 {DIGEST}",', f'  "a": "0555 {DIGEST}"'], id="twice"),
        pytest.param([f'  "a": "0555 {DIGEST}",'], id="a comma at the end"),
        pytest.param([f'  "a": "0555 {DIGEST}"', f'  "b": "0555 {DIGEST}"'], id="no comma between"),
        pytest.param([f'  "\\u0061": "0555 {DIGEST}"'], id="an escape for what needs none"),
        pytest.param([f'  "a":  "0555 {DIGEST}"'], id="a space too many"),
        pytest.param(['  "a": "link "', ""], id="a line after the list"),
        pytest.param(['  "a": "link \\u00"'], id="a broken escape"),
        pytest.param(['  "a": "link \\x"'], id="an unknown escape"),
    ],
)
def test_a_list_in_another_form_is_no_manifest(lines: list[str]) -> None:
    text = "\n".join(["{", ' "files": {', *lines, " }", "}", ""])
    with pytest.raises(_manifest.Untrusted):
        _manifest.entries(text.encode())


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        pytest.param(lambda file: file.chmod(0o620), "written by others", id="writable by its group"),
        pytest.param(lambda file: os.chown(file, 1000, 0), "uid 1000", id="another's"),
        pytest.param(lambda file: (file.rename(f"{file}2"), file.symlink_to(f"{file}2")), "link", id="a link"),
        pytest.param(lambda file: (file.unlink(), file.mkdir()), "regular", id="a directory"),
        pytest.param(lambda file: (file.unlink(), os.mkfifo(file)), "regular", id="a pipe"),
        pytest.param(lambda file: file.write_bytes(bytes(101)), "larger", id="too large"),
    ],
)
def test_only_what_root_alone_can_write_is_read(
    tmp_path: pathlib.Path, tamper: t.Callable[[pathlib.Path], object], why: str
) -> None:
    file = tmp_path / "plan"
    file.write_bytes(b"content")
    assert _manifest.read_checked(str(file), limit=100) == b"content"
    tamper(file)
    with pytest.raises(_manifest.Untrusted, match=why):
        _manifest.read_checked(str(file), limit=100)


def test_the_hot_path_imports_nothing_that_costs(tmp_path: pathlib.Path) -> None:
    core = pathlib.Path(_manifest.__file__).parent
    (tmp_path / "confined_slots").symlink_to(core)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import confined_slots._manifest; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-IBS", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"json", "re", "typing", "dataclasses", "hashlib", "enum", "collections"} & set(loaded.split())


COMPILED = f"lib/confined_slots/__pycache__/_x.{sys.implementation.cache_tag}.pyc"
EXECUTED = {
    "bin/bwrap": b"bwrap",
    "bin/slot-launcher": b"launcher",
    "bin/slotctl": b"slotctl",
    COMPILED: b"code",
    "lib/confined_slots/_x.py": b"source",
    "lib/confined_slots/_y.py": b"source",
    "lib/seccomp.bpf": b"filter",
}


@pytest.fixture(name="launched")
def laid_launched(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a release of which a launch executes _x, compiled, and _y, which is not."""
    lay(tmp_path / "new", EXECUTED)
    return (tmp_path / "new").rename(tmp_path / f"1.0-{digest_at(tmp_path / 'new')[:12]}")


@pytest.mark.parametrize("path", sorted(EXECUTED))
def test_a_launch_verifies_what_it_executes_before_bwrap_and_nothing_else(launched: pathlib.Path, path: str) -> None:
    hot = frozenset({"_x", "_y"})
    assert "bin/bwrap" in _manifest.verify_release(str(launched), hot)
    (launched / path).write_bytes(b"evil")
    if path in ("bin/bwrap", "bin/slotctl", "lib/confined_slots/_x.py"):  # hashed when opened; slotctl's; not executed
        _manifest.verify_release(str(launched), hot)
    else:
        with pytest.raises(Refusal, match=path):
            _manifest.verify_release(str(launched), hot)


def test_a_module_that_is_not_listed_is_not_executed(launched: pathlib.Path) -> None:
    with pytest.raises(Refusal, match="does not list lib/confined_slots/_z"):
        _manifest.verify_release(str(launched), frozenset({"_z"}))
