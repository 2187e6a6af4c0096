# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The seccomp filter: which requests it stops, on which architectures (that the kernel obeys it is shown on hosts)."""

from __future__ import annotations

import errno
import types
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _seccomp


class Filter:
    """Records what libseccomp would have been told."""

    def __init__(self, default: str) -> None:
        self.default = default
        self.architectures: list[str] = []
        self.rules: list[tuple[t.Any, ...]] = []

    def add_arch(self, name: str) -> None:
        self.architectures.append(name)

    def add_rule(self, *rule: t.Any) -> None:
        self.rules.append(rule)

    def export_bpf(self, out: t.IO[bytes]) -> None:
        out.write(b"12345678")
        made.append(self)


made: list[Filter] = []


def library() -> types.SimpleNamespace:
    """Return a stand-in for the module seccomp."""
    return types.SimpleNamespace(
        SyscallFilter=Filter,
        ALLOW="allow",
        MASKED_EQ="masked",
        EQ="equal",
        GT="greater",
        ERRNO=lambda number: ("errno", number),
        Arg=lambda *words: words,
        Arch=types.SimpleNamespace(X86="x86", X32="x32", ARM="arm"),
    )


@pytest.mark.parametrize(
    ("machine", "others"),
    [("x86_64", ["x86", "x32"]), ("aarch64", ["arm"]), ("riscv64", [])],
    ids=str,
)
def test_what_no_namespace_divides_is_stopped_on_every_way_into_the_kernel(machine: str, others: list[str]) -> None:
    assert _seccomp.program(library(), machine) == b"12345678"
    assert made[-1].default == "allow" and made[-1].architectures == others
    stopped = ("errno", errno.EPERM)
    assert made[-1].rules[:11] == [
        (stopped, "ioctl", (1, "masked", 0xFFFFFFFF, 0x5412)),
        (stopped, "ioctl", (1, "masked", 0xFFFFFFFF, 0x541C)),
        (stopped, "add_key"),
        (stopped, "keyctl"),
        (stopped, "request_key"),
        (stopped, "bpf"),
        (stopped, "io_uring_enter"),
        (stopped, "io_uring_register"),
        (stopped, "io_uring_setup"),
        (stopped, "perf_event_open"),
        (stopped, "userfaultfd"),
    ]
    kinds = {rule[2] for rule in made[-1].rules[11:]}
    assert {kind for _arg, how, kind in kinds if how == "equal"} | {1, 2, 10, 16} == set(range(17))
    assert (0, "greater", 16) in kinds
