# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's own programs, forked from a process that has imported them: starting them anew is most of their time."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pathlib
import subprocess
import tempfile

MAINS = {"ansible": "ansible.cli.adhoc", "ansible-playbook": "ansible.cli.playbook"}
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *MAINS.values(),
        "ansible.executor.task_queue_manager",
        "ansible.plugins.action.normal",
        "ansible.plugins.callback.default",
        "ansible.plugins.callback.minimal",
        "ansible.plugins.connection.ssh",
        "ansible.plugins.strategy.linear",
    ]
)


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `ansible` or `ansible-playbook` and return how that ended."""
    argv = [program, *words]
    with tempfile.TemporaryDirectory() as directory:
        files = [pathlib.Path(directory, name) for name in ("stdout", "stderr")]
        child = FORKS.Process(target=_perform, args=(argv, *map(str, files)))
        child.start()
        child.join()
        texts = [file.read_text("utf-8") for file in files]
    assert child.exitcode is not None
    return subprocess.CompletedProcess(argv, child.exitcode, *texts)


def _perform(argv: list[str], stdout: str, stderr: str) -> None:
    for descriptor, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    importlib.import_module(MAINS[argv[0]]).main(argv)
