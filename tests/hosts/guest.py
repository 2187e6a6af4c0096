# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the disk of a test guest and boot a guest from it: a virtual machine with a kernel of its own, by QEMU.

    python3 tests/hosts/guest.py image
    python3 tests/hosts/guest.py boot --state build/guest
    python3 tests/hosts/guest.py remove --state build/guest

A container shares its host's kernel; what AppArmor does, and whether a host of slots survives a reboot, only a guest
shows. State directory, SSH and inventory are those of hosts.py; the guest is reached on a port of this loopback.
Nothing is written to the disk that is kept: a run has an overlay, and its keys come by the guest's firmware as
credentials of systemd. Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import pathlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import hosts
from hosts import Run, Trouble, run

SUITE = "trixie"
EMULATED = "Westmere"
NAME = "slot-guest13"
QEMU = "qemu-system-x86_64"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "confined-slots", "guests")
DISK_BYTES = 8 << 30  # of which only what is written takes room

# Software emulation needs these: 68 to 93 s were seen on two cores.
BOOT_SECONDS = 420
PATIENT = "systemd.default_timeout_start_sec=600"
TRIAL_SECONDS = 30
END_SECONDS = 60

PACKAGES = f"{hosts.PACKAGES} e2fsprogs libpam-systemd linux-image-cloud-amd64 udev"
MASKED = f"{hosts.MASKED} man-db.timer e2scrub_reap.service fstrim.timer"
NETWORK = "[Match]\\nName=en*\\n[Network]\\nDHCP=yes\\n"
# Loaded by the initrd: the root file system's driver and the disk's.
INITRD = "virtio_pci\\nvirtio_blk\\next4\\n"

BEFORE = (
    'mkdir -p "$1/etc/initramfs-tools/conf.d"',
    'echo MODULES=list > "$1/etc/initramfs-tools/conf.d/guest"',
    f"printf '{INITRD}' > \"$1/etc/initramfs-tools/modules\"",
)
HOOKS = (
    f'chroot "$1" systemctl mask --quiet {MASKED}',
    f"printf '{NETWORK}' > \"$1/etc/systemd/network/guest.network\"",
    'chroot "$1" systemctl enable --quiet systemd-networkd.service',
    "printf 'nameserver 10.0.2.3\\n' > \"$1/etc/resolv.conf\"",
    f"printf '{NAME}\\n' > \"$1/etc/hostname\"",
    f"printf '127.0.0.1 localhost\\n127.0.1.1 {NAME}\\n' > \"$1/etc/hosts\"",
    # the cache of compiled profiles, which the first boot would take its time for
    'chroot "$1" sh -c "apparmor_parser --quiet --skip-kernel-load --write-cache /etc/apparmor.d || true"',
)


def recipe() -> hosts.Recipe:
    """Return what decides about the contents of the disk."""
    if platform.machine() != "x86_64":
        raise Trouble(f"this machine is a {platform.machine()}; guests are made for x86_64 [run the scenario vm there]")
    return hosts.Recipe(SUITE, hosts.own_mirror(), "directory", PACKAGES, HOOKS, BEFORE)


def image() -> pathlib.Path:
    """Return the directory of disk, kernel and initrd, building it when there is none of this recipe."""
    wanted = recipe()
    made = CACHE / wanted.tag
    if made.is_dir():
        return made
    if os.geteuid() != 0:
        raise Trouble("only root can make a file system of other owners' files [run it as root]")
    print(f"building {made} from {wanted.mirror}", flush=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished.", dir=CACHE) as directory:
        root, new = f"{directory}/root", pathlib.Path(directory, "new")
        new.mkdir()
        run("mmdebstrap", *wanted.arguments(root))
        shutil.copyfile(f"{root}/vmlinuz", new / "vmlinuz")
        shutil.copyfile(f"{root}/initrd.img", new / "initrd")
        run("mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", root, str(new / "disk"), f"{DISK_BYTES >> 10}k")
        new.rename(made)
    for other in CACHE.glob(f"{SUITE}-*"):
        if other != made:
            shutil.rmtree(other)
    return made


def accelerator(directory: pathlib.Path) -> str:
    """Return kvm if a kernel really starts with it, else tcg: a /dev/kvm that exists may still fail."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    # without a root file system the kernel panics, which ends QEMU
    words = [*machine("kvm", directory), "-append", "console=ttyS0 panic=-1", "-no-reboot", "-serial", "stdio"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        return "tcg"
    return "kvm" if done.returncode == 0 and b"Kernel panic" in done.stdout else "tcg"


def machine(accel: str, directory: pathlib.Path) -> list[str]:
    """Return QEMU's words for the machine and its kernel, without disk and network."""
    return [
        *(QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-m", "3G", "-smp", "2"),
        *("-accel", "kvm" if accel == "kvm" else "tcg,thread=multi", "-cpu", "host" if accel == "kvm" else EMULATED),
        *("-kernel", str(directory / "vmlinuz")),
    ]


def tmpfiles(keys: dict[str, tuple[int, bytes]]) -> str:
    """Return lines for systemd-tmpfiles that put the run's keys in their places at each boot."""
    lines = ["d /root/.ssh 0700 root root -"]
    for path, (mode, content) in keys.items():
        lines.append(f"f+~ /{path} {mode:04o} root root - {base64.b64encode(content).decode()}")
    return "\n".join(lines) + "\n"


def boot(owner: Run) -> None:
    """Start the guest, wait until SSH answers, and write its inventory."""
    remove(owner)
    made = image()
    keys = hosts.keys_of(owner, NAME, hosts.prepare(owner))
    credential = owner.state / "tmpfiles.extra"
    credential.touch(mode=0o600)
    credential.write_text(tmpfiles(keys), encoding="ascii")
    overlay = owner.state / "overlay.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(made / "disk"), str(overlay))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (owner.state / "known_hosts").write_text(hosts.known(keys, f"[127.0.0.1]:{port}"), encoding="ascii")
    accel = accelerator(made)
    words = [
        *machine(accel, made),
        *("-initrd", str(made / "initrd")),
        *("-append", f"root=/dev/vda rw console=ttyS0 quiet security=apparmor mitigations=off {PATIENT}"),
        *("-drive", f"file={overlay},if=virtio,format=qcow2,cache=unsafe"),
        *("-netdev", f"user,id=n0,hostfwd=tcp:127.0.0.1:{port}-:22", "-device", "virtio-net-pci,netdev=n0"),
        *("-device", "virtio-rng-pci", "-serial", f"file:{owner.state}/console.log"),
        *("-fw_cfg", f"name=opt/io.systemd.credentials/tmpfiles.extra,file={credential}"),
    ]
    started = time.monotonic()
    with (owner.state / "qemu.log").open("wb") as log:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    (owner.state / "qemu.pid").write_text(f"{child.pid} {started_at(child.pid)}\n", encoding="ascii")
    ssh = ["ssh", *hosts.ssh_options(owner), "-i", f"{owner.state}/key", "-o", "ConnectTimeout=60", "-p", port]
    try:
        hosts.wait_for_ssh([*ssh, "root@127.0.0.1", "true"], started + BOOT_SECONDS)
    except Trouble as trouble:
        said = (owner.state / "qemu.log").read_bytes() + (owner.state / "console.log").read_bytes()[-1500:]
        raise Trouble(f"{trouble}; QEMU and console said: {said.decode(errors='replace').strip()}") from None
    hosts.publish(owner, {NAME: {"ansible_host": "127.0.0.1", "ansible_port": port, "test_host_accelerator": accel}})
    print(f"{NAME} runs on port {port} with {accel}, booted in {time.monotonic() - started:.0f} s")


def started_at(pid: int) -> str:
    """Return when a process began, in the kernel's ticks: together with its number it names one process."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]


def remove(owner: Run) -> None:
    """End the run's guest, whatever state it is in, and remove its overlay, keys and sockets."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pid, began = (owner.state / "qemu.pid").read_text(encoding="ascii").split()
        deadline = time.monotonic() + END_SECONDS
        while started_at(int(pid)) == began:
            os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(pid), os.WNOHANG)
            if time.monotonic() > deadline:
                raise Trouble(f"QEMU (process {pid}) does not end")
            time.sleep(0.1)
    hosts.forget(owner)


def main(argv: list[str]) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(description="Build the disk of a test guest, boot and remove a test guest.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("image", help="build the disk if it is missing, print its directory")
    for name, words in (("boot", "boot the guest"), ("remove", "end the guest of a state directory")):
        command = commands.add_parser(name, help=words)
        command.add_argument("--state", required=True, type=pathlib.Path, help="directory of keys and inventory")
    wanted = parser.parse_args(argv)
    os.umask(0o022)
    try:
        if wanted.command == "image":
            print(image())
        elif wanted.command == "boot":
            boot(Run(wanted.state.resolve()))
        else:
            remove(Run(wanted.state.resolve()))
    except Trouble as trouble:
        print(f"guest: {trouble}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
