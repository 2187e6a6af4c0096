# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of the module release: tells the host what the release is made of, sends it only if need be."""

from __future__ import annotations

import os
import tempfile
import typing as t

from ansible.errors import AnsibleActionFail

from ..module_utils import _archive, _manifest, _release, _version
from ..plugin_utils.sending import Sending

IMAGE = os.path.normpath(os.path.join(os.path.dirname(__file__), "../../roles/launcher/files/release"))


class ActionModule(Sending):
    """Runs the module once, and once more with the archive if the host lacks it."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("state", "present") != "present":
            return self.module(arguments, task_vars)
        image = os.path.expanduser(arguments.get("image") or IMAGE)
        arguments["version"] = str(arguments.get("version") or _version.VERSION)
        try:
            tree = _archive.collect(image, image=True)
            manifest = _release.source_manifest(tree.listed, arguments["version"])
            arguments["source"] = _manifest.sha256(manifest)
            result = self.module(arguments, task_vars)
            if result.get("needs_archive") and not result.get("failed"):
                arguments["archive"] = self._send(tree, manifest)
                result = self.module(arguments, task_vars)
        except (_manifest.Untrusted, OSError) as error:
            raise AnsibleActionFail(f"the release cannot be packed: {error} [mend the collection's {image}]") from error
        finally:
            self.forget()
        return result

    def _send(self, tree: _archive.Tree, manifest: bytes) -> str:
        with tempfile.NamedTemporaryFile(suffix=".tar.gz") as file:
            _archive.pack(tree, manifest, t.cast(t.IO[bytes], file))
            file.flush()
            return self.send(file.name, "release.tar.gz")
