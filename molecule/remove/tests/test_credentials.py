# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""AN-03: credentials reach systemd as they were declared, and are seen nowhere else."""

from __future__ import annotations

import base64
import os
import pathlib
import string
import subprocess
import typing as t

if t.TYPE_CHECKING:
    from conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

# Every character that a credential may have, in an order that tries systemd's quoting.
AWKWARD = "".join(chr(code) for code in range(0x21, 0x7F)) + "\\\\'\\\"$HOME`id`\\n%n#;"
FIRST, SECOND = "sk-first-Kx7Qm2vLw9", "sk-other-Tb4Zp8sRd1-and-longer"
DIRECTORY = "/etc/confined-slots/credentials/mover"


def slot(value: str | None, provider: str = "shell") -> dict[str, t.Any]:
    return {"name": "mover", "provider": provider, "credential": value and {"name": "API_KEY", "value": value}}


def test_systemd_reads_every_character_as_it_was_declared(operator: Operator) -> None:
    assert set(string.printable) - set(AWKWARD) == set(string.whitespace)
    operator.module("credentials", slots=[slot(AWKWARD)])
    read = operator.do(
        f"systemd-run --quiet --wait --pipe -p EnvironmentFile={DIRECTORY}/shell.env"
        ' python3 -c \'import os; print(os.environ["API_KEY"], end="")\''
    )
    assert read == AWKWARD


def test_only_root_gets_at_a_credential(operator: Operator) -> None:
    operator.module("credentials", slots=[slot(FIRST)])
    assert operator.do(f"stat -c '%U:%G %a' {DIRECTORY} {DIRECTORY}/shell.env").splitlines() == [
        "root:root 700",
        "root:root 600",
    ]


def test_a_changed_provider_or_a_withdrawn_credential_leaves_no_file(operator: Operator) -> None:
    operator.module("credentials", slots=[slot(FIRST)])
    operator.module("credentials", slots=[slot(FIRST, "other")])
    assert operator.do(f"ls -A {DIRECTORY}") == "other.env"
    operator.module("credentials", slots=[slot(None)])
    assert not operator.says(f"test -e {DIRECTORY}")


EVERYTHING = """
- hosts: all
  gather_facts: false
  roles:
    - confined.slots.accounts
    - confined.slots.policy
  tasks:
    - name: Register the result
      confined.slots.credentials:
        slots: "{{ slots | confined.slots.without_secrets(keep='credential') }}"
      register: kept
    - name: Show all that came of it
      ansible.builtin.debug:
        var: kept
    - name: Fail with it
      confined.slots.credentials:
        slots: "{{ (slots + slots) | confined.slots.without_secrets(keep='credential') }}"
      register: refused
      failed_when: "'names must differ' not in refused.msg"
"""


def test_an_03_no_value_appears_in_any_output_or_log(operator: Operator, tmp_path: pathlib.Path) -> None:
    playbook, log = tmp_path / "everything.yml", tmp_path / "ansible.log"
    playbook.write_text(EVERYTHING, encoding="utf-8")
    said = ""
    for value in (FIRST, SECOND, None):
        command = operator.command(str(playbook), "-vvv", "--diff", slots=operator.slots(slot(value)))
        environment = {**os.environ, "ANSIBLE_LOG_PATH": str(log)}
        played = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        said += played.stdout + played.stderr
        assert played.returncode == 0, said
    said += log.read_text(encoding="utf-8")
    said += operator.do("journalctl --sync; journalctl --no-pager -o cat | tail -n 5000")
    said += operator.do("grep -rsh -- sk- /var/log /root/.ansible || true")
    for value in (FIRST, SECOND):
        for form in (value, base64.b64encode(value.encode()).decode().rstrip("="), value[:12]):
            assert form not in said
    assert "present 0:0 0600" in said, "the diff does show that there is a file"
