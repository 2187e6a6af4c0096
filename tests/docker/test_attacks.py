# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""ES-02: the daemon's socket is everything that the daemon has, so the daemon has nothing of the host.

Every attack is made by a session, by way of a container with all that Docker gives. Each row of `reach.py` holds in the
unit as it is; with one line of the unit changed exactly the row fails that the line is for.
"""

from __future__ import annotations

import base64
import collections.abc
import contextlib
import json
import pathlib
import shlex
import typing as t

import pytest
from slot_docker import OTHER, SLOT, Docker
from waiting import soon, until

if t.TYPE_CHECKING:
    from testinfra.host import Host

STATE = "/var/lib/confined-slots/slots"
UNITS = "/etc/systemd/system"
SCRIPT = "/usr/share/docker.io/contrib/dockerd-rootless.sh"
PORT = 18191
DEVICE = "/dev/marker-of-the-host c 10 229"  # that of FUSE, which asks nobody for a capability
# Everything that a container can be given but --privileged, which adds no more than host devices to it.
MOST = (
    "--cap-add=ALL --security-opt=seccomp=unconfined --security-opt=systempaths=unconfined --pid=host --network=host "
    "--uts=host --userns=host"
)
SERVE = f"""
import os, select, socket
os.openpty()
listeners = socket.create_server(("127.0.0.1", {PORT})), socket.socket(socket.AF_UNIX)
listeners[1].bind(b"\\0" + b"{PORT}"); listeners[1].listen()
while True:
    for listener in select.select(listeners, [], [])[0]:
        listener.accept()[0].sendall(b"the host")
"""

# What is changed of the unit: a line of it, and what stands there instead.
MUTATIONS = {
    "accounts": (f"/etc/confined-slots/slots.d/{SLOT}/docker/passwd:/etc/passwd", "/etc/passwd"),
    "homes": ("[Install]", f"BindPaths={STATE}/{SLOT}/homes\n[Install]"),
    "narrower": ("[Install]", f"BindPaths={STATE}/{SLOT}/workspaces/tight\n[Install]"),
    "policy": ("[Install]", "BindReadOnlyPaths=/etc/confined-slots\n[Install]"),
    "slots": ("[Install]", f"BindReadOnlyPaths={STATE}/{OTHER}\n[Install]"),
    "groups": (
        "/sys/fs/cgroup/confined.slice/confined-slots.slice/confined-slots-shipper.slice:/sys/fs/cgroup",
        "/sys/fs/cgroup",
    ),
    "sockets": ("[Install]", "BindReadOnlyPaths=/run/dbus\n[Install]"),
    "shared_memory": ("TemporaryFileSystem=/dev/pts:ro /dev/shm:mode=1777,size=64m", "TemporaryFileSystem=/dev/pts:ro"),
    "terminals": ("TemporaryFileSystem=/dev/pts:ro ", "TemporaryFileSystem="),
    "loopback": ("DISABLE_HOST_LOOPBACK=true", "DISABLE_HOST_LOOPBACK=false"),
    "devices": ("DevicePolicy=closed\nDeviceAllow=/dev/net/tun rw", "DevicePolicy=auto"),
    "writes": ("TemporaryFileSystem=/:ro", "TemporaryFileSystem=/:mode=1777"),
    "mounts": ("[Install]", "BindReadOnlyPaths=/root\n[Install]"),
    "signals": ("_FLAGS=--pidns", "_FLAGS="),
    "processes": ("ProtectProc=invisible\nMountAPIVFS=no", "MountAPIVFS=yes\nBindLogSockets=no"),
}


def reached(docker: Docker, serve: str = "") -> list[str]:
    """Return what a container of the slot reaches of the host, by reach.py; serve goes before the host's services."""
    host, marker = docker.host, f"{STATE}/{SLOT}/workspaces/main/was-hit"
    wait = "trap 'echo hit > was-hit' USR1; trap '> was-asked' USR2; > is-there; while :; do sleep 0.2; done"
    host.run(f"cd {STATE}/{SLOT}/workspaces/main; rm -f was-hit was-asked is-there {DEVICE.split()[0]}")
    host.check_output(f"touch /dev/shm/marker-of-the-host; mknod -m 666 {DEVICE}")
    listening = host.check_output(f"{serve} python3 -c {shlex.quote(SERVE)} >/dev/null 2>&1 & echo $!")
    soon(host, f"{serve} ss -Hlx | grep -q @{PORT}")
    host.run(f"setsid -f slotctl run {SLOT} -- -c {shlex.quote(wait)} </dev/null >/dev/null 2>&1")
    try:
        soon(host, f"[ -e {STATE}/{SLOT}/workspaces/main/is-there ]")
        pid = host.check_output(f"pgrep --newest -u slot-{SLOT} -f '^[^ ]*bash .*was-hit'")
        program = base64.b64encode((pathlib.Path(__file__).parent / "reach.py").read_bytes()).decode()
        run = f"docker run --rm {MOST} -v /:/host box chroot /host /usr/bin/python3 $PWD/reach.py {SLOT} {pid} {PORT}"
        found: list[str] = json.loads(docker.says(f"echo {program} | base64 -d > reach.py; {run}"))
        # bash answers its signals in the order of their numbers, so USR1 comes before this one, or never
        host.check_output(f"kill -USR2 {pid}")
        soon(host, f"[ -e {STATE}/{SLOT}/workspaces/main/was-asked ]")
        return found + ["signals"] * host.file(marker).exists
    finally:
        host.run(f"slotctl stop {SLOT}; kill {listening}; {until(f'[ ! -e /proc/{listening} ]')}")
        host.run(f"rm -f /dev/shm/marker-of-the-host {DEVICE.split()[0]}")


@contextlib.contextmanager
def changed(docker: Docker, line: str, by: str, *, last: bool = True) -> collections.abc.Iterator[None]:
    """Have the slot's daemon run under a unit in which one line is another; not the last: it is started anew anyway."""
    own, conf = f"{UNITS}/{docker.unit}", f"{UNITS}/{docker.unit}.d/slot.conf"
    there = {conf: docker.host.check_output(f"cat {conf}")}
    texts = {own: docker.host.check_output(f"cat {UNITS}/confined-slots-docker@.service"), **there}
    assert sum(line in text for text in texts.values()) == 1
    try:
        for path, text in texts.items():
            put(docker, path, text.replace(line, by))
        docker.restart()
        yield
    finally:
        put(docker, conf, there[conf])
        docker.host.run(f"rm -f {own}")
        if last:
            docker.restart()


def put(docker: Docker, path: str, text: str) -> None:
    content = base64.b64encode(f"{text}\n".encode()).decode()
    docker.host.check_output(f"echo {content} | base64 -d > {path}")


def test_es_02_a_container_with_everything_reaches_nothing_of_the_host(docker: Docker) -> None:
    assert reached(docker) == []


def test_es_02_without_a_network_of_the_daemons_own_the_two_rows_fail_that_it_is_for(docker: Docker) -> None:
    """Not by a line of the unit, without a network dockerd does not start: the services stand within the daemon's."""
    daemon = docker.host.check_output(f"pgrep --newest -u slot-{SLOT} -x dockerd")
    assert reached(docker, f"nsenter --net=/proc/{daemon}/ns/net") == ["loopback", "abstract"]


def test_a_privileged_container_reaches_nothing_more(docker: Docker) -> None:
    probe = docker.session("docker run --rm --privileged box true")
    if probe.rc != 0 and "sysfs" in probe.stderr:
        pytest.skip("a sysfs that can be mounted is missing: this host is a container itself")
    assert probe.rc == 0, probe.stderr
    seen = docker.says("docker run --rm --privileged -v /:/host box ls /host /host/etc /host/run")
    assert not {"home", "root", "boot", "shadow", "confined-slots", "dbus"} & set(seen.split())


@pytest.mark.parametrize(
    "options",
    [
        "--pid=host",
        "--network=host",
        "--ipc=host",
        "--uts=host",
        "--userns=host",
        "--device=/dev/net/tun",
        "--cap-add=SYS_ADMIN",
    ],
)
def test_what_a_container_can_be_given_runs_and_is_the_daemons_not_the_hosts(docker: Docker, options: str) -> None:
    ran = docker.session(f"docker run --rm {options} box sh -c 'cat /proc/*/comm; hostname; cat /proc/net/unix'")
    if "mqueue" in ran.stderr:
        pytest.skip("a runc is missing that gives a container the daemon's own queues; it is refused here")
    assert ran.rc == 0, ran.stderr
    assert not {"systemd", "sshd", "slotctl"} & set(ran.stdout.split())


@pytest.mark.parametrize("device", ["/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/mem"])
def test_devices_of_the_host_cannot_be_given(docker: Docker, device: str) -> None:
    read = docker.session(f"echo asked; docker run --rm --device={device} box head -c 1 {device}")
    assert read.rc != 0
    assert read.stdout == "asked\n"


@pytest.mark.parametrize("propagation", ["shared", "slave", "rslave", "private"])
def test_what_a_container_mounts_stays_out_of_the_host(docker: Docker, propagation: str) -> None:
    mount = "mkdir -p /x/m && mount -t tmpfs none /x/m && touch /x/m/marker && echo mounted"
    options = f"--cap-add=ALL --security-opt=seccomp=unconfined -v $PWD:/x:{propagation}"
    tried = docker.session(f"echo asked; docker run --rm {options} box sh -c {shlex.quote(mount)}")
    assert "asked" in tried.stdout
    assert "mounted" in tried.stdout or tried.rc != 0
    assert not docker.host.file(f"{STATE}/{SLOT}/workspaces/main/m/marker").exists
    assert f"{STATE}/{SLOT}/workspaces/main/m" not in docker.host.check_output("cat /proc/self/mountinfo")


def test_links_in_containers_build_contexts_and_the_data_lead_nowhere(docker: Docker) -> None:
    script = """
    rm -rf context copied; mkdir context; ln -s /etc/shadow context/link; ln -s /etc/confined-slots context/policy
    printf 'FROM box\\nCOPY . /context\\nRUN cat /context/link || echo no-link\\n' > context/Dockerfile
    DOCKER_BUILDKIT=0 docker build -q -t linked context >/dev/null || exit 1
    docker run --rm linked sh -c 'cat /context/link || echo dead; ls /context/policy/ || echo dead'
    docker create --name copying -v /etc:/mnt box true >/dev/null; ln -sfn /etc/shadow out
    docker cp -L copying:/mnt/shadow copied 2>/dev/null || echo no-copy
    docker cp copying:/etc/hostname out 2>/dev/null; docker rm -f copying >/dev/null; rm -f out
    """
    before = docker.host.check_output("sha256sum /etc/shadow")
    said = docker.says(script).split()
    assert said.count("dead") == 2
    assert "no-copy" in said
    assert docker.host.check_output("sha256sum /etc/shadow") == before


@pytest.mark.parametrize("driver", ["journald", "syslog"])
def test_containers_write_nothing_into_the_hosts_log(docker: Docker, driver: str) -> None:
    word = f"from-a-container-by-{driver}"
    docker.session(f"docker run --rm --log-driver={driver} box echo {word}")
    docker.host.run("journalctl --sync")
    entries = docker.host.run(f"journalctl -b -o cat --grep '^{word}$' --no-pager").stdout
    assert word not in entries


def test_the_daemon_cannot_speak_to_the_hosts_pid_1(docker: Docker) -> None:
    shown = docker.host.check_output(f"systemctl show -P NotifyAccess -P Delegate {docker.unit}").split()
    assert shown == ["none", "no"]
    ask = "for p in /run/systemd/notify /run/systemd/private /run/dbus/system_bus_socket; do ls /host$p; done"
    asked = docker.session(f"echo asked; docker run --rm -v /:/host box sh -c {shlex.quote(ask)}")
    assert asked.stdout == "asked\n"


def test_rd_08_no_context_and_no_variable_leads_to_a_rootful_daemon(docker: Docker) -> None:
    host = docker.host
    bind = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('/run/docker.sock'); s.listen()"
    listen = f"{bind}; time.sleep(600)"
    there = host.file("/run/docker.sock").exists
    pid = "" if there else host.check_output(f"python3 -c {shlex.quote(listen)} >/dev/null 2>&1 & echo $!")
    try:
        soon(host, "[ -e /run/docker.sock ]")
        for slot in (SLOT, OTHER, "dry"):
            for way in ("-u DOCKER_HOST", "DOCKER_HOST=unix:///run/docker.sock", "DOCKER_CONTEXT=default DOCKER_HOST="):
                look = f"ls /run/docker.sock /var/run/docker.sock; env {way} docker version"
                tried = Docker(host, slot).session(look)
                assert tried.rc != 0
                assert "Server" not in tried.stdout
                assert "No such file" in tried.stderr
    finally:
        if pid:
            host.run(f"kill {pid}; rm -f /run/docker.sock")


# Last in this file: until its end the daemon runs under what was changed.
@pytest.fixture(scope="module")
def mutable(host: Host) -> collections.abc.Iterator[Docker]:
    """The slot whose daemon runs under one changed unit after the other, and at last under its own again."""
    docker = Docker(host, SLOT).with_image()
    yield docker
    docker.restart()


@pytest.mark.parametrize("row", MUTATIONS)
def test_es_02_with_its_line_of_the_unit_changed_exactly_that_row_fails(mutable: Docker, row: str) -> None:
    docker, (line, by) = mutable, MUTATIONS[row]
    if row == "loopback" and docker.host.run(f"grep -q DISABLE_HOST_LOOPBACK {SCRIPT}").rc != 0:
        pytest.skip("a switch is missing: this Docker's script always keeps containers from the host's loopback")
    with changed(docker, line, by, last=False):
        if row == "signals" and "mount proc" in docker.session("docker run --rm --pid=host box true").stderr:
            pytest.skip("a runc is missing that shares processes without mounting a /proc, which the unit's own denies")
        assert reached(docker) == [row]
