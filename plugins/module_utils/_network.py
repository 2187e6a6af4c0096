# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A network of the session's own, with a way to the internet and none to this host: pasta, in the sandbox's namespace.

bwrap makes the namespace and waits before it starts the CLI; a child of the launcher lets pasta join the namespace,
makes this host's addresses unreachable in it, and only then lets bwrap go on. Runs as the slot's account, on the
launcher's path for slots with network private.
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
NSENTER, IP = "/usr/bin/nsenter", "/usr/bin/ip"
IPV4, IPV6 = "/proc/self/net/fib_trie", "/proc/self/net/if_inet6"
RESOLVER = "169.254.1.1"  # link-local, answered by pasta alone: it asks the host's first resolver
CURE = "install the packages passt and iproute2, and let everybody open /dev/net/tun (mode 0666), as udev does"
SECONDS = 20  # pasta of Debian 12 was seen to hang on a busy host
_NS_GET_USERNS = 0xB701


def check() -> None:
    """Refuse where there cannot be a private network; root looks with the eyes of others."""
    try:
        for program in (PASTA, NSENTER, IP):
            if not os.stat(program).st_mode & 0o001:
                raise PermissionError(13, "it cannot be executed", program)
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
    """Return pasta's command line: of this host's loopback nothing is reached but the forwards."""
    ports = ",".join(forwards) or "none"
    return [
        *(PASTA, "--quiet", "--config-net", "--no-map-gw", "--dns-forward", RESOLVER),
        *("--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", ports, "--udp-ns", "none"),
        *("--userns", user_namespace, "--netns", namespace),
    ]


def unreachable(ipv4: bytes, ipv6: bytes) -> list[str]:
    """Return the addresses of this host outside of its loopback, with /32 or /128.

    ipv4 and ipv6 are the kernel's net/fib_trie and net/if_inet6. pasta is on the host's network: what listens on any of
    these would take its connections for the host's own.
    """
    found, address = {}, ""
    for line in ipv4.decode("ascii", "replace").split("\n"):
        words = line.split()
        if words[:1] == ["|--"]:
            address = words[1]
        elif words == ["/32", "host", "LOCAL"] and not address.startswith("127."):
            found[f"{address}/32"] = True
    for line in ipv6.decode("ascii", "replace").split("\n"):
        words = line.split()
        if len(words) == 6 and words[3] not in ("10", "20"):  # the loopback's, and those of one link
            found[f"{':'.join(words[0][start : start + 4] for start in range(0, 32, 4))}/128"] = True
    return list(found)


def _connect(told: int, release: int, forwards: list[str]) -> t.NoReturn:
    """Connect the sandbox that bwrap tells of, then let it start; if that fails, end it before it starts."""
    first, failure = 0, "no word of the sandbox"
    try:
        first = _first_process(told)
        failure = _made(first, forwards)
    finally:
        if failure:
            os.write(2, f"slot-launcher: {Refusal('network-unavailable', failure, CURE)}\n".encode())
            if first:
                os.kill(first, 9)
        else:
            os.write(release, b"1")
        os._exit(1 if failure else 0)


def _made(first: int, forwards: list[str]) -> str:
    """Make the network of the sandbox with that first process; return what went wrong, "" if nothing did."""
    import fcntl

    network = f"/proc/{first}/ns/net"
    # bwrap has by now gone on to a second user namespace, which has no power over the first one's network
    owner = fcntl.ioctl(os.open(network, os.O_RDONLY | os.O_CLOEXEC), _NS_GET_USERNS)
    user = f"/proc/{os.getpid()}/fd/{owner}"
    routes = "".join(f"route replace unreachable {each}\n" for each in unreachable(_read(IPV4), _read(IPV6)))
    enter = [NSENTER, f"--user={user}", f"--net={network}", "--preserve-credentials", "--", IP, "-batch", "-"]
    return _without_loopback(first) or _run(command(user, network, forwards)) or _run(enter, routes.encode())


def _without_loopback(first: int) -> str:
    """Wait until bwrap has set up the sandbox's loopback; return that it has not, "" if it has.

    It adds the address itself, and fails over one that is there: the kernel's own, once pasta has switched the link on.
    """
    import time

    deadline = time.monotonic() + SECONDS
    while b"127.0.0.1" not in _read(f"/proc/{first}/net/fib_trie"):
        if time.monotonic() > deadline:
            return f"bwrap has not set up the loopback within {SECONDS} s"
        time.sleep(0.002)
    return ""


def _run(words: list[str], given: bytes = b"") -> str:
    """Run a program that is given some lines to read; return how it failed, "" if it did not within SECONDS."""
    import select

    null, (hearing, saying) = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    lines = os.memfd_create("confined-slots", os.MFD_CLOEXEC)
    os.write(lines, given)
    os.lseek(lines, 0, 0)
    actions = [(os.POSIX_SPAWN_DUP2, file, number) for number, file in enumerate((lines, null, saying))]
    # Python ignores SIGPIPE, and Debian 12's pasta takes an ignored one for a failure
    child = os.posix_spawn(words[0], words, {}, file_actions=actions, setsigdef=[_signal.SIGPIPE])
    if not select.select([os.pidfd_open(child)], [], [], SECONDS)[0]:
        os.kill(child, 9)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not code:
        return ""
    try:
        text = os.read(hearing, 400).decode("utf-8", "replace").strip()
    except BlockingIOError:
        text = ""
    return f"{words[0].rpartition('/')[2]} ended with {code}: {text}"


def _read(path: str) -> bytes:
    """Return what the kernel says in a file; b"" of version 6 where it has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if path != IPV6:
            raise
        return b""
    data = b""
    while piece := os.read(descriptor, 1 << 16):
        data += piece
    os.close(descriptor)
    return data


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
