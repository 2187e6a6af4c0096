# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of the module sandbox_health: the checks are its own, and so is what they compare with.

What stands on the host is what is checked: neither its slotctl nor its manifest is asked whether it is well.
"""

from __future__ import annotations

import typing as t

from ..filter.without_secrets import without_secrets
from ..plugin_utils import image
from ..plugin_utils.sending import Sending


class ActionModule(Sending):
    """Runs the module with the controller's own copy of the release."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if isinstance(arguments.get("declared"), list):
            # nothing that is compared needs a secret, so none goes to the host
            arguments["declared"] = without_secrets(arguments["declared"])
        try:
            with image.mending(None):
                own = image.collect()
                with image.packed(own) as path:
                    arguments |= {"archive": self.send(path, "health.tar.gz"), "archive_source": own.digest}
            arguments["source"] = arguments.get("source") or own.digest
            return self.module(arguments, task_vars)
        finally:
            self.forget()
