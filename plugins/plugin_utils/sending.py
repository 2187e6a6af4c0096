# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the action plugins share: their module is run, and once more with the files that the host lacks."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase


class Sending(ActionBase):  # type: ignore[misc]
    """An action that sends files for its module, which has the same name."""

    TRANSFERS_FILES = True
    _supports_check_mode = True

    def module(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        """Return what the module says."""
        name = self._task.resolved_action or self._task.action
        return t.cast(
            dict[str, t.Any],
            self._execute_module(module_name=name, module_args=arguments, task_vars=task_vars, wrap_async=False),
        )

    def send(self, path: str, name: str) -> str:
        """Send a file and return where it stands on the host until the action ends."""
        if not self._connection._shell.tmpdir:
            self._make_tmp_path()
        remote = self._connection._shell.join_path(self._connection._shell.tmpdir, name)
        self._transfer_file(path, remote)
        self._fixup_perms2((self._connection._shell.tmpdir, remote))
        return t.cast(str, remote)

    def forget(self) -> None:
        """Remove what was sent."""
        self._remove_tmp_path(self._connection._shell.tmpdir)
