# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A network of the session's own, with a way to the internet and none to this host: pasta, in the sandbox's namespace.

bwrap makes the namespace and waits before it starts the CLI; a child of the launcher lets pasta join the namespace, and
only then lets bwrap go on. Runs as the slot's account, on the launcher's path for slots with network private.
"""

from __future__ import annotations

import _signal
import posix as os

from ._refusals import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

PASTA = "/usr/bin/pasta"
TUN = "/dev/net/tun"
RESOLVER = "169.254.1.1"  # link-local, answered by pasta alone: it asks the host's first resolver
CURE = "install the package passt, and let everybody open /dev/net/tun (mode 0666), as udev does"
_NS_GET_USERNS = 0xB701


def check() -> None:
    """Refuse where there cannot be a private network; root looks with the eyes of others."""
    try:
        if not os.stat(PASTA).st_mode & 0o001:
            raise PermissionError(13, "it cannot be executed", PASTA)
        if os.stat(TUN).st_mode & 0o006 != 0o006:
            raise PermissionError(13, "others cannot open it", TUN)
    except OSError as error:
        raise Refusal("network-unavailable", f"{error.filename}: {error.strerror}", CURE) from None


def options(keep: list[int], forwards: list[str], close_all_but: t.Callable[[set[int]], None]) -> list[str]:
    """Return bwrap's options for a private network, with a child waiting to connect it; forwards are ports of the host.

    The descriptors that bwrap needs are added to keep; close_all_but closes the others in the child.
    """
    check()
    told, telling = os.pipe2(os.O_CLOEXEC)
    waiting, release = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        # neither the child nor pasta has a use for the credential, the session's status or what the sandbox is made of
        close_all_but({told, release})
        _connect(told, release, forwards)
    os.close(told)
    os.close(release)
    for descriptor in (telling, waiting):
        os.set_inheritable(descriptor, True)
        keep.append(descriptor)
    return ["--info-fd", str(telling), "--block-fd", str(waiting)]


def command(user_namespace: str, namespace: str, forwards: list[str]) -> list[str]:
    """Return pasta's command line: no port and no address of this host is reached but the forwards."""
    ports = ",".join(forwards) or "none"
    return [
        *(PASTA, "--quiet", "--config-net", "--no-map-gw", "--dns-forward", RESOLVER),
        *("--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", ports, "--udp-ns", "none"),
        *("--userns", user_namespace, "--netns", namespace),
    ]


def _connect(told: int, release: int, forwards: list[str]) -> t.NoReturn:
    """Connect the sandbox that bwrap tells of, then let it start; if that fails, end it before it starts."""
    import fcntl

    first, code, said = 0, 1, ""
    try:
        first = _first_process(told)
        namespace = os.open(f"/proc/{first}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        # bwrap has by now gone on to a second user namespace, which has no power over the first one's network
        owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
        null, (hearing, saying) = os.open("/dev/null", os.O_RDWR), os.pipe2(os.O_NONBLOCK)
        words = command(f"/proc/{os.getpid()}/fd/{owner}", f"/proc/{first}/ns/net", forwards)
        actions = [(os.POSIX_SPAWN_DUP2, file, number) for number, file in enumerate((null, null, saying))]
        # Python ignores SIGPIPE, and Debian 12's pasta takes an ignored one for a failure
        child = os.posix_spawn(PASTA, words, {}, file_actions=actions, setsigdef=[_signal.SIGPIPE])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = os.read(hearing, 400).decode("utf-8", "replace").strip() if code else ""
    finally:
        if code == 0:
            os.write(release, b"1")
        else:
            refusal = Refusal("network-unavailable", f"pasta ended with {code}: {said}", CURE)
            os.write(2, f"slot-launcher: {refusal}\n".encode())
            if first:
                os.kill(first, 9)
        os._exit(0 if code == 0 else 1)


def _first_process(told: int) -> int:
    """Return the sandbox's first process, out of the JSON that bwrap writes; ValueError if it wrote none."""
    text = b""
    while b"}" not in text:
        more = os.read(told, 4096)
        if not more:
            break
        text += more
    digits = text.partition(b'"child-pid":')[2].lstrip()
    return int(digits[: len(digits) - len(digits.lstrip(b"0123456789"))])
