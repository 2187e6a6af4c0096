# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's own copy of what stands in a release: listed, with its digest, and packed to be sent."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import typing as t

from ansible.errors import AnsibleActionFail

from ..module_utils import _archive, _manifest, _release, _version

PLACE = os.path.normpath(os.path.join(os.path.dirname(__file__), "../../roles/launcher/files/release"))


@dataclasses.dataclass(frozen=True)
class Image:
    """What stands in a release: its files, its manifest, and that one's digest, which is the release's `source`."""

    tree: _archive.Tree = dataclasses.field(repr=False)
    manifest: bytes = dataclasses.field(repr=False)
    version: str

    @property
    def digest(self) -> str:
        """Return the digest by which a host knows the controller's part of its release."""
        return _manifest.sha256(self.manifest)


def collect(place: str | None = None, version: str | None = None) -> Image:
    """Return the image at a place of the controller (the collection's own by default); Untrusted or OSError."""
    version = str(version or _version.VERSION)
    tree = _archive.collect(os.path.expanduser(place or PLACE), image=True)
    return Image(tree, _release.source_manifest(tree.listed, version), version)


@contextlib.contextmanager
def packed(image: Image) -> t.Iterator[str]:
    """Yield the path of the image as an archive; it is gone afterwards."""
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as file:
        _archive.pack(image.tree, image.manifest, t.cast(t.IO[bytes], file))
        file.flush()
        yield file.name


@contextlib.contextmanager
def mending(place: str | None) -> t.Iterator[None]:
    """Turn what is wrong with an image into the action's failure."""
    try:
        yield
    except (_manifest.Untrusted, OSError) as error:
        where = place or PLACE
        raise AnsibleActionFail(f"the release cannot be packed: {error} [mend the collection's {where}]") from error
