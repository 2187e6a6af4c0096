# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of the module release: tells the host what the release is made of, sends it only if need be."""

from __future__ import annotations

import typing as t

from ..plugin_utils import image
from ..plugin_utils.sending import Sending


class ActionModule(Sending):
    """Runs the module once, and once more with the archive if the host lacks it."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("state", "present") != "present":
            return self.module(arguments, task_vars)
        try:
            with image.mending(arguments.get("image")):
                own = image.collect(arguments.get("image"), arguments.get("version"))
                arguments |= {"version": own.version, "source": own.digest}
                result = self.module(arguments, task_vars)
                if result.get("needs_archive") and not result.get("failed"):
                    with image.packed(own) as path:
                        arguments["archive"] = self.send(path, "release.tar.gz")
                    result = self.module(arguments, task_vars)
        finally:
            self.forget()
        return result
