# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The seccomp filter of every session: what namespaces do not divide.

Nothing is typed into a terminal (TIOCSTI, TIOCLINUX); keys are found by their number in every namespace; sockets of
other kinds than those of KINDS do not ask the network namespace (AF_VSOCK reaches the hypervisor). DOORS are parts of
the kernel that no coding CLI needs and through which many a way out of a sandbox has led.

Run as a script (`python3 -I _seccomp.py`), it writes the filter in the kernel's form to standard output. libseccomp
makes it, through the distribution's python3-seccomp.
"""

from __future__ import annotations

import errno
import platform
import sys
import tempfile
import typing as t

TIOCSTI = 0x5412
TIOCLINUX = 0x541C

KEYRINGS = ("add_key", "keyctl", "request_key")
DOORS = ("bpf", "io_uring_enter", "io_uring_register", "io_uring_setup", "perf_event_open", "userfaultfd")

# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
KINDS = frozenset({1, 2, 10, 16})

# The kernel compares only the low 32 bits of ioctl's request: so does the filter (CVE-2019-10063).
REQUEST_MASK = 0xFFFFFFFF

# Other ways into the same kernel; unlisted architectures are killed by libseccomp's default for them.
OTHER_ARCHITECTURES = {"x86_64": ("X86", "X32"), "aarch64": ("ARM",)}


def program(seccomp: t.Any, machine: str) -> bytes:
    """Return the filter for a machine (as uname -m says it), made by the given module `seccomp`."""
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in OTHER_ARCHITECTURES.get(machine, ()):
        rules.add_arch(getattr(seccomp.Arch, name))
    for request in (TIOCSTI, TIOCLINUX):
        rules.add_rule(seccomp.ERRNO(errno.EPERM), "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, REQUEST_MASK, request))
    for name in (*KEYRINGS, *DOORS):
        rules.add_rule(seccomp.ERRNO(errno.EPERM), name)
    for kind in sorted(set(range(max(KINDS))) - KINDS):
        rules.add_rule(seccomp.ERRNO(errno.EPERM), "socket", seccomp.Arg(0, seccomp.EQ, kind))
    rules.add_rule(seccomp.ERRNO(errno.EPERM), "socket", seccomp.Arg(0, seccomp.GT, max(KINDS)))
    with tempfile.TemporaryFile() as out:
        rules.export_bpf(out)
        out.seek(0)
        return out.read()


def main() -> None:
    """Write the filter to standard output."""
    import seccomp  # type: ignore[import-not-found, unused-ignore]

    sys.stdout.buffer.write(program(seccomp, platform.machine()))


if __name__ == "__main__":
    main()
