# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The seccomp filter on every way into an x86_64 kernel: 64-bit, x32, and the 32-bit interrupt."""

from __future__ import annotations

import typing as t

import pytest

if t.TYPE_CHECKING:
    from testinfra.host import Host

# Each line of output: a name and what the kernel answers; -1 is EPERM. 38 is AF_ALG.
SOURCE = r"""
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <errno.h>
static long interrupt(long n, long a, long b, long c) {
    long r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(n), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
    return r;
}
static long call(long n, long a, long b, long c) {
    return syscall(n, a, b, c) < 0 ? -(long)errno : 0;
}
int main(void) {
    unsigned *words = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    words[0] = 38, words[1] = 5, words[2] = 0;
    printf("socket %ld\n", call(41, 38, 5, 0));
    printf("socket-x32 %ld\n", call(0x40000000 | 41, 38, 5, 0));
    printf("socket-32 %ld\n", interrupt(359, 38, 5, 0));
    printf("socketcall-32 %ld\n", interrupt(102, 1, (long)words, 0));
    printf("keyctl-32 %ld\n", interrupt(288, 0, -3, 0));
    printf("ioctl-32 %ld\n", interrupt(54, 0, 0x5412, (long)words));
    printf("perf-32 %ld\n", interrupt(336, -1, -1, -1));
    printf("perf %ld\n", call(298, -1, -1, -1));
    return 0;
}
"""
RUN = "gcc -o ways ways.c && ./ways"


def answers(said: str) -> dict[str, int]:
    """Return what the kernel answered, by name."""
    return {name: int(number) for name, number in (line.split() for line in said.split("\n") if line)}


@pytest.fixture(scope="module")
def x86(host: Host) -> None:
    machine = host.check_output("uname -m")
    if machine != "x86_64":
        pytest.skip(f"the ways into a kernel are those of x86_64; this host is a {machine}")


@pytest.mark.usefixtures("x86")
def test_the_filter_stands_at_every_way_into_the_kernel(host: Host) -> None:
    quoted = host.backend.quote("%s", f"cat > ways.c <<'E'\n{SOURCE}E\n{RUN} </dev/null")
    found = answers(host.check_output(f"slotctl run coder -- -c {quoted}"))
    assert found == dict.fromkeys(found, -1) and len(found) == 8


@pytest.mark.usefixtures("x86")
def test_without_the_filter_the_kernel_answers_each_of_them_otherwise(host: Host) -> None:
    script = f"cd $(mktemp -d --tmpdir=/var/tmp) && cat > ways.c <<'E'\n{SOURCE}E\n{RUN} </dev/null"
    found = answers(host.check_output(f"bash -c {host.backend.quote('%s', script)}"))
    assert len(found) == 8 and -1 not in {found[name] for name in found if name != "keyctl-32"}
