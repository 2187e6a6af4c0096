# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees on their way to a host: packed the same each time, unpacked by the list only."""

from __future__ import annotations

import gzip
import io
import os
import pathlib
import tarfile
import tempfile
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import _archive, _manifest
from ansible_collections.confined.slots.plugins.module_utils._manifest import Untrusted

NAMES = ["plain", "with a space", "-rf", "zwei\nZeilen", "übung", "\U0001f600", os.fsdecode(b"\xff"), "x" * 200]


def tree_at(directory: pathlib.Path, files: dict[str, bytes], links: dict[str, str] | None = None) -> pathlib.Path:
    """Lay files (executable below bin) and links; return the directory."""
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
        (directory / path).chmod(0o755 if path.startswith("bin/") else 0o600)
    for path, target in (links or {}).items():
        (directory / path).symlink_to(target)
    return directory


def packed(directory: pathlib.Path, **header: str) -> tuple[bytes, str]:
    """Return the archive of a tree, and the digest of its manifest."""
    tree = _archive.collect(str(directory))
    manifest = _archive.dumps(tree.listed, header)
    out = io.BytesIO()
    _archive.pack(tree, manifest, out)
    return out.getvalue(), _manifest.sha256(manifest)


def archive_of(*members: tuple[str, bytes | str, bytes]) -> bytes:
    """Return a tar.gz of members: name, content (text: where a link leads), type."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb") as compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
        for name, content, kind in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            data = content if isinstance(content, bytes) else b""
            member.linkname = content if isinstance(content, str) else ""
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def unpack(tmp_path: pathlib.Path, archive: bytes, digest: str) -> pathlib.Path:
    """Unpack an archive into a new directory; return it."""
    (tmp_path / "archive").write_bytes(archive)
    (tmp_path / "out").mkdir()
    _archive.unpack(str(tmp_path / "archive"), digest, str(tmp_path / "out"))
    return tmp_path / "out"


def forged(*members: tuple[str, bytes | str, bytes], listed: dict[str, str]) -> tuple[bytes, str]:
    """Return an archive with an honest manifest of `listed` and any members, and the manifest's digest."""
    manifest = _archive.dumps(listed, {})
    return archive_of(("MANIFEST.json", manifest, tarfile.REGTYPE), *members), _manifest.sha256(manifest)


def value_of(content: bytes, mode: str = "0444") -> str:
    """Return the manifest's value of a file."""
    return f"{mode} {_manifest.sha256(content)}"


def test_a_tree_arrives_whole_with_modes_made_plain_and_links_kept(tmp_path: pathlib.Path) -> None:
    files = {"bin/run": b"#!/bin/sh\n", "lib/data": b"\0\1", "lib/empty": b""}
    source = tree_at(tmp_path / "in", files, {"run": "bin/run", "lib/up": "../bin"})
    out = unpack(tmp_path, *packed(source, origin="test"))
    assert {p: (out / p).read_bytes() for p in files} == files
    assert os.readlink(out / "run") == "bin/run" and os.readlink(out / "lib/up") == "../bin"
    assert [oct((out / path).stat().st_mode & 0o7777) for path in files] == ["0o555", "0o444", "0o444"]
    assert {(out / path).stat().st_uid for path in (*files, "bin", "lib")} == {0}
    assert oct((out / "lib").stat().st_mode & 0o7777) == "0o755"


def test_the_same_tree_gives_the_same_bytes_whatever_its_times_owners_and_order(tmp_path: pathlib.Path) -> None:
    first = tree_at(tmp_path / "first", {"a": b"1", "b/c": b"2", "bin/d": b"3"}, {"l": "a"})
    second = tree_at(tmp_path / "second", {"bin/d": b"3", "b/c": b"2", "a": b"1"}, {"l": "a"})
    os.utime(second / "a", (1, 1))
    os.chown(second / "b/c", 1000, 1000)
    (second / "a").chmod(0o644)
    assert packed(first) == packed(second)


@hypothesis.given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=2000), min_size=1))
@hypothesis.settings(max_examples=30)
def test_names_and_contents_survive_the_way(contents: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        top = pathlib.Path(directory)
        source = tree_at(top / "in", {f"d/{name}": content for name, content in contents.items()})
        out = unpack(top, *packed(source))
        assert {name: (out / "d" / name).read_bytes() for name in contents} == contents


def test_an_image_takes_only_what_belongs_into_a_release_and_follows_its_links(tmp_path: pathlib.Path) -> None:
    core = tree_at(tmp_path / "core", {"_plan.py": b"1", "build/x.db": b"", "__pycache__/_plan.cpython-311.pyc": b""})
    image = tree_at(tmp_path / "image", {"bin/slot-launcher": b"2", "lib/slotctl/run.py": b"3", "lib/.cache/a.py": b""})
    (image / "bin/slot-launcher").chmod(0o644)
    (image / "lib/slotctl/run.py").chmod(0o755)
    (image / "lib/slotctl/run.py~").write_bytes(b"")
    (image / "lib/confined_slots").symlink_to(core)
    assert _archive.collect(str(image), image=True).listed == {
        "bin/slot-launcher": value_of(b"2", "0555"),
        "lib/confined_slots/_plan.py": value_of(b"1"),
        "lib/slotctl/run.py": value_of(b"3"),
    }


def test_a_special_file_in_a_tree_is_refused(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Untrusted, match="pipe"):
        _archive.collect(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "target"),
    [
        pytest.param("a", "/etc/passwd", id="absolute"),
        pytest.param("a", "../x", id="one up from the top"),
        pytest.param("d/a", "../../x", id="two up"),
        pytest.param("d/a", "b/../../../d/x", id="out and in again"),
        pytest.param("a", "", id="empty"),
    ],
)
def test_a_link_out_of_its_tree_is_refused(path: str, target: str) -> None:
    with pytest.raises(Untrusted, match="leads out"):
        _archive.check_links({path: f"link {target}"})


@pytest.mark.parametrize("target", ["b", "../b", "../d/b", "./b", "c/../b"])
def test_a_link_inside_its_tree_is_kept(target: str) -> None:
    _archive.check_links({"d/a": f"link {target}"})


A = ("a", b"x", tarfile.REGTYPE)
LISTED_A = {"a": value_of(b"x")}


@pytest.mark.parametrize(
    ("members", "listed"),
    [
        pytest.param([A, ("b", b"y", tarfile.REGTYPE)], LISTED_A, id="a file that is not listed"),
        pytest.param([A, ("../b", b"y", tarfile.REGTYPE)], LISTED_A, id="a way out"),
        pytest.param([A, ("/tmp/b", b"y", tarfile.REGTYPE)], LISTED_A, id="an absolute name"),
        pytest.param([A, A], LISTED_A, id="a file twice"),
        pytest.param([], LISTED_A, id="a file missing"),
        pytest.param([("a", b"X", tarfile.REGTYPE)], LISTED_A, id="another content"),
        pytest.param([("a", b"xx", tarfile.REGTYPE)], LISTED_A, id="a longer content"),
        pytest.param([("a", "/etc/passwd", tarfile.SYMTYPE)], LISTED_A, id="a link for a file"),
        pytest.param([("a", "/etc/passwd", tarfile.LNKTYPE)], LISTED_A, id="a hard link for a file"),
        pytest.param([("a", b"", tarfile.DIRTYPE)], LISTED_A, id="a directory for a file"),
        pytest.param([("a", b"", tarfile.CHRTYPE)], LISTED_A, id="a device for a file"),
        pytest.param([("a", b"", tarfile.FIFOTYPE)], LISTED_A, id="a pipe for a file"),
        pytest.param([A], {"a": "link b"}, id="a file for a link"),
        pytest.param([("a", "..", tarfile.SYMTYPE)], {"a": "link .."}, id="a listed link that leads out"),
        pytest.param(
            [("d", "x", tarfile.SYMTYPE), ("d/a", b"x", tarfile.REGTYPE)],
            {"d": "link x", "d/a": value_of(b"x")},
            id="a file below a link",
        ),
    ],
)
def test_an_archive_that_is_not_as_its_manifest_says_is_refused(
    tmp_path: pathlib.Path, members: list[t.Any], listed: dict[str, str]
) -> None:
    (tmp_path / "x").mkdir()
    archive, digest = forged(*members, listed=listed)
    with pytest.raises(Untrusted):
        unpack(tmp_path, archive, digest)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "out", "x"]
    assert not list((tmp_path / "x").iterdir())


def test_a_file_is_never_written_through_a_link_that_stands_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/d").symlink_to(tmp_path)
    with pytest.raises(OSError, match="Not a directory"):
        _archive.write_file(str(tmp_path / "out"), "d/a", b"x")
    (tmp_path / "out/f").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        _archive.write_file(str(tmp_path / "out"), "f", b"x")
    assert not (tmp_path / "target").exists() and not (tmp_path / "a").exists()


def test_an_archive_of_another_manifest_than_told_is_refused(tmp_path: pathlib.Path) -> None:
    archive, _unused = packed(tree_at(tmp_path / "in", {"a": b"x"}))
    with pytest.raises(Untrusted, match="digest"):
        unpack(tmp_path, archive, _manifest.sha256(b"another"))
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_an_archive_cut_off_anywhere_is_refused(tmp_path: pathlib.Path, share: float) -> None:
    archive, digest = packed(tree_at(tmp_path / "in", {"a": os.urandom(50_000), "b": b"y"}))
    with pytest.raises(Untrusted):
        unpack(tmp_path, archive[: int(len(archive) * share)], digest)


def test_a_file_changed_while_it_is_packed_is_noticed(tmp_path: pathlib.Path) -> None:
    tree = _archive.collect(str(tree_at(tmp_path / "in", {"a": b"x"})))
    (tmp_path / "in/a").write_bytes(b"y")
    with pytest.raises(Untrusted, match="changed"):
        _archive.pack(tree, _archive.dumps(tree.listed, {}), io.BytesIO())


def test_the_manifest_that_an_archive_begins_with_is_told(tmp_path: pathlib.Path) -> None:
    archive, digest = packed(tree_at(tmp_path / "in", {"a": b"x"}))
    (tmp_path / "archive").write_bytes(archive)
    assert _archive.digest_told(str(tmp_path / "archive")) == digest
    (tmp_path / "other").write_bytes(archive_of(A))
    with pytest.raises(Untrusted, match="begin"):
        _archive.digest_told(str(tmp_path / "other"))


def test_any_archive_of_files_directories_and_links_is_extracted(tmp_path: pathlib.Path) -> None:
    (tmp_path / "any.tar.gz").write_bytes(
        archive_of(
            ("./", b"", tarfile.DIRTYPE),
            ("./bin/", b"", tarfile.DIRTYPE),
            ("./bin/run", b"#!", tarfile.REGTYPE),
            ("hard", "./bin/run", tarfile.LNKTYPE),
            ("soft", "bin/run", tarfile.SYMTYPE),
        )
    )
    (tmp_path / "out").mkdir()
    _archive.extract(str(tmp_path / "any.tar.gz"), str(tmp_path / "out"))
    assert (tmp_path / "out/hard").read_bytes() == (tmp_path / "out/soft").read_bytes() == b"#!"
    assert set(_archive.collect(str(tmp_path / "out")).listed) == {"bin/run", "hard", "soft"}


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([("../a", b"x", tarfile.REGTYPE)], id="a way out"),
        pytest.param([("/a", b"x", tarfile.REGTYPE)], id="an absolute name"),
        pytest.param([("d", "..", tarfile.SYMTYPE), ("d/a", b"x", tarfile.REGTYPE)], id="a file below a link"),
        pytest.param([A, A], id="a file twice"),
        pytest.param([A, ("a", "b", tarfile.SYMTYPE)], id="a link over a file"),
        pytest.param([A, ("a/b", b"x", tarfile.REGTYPE)], id="a file below a file"),
        pytest.param([("a", b"", tarfile.CHRTYPE)], id="a device"),
        pytest.param([("a", b"", tarfile.FIFOTYPE)], id="a pipe"),
        pytest.param([("h", "../../etc/passwd", tarfile.LNKTYPE)], id="a hard link to nothing in it"),
    ],
)
def test_an_archive_that_would_write_elsewhere_is_not_extracted(tmp_path: pathlib.Path, members: list[t.Any]) -> None:
    (tmp_path / "any").write_bytes(archive_of(*members))
    (tmp_path / "out").mkdir()
    with pytest.raises(Untrusted):
        _archive.extract(str(tmp_path / "any"), str(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["any", "out"]
