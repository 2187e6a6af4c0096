# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a session of the strict modes sees: an empty root, and in it only what is listed here."""

from __future__ import annotations

import typing as t

from . import _layout, _network
from ._capabilities import Capability
from ._declarations import Invalid, Slot, size_in_bytes
from ._host import Account, Host, Provider
from ._mounts import Mount, check_source

SHELL = "/bin/bash"

SYSTEM_FILES = (
    ("/etc/alternatives", "commands that the distribution links through alternatives"),
    ("/etc/bash.bashrc", "the distribution's set-up of interactive shells"),
    ("/etc/ca-certificates", "certificate authorities, for TLS"),
    ("/etc/debian_version", "programs that ask for the distribution's version"),
    ("/etc/gai.conf", "order of addresses"),
    ("/etc/inputrc", "line editing"),
    ("/etc/ld.so.cache", "finding shared libraries"),
    ("/etc/ld.so.conf", "finding shared libraries"),
    ("/etc/ld.so.conf.d", "finding shared libraries"),
    ("/etc/localtime", "the host's time zone"),
    ("/etc/os-release", "programs that ask for the distribution"),
    ("/etc/profile", "the distribution's set-up of login shells"),
    ("/etc/profile.d", "the distribution's set-up of login shells"),
    ("/etc/protocols", "names of protocols"),
    ("/etc/services", "names of ports"),
    ("/etc/ssl/certs", "certificate authorities, for TLS"),
    ("/etc/ssl/openssl.cnf", "the distribution's TLS defaults"),
    ("/etc/terminfo", "terminals"),
    ("/etc/timezone", "the host's time zone"),
)
RESOLVER = ("/etc/resolv.conf", "looking up names")
PRIVATE_RESOLVER = f"nameserver {_network.RESOLVER}\n"


def mounts(
    slot: Slot, account: Account, provider: Provider, host: Host, granted: t.Sequence[Capability]
) -> t.Iterator[Mount]:
    """Yield the mounts of isolated and of verified mode, in the order in which they are made."""
    yield from _system(slot, host)
    yield from devices(slot)
    yield from _names(slot, account)
    for path, reason in provider.trees:
        yield Mount("bind", path, reason, path, "ro")
    for file in provider.profile.managed:
        yield Mount("data", file.target, file.reason, content=file.content)
    yield from _home(slot, provider, granted)
    yield from session(slot)
    yield from extra(slot, host, granted)
    yield Mount("seal", "/dev", "nothing can be added to it")
    yield Mount("seal", "/", "nothing can be added to the empty root")


def devices(slot: Slot) -> t.Iterator[Mount]:
    """Yield what every mode makes anew: processes, devices, scratch."""
    yield Mount("proc", "/proc", "its own processes")
    yield Mount("dev", "/dev", "null, zero, random, its terminal")
    for path, reason in (
        ("/dev/shm", "shared memory of its own"),
        ("/tmp", "scratch of its own"),
        ("/var/tmp", "scratch of its own"),
    ):
        yield Mount("tmpfs", path, reason, mode="1777", size=size_in_bytes(slot.resources.tmp_size))


def session(slot: Slot) -> t.Iterator[Mount]:
    """Yield what is the session's own: its workspace, its run directory, the way to its Docker daemon."""
    rule = slot.restrictions.get(slot.workspaces[0]) if len(slot.workspaces) == 1 else None
    workspaces = f"{_layout.state(slot.name)}/workspaces/*"
    mode = "ro" if rule and rule.read_only else "rw"
    yield Mount("workspace", workspaces, "the workspace chosen for the session, no other", mode=mode)
    run = f"{_layout.RUN}/{slot.name}/*"
    size = size_in_bytes(slot.resources.tmp_size)
    yield Mount("run", run, "the session's own run directory, in memory of its own: /run is the host's", size=size)
    if slot.docker:
        # the directory, as the socket in it is another one after a restart of the daemon; connecting is no writing
        directory = _layout.docker_socket_directory(slot.name)
        yield Mount("bind", directory, "the socket of its own Docker daemon, and nothing else", directory, "ro")


def extra(slot: Slot, host: Host, granted: t.Sequence[Capability]) -> t.Iterator[Mount]:
    """Yield the operator's binds and those of the capabilities; Invalid if one would open the host."""
    binds = [(bind, f"slot '{slot.name}': binds[{index}].source") for index, bind in enumerate(slot.binds)]
    for capability in granted:
        binds += [(bind, f"slot '{slot.name}': capability '{capability.key}': source") for bind in capability.binds]
    for bind, where in binds:
        source = host.sources[bind.source]
        check_source(source, where)
        if bind.mode == "rw" and source.kind != "directory":
            raise Invalid(
                f"{where} is the file {bind.source}, writable; a file that is bound cannot be replaced by rename "
                "[bind its directory]"
            )
        yield Mount("bind", bind.target, bind.reason, bind.source, bind.mode)


def resolver_missing(slot: Slot, host: Host) -> Invalid:
    """Return the error of a host whose resolver leads nowhere."""
    return Invalid(
        f"slot '{slot.name}': network is {slot.network}, but {host.resolver} does not exist on this host "
        "[mend its resolver, or choose network: none]"
    )


def _system(slot: Slot, host: Host) -> t.Iterator[Mount]:
    yield Mount("bind", "/usr", "programs and libraries of the distribution", "/usr", "ro")
    for path, link in host.roots:
        if link:
            yield Mount("symlink", path, "where this host links it: part of /usr", link)
        else:
            yield Mount("bind", path, "programs and libraries of the distribution", path, "ro")
    files = (*SYSTEM_FILES, RESOLVER) if slot.network == "host" else SYSTEM_FILES
    for path, reason in files:
        if path in host.present:
            yield Mount("bind", path, reason, path, "ro")
        elif path == RESOLVER[0]:
            raise resolver_missing(slot, host)
    yield Mount("symlink", "/var/run", "programs that look there", "/run")


def _names(slot: Slot, account: Account) -> t.Iterator[Mount]:
    name, home = _layout.account(slot.name), _layout.private_home(slot.name, slot.provider)
    people = (
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
        f"{name}:x:{account.uid}:{account.gid}::{home}:{SHELL}\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    groups = f"root:x:0:\n{name}:x:{account.gid}:\nnogroup:x:65534:\n"
    hosts = f"127.0.0.1 localhost {slot.name}\n::1 localhost ip6-localhost ip6-loopback\n"
    if slot.network == "private":
        yield Mount("data", RESOLVER[0], RESOLVER[1], content=PRIVATE_RESOLVER)
    names = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"
    yield Mount("data", "/etc/passwd", "the accounts it may know: root, itself, nobody", content=people)
    yield Mount("data", "/etc/group", "the groups it may know", content=groups)
    yield Mount("data", "/etc/hosts", "its own name and localhost", content=hosts)
    yield Mount(
        "data", "/etc/nsswitch.conf", "accounts from files, never from the host's directory service", content=names
    )


def _home(slot: Slot, provider: Provider, granted: t.Sequence[Capability]) -> t.Iterator[Mount]:
    home = _layout.private_home(slot.name, slot.provider)
    if slot.mode == "isolated":
        yield Mount("bind", home, "its private HOME: settings, login and transcripts of its CLI", home, "rw")
        return
    size = size_in_bytes(slot.resources.tmp_size)
    yield Mount("home", home, "a HOME in memory: what is not approved to stay is gone with the session", size=size)
    for path, capability in states(granted).items():
        source = _layout.approved_state(slot.name, provider.name, path)
        yield Mount("bind", f"{home}/{path}", capability.words, source, "rw")


def states(granted: t.Sequence[Capability]) -> dict[str, Capability]:
    """Return the directories below HOME that capabilities let outlive a session, with the first that does."""
    found: dict[str, Capability] = {}
    for capability in granted:
        for path in capability.state:
            found.setdefault(path, capability)
    return found
