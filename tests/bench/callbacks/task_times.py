# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible callback: one line of JSON, [action, seconds, changed], for each task that ran. A loop is one task."""

from __future__ import annotations

import json
import os
import pathlib
import time
import typing as t

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: task_times
type: notification
short_description: writes how long each task took
description: Writes to the file named by CONFINED_SLOTS_BENCH_TASKS.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Takes a task's time from its start on the controller to its result."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "task_times"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.file = pathlib.Path(os.environ["CONFINED_SLOTS_BENCH_TASKS"])
        self.start = 0.0

    def v2_playbook_on_task_start(self, task: t.Any, is_conditional: bool) -> None:
        """Start the clock."""
        self.start = time.perf_counter()

    def v2_runner_on_ok(self, result: t.Any) -> None:
        """Write the line."""
        seconds = time.perf_counter() - self.start
        action = result.task.resolved_action or result.task.action
        line = json.dumps([action, seconds, bool(result.result.get("changed"))])
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
