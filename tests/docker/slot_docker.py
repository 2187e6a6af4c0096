# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A slot with a Docker daemon, as tests use it; its image is made of the host's busybox, so no registry is asked."""

from __future__ import annotations

import dataclasses
import shlex
import typing as t

from operators import Operator
from waiting import soon

if t.TYPE_CHECKING:
    from testinfra.backend.base import CommandResult
    from testinfra.host import Host

SLOT, OTHER, PLAIN = "shipper", "dock-er", "dry"
IMAGE = """
mkdir -p /tmp/image/bin && cp /bin/busybox /tmp/image/bin/ && cd /tmp/image/bin
for name in $(./busybox --list | grep -vx busybox); do ln -s busybox "$name"; done
tar -C /tmp/image -c . | docker import - box
"""


@dataclasses.dataclass(frozen=True)
class Docker:
    """A slot with a daemon, on one host."""

    host: Host
    slot: str

    @property
    def unit(self) -> str:
        """The daemon's unit."""
        return f"confined-slots-docker@{self.slot}.service"

    def session(self, script: str, *options: str) -> CommandResult:
        """Run a script in a session of the slot."""
        return self.host.run(f"slotctl run {shlex.join([self.slot, *options, '--', '-c', script])}")

    def says(self, script: str, *options: str) -> str:
        """Return what a script in a session prints; AssertionError if it fails."""
        done = self.session(script, *options)
        assert done.rc == 0, done.stdout + done.stderr
        return str(done.stdout)

    def restart(self) -> None:
        """Start the daemon anew and wait until it answers."""
        self.host.check_output(f"systemctl daemon-reload; systemctl reset-failed; systemctl restart {self.unit}")
        self.wait()

    def wait(self) -> None:
        """Wait until the daemon answers, as slotctl sees it."""
        ask = f"slotctl status {self.slot} --json"
        ready = "import json, sys; sys.exit(any(c['refusal'] for c in json.load(sys.stdin)['checks']))"
        soon(self.host, f"{ask} | python3 -c {shlex.quote(ready)}")

    def with_image(self) -> Docker:
        """Give the daemon the test's image, unless it has it."""
        self.wait()
        self.says(f"docker image inspect box >/dev/null 2>&1 || {{ {IMAGE} }}")
        return self


def module(host: Host, name: str, *, check: bool = False, fails: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
    """Run one of the collection's modules and return its result; AssertionError if it fails, or not, against fails."""
    result = Operator.of(host).module(name, check=check, **arguments)
    assert result["failed"] is fails, result
    return result
