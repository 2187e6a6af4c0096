# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the test hosts' images and boot hosts from them: systemd containers that Ansible reaches by SSH.

    python3 tests/hosts/hosts.py image trixie
    python3 tests/hosts/hosts.py boot --state build/hosts trixie bookworm
    python3 tests/hosts/hosts.py remove --state build/hosts

The state directory then holds `inventory.json`, the run's own SSH key and the hosts' pinned keys. Everything made
carries a label derived from that directory's path, so two clones on one machine stay apart, and `remove` needs nothing
but the path to find what a killed run left behind.

No image registry is asked: mmdebstrap builds each image from the mirror in this machine's own apt sources.
Standard library only, as it runs before any virtual environment exists.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

REPOSITORY = "confined-slots-host"
LABEL = "confined-slots.run"
BOOT_SECONDS = 300

HOSTS = {"trixie": "slot-debian13", "bookworm": "slot-debian12"}

PACKAGES = (
    "acl apparmor at bubblewrap busybox-static ca-certificates cron dbus docker-compose docker.io gcc git iproute2 "
    "libc6-dev locales logrotate make openssh-server passt procps python3 python3-apt python3-seccomp rootlesskit "
    "slirp4netns strace sudo systemd systemd-sysv tmux uidmap"
)
# Debian 12's docker.io has the client in it, and no buildx.
MORE_PACKAGES = {"trixie": "docker-buildx docker-cli"}

# What starts a daemon of root's; a host of slots need not have one.
DISABLED = "containerd.service docker.service docker.socket"

# What would fail in a container (modules), or change the host while a test looks at it (the timers).
MASKED = (
    "systemd-modules-load.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer "
    "systemd-networkd-wait-online.service"
)

# One long form for every machine: where the daemon gave the container cgroup v1 or a read-only tree, systemd gets a
# writable cgroup v2 of its own; inside a private cgroup namespace that also is what a v2 machine would have mounted.
INIT = "umount -R -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && chmod a+rw /dev/net/tun && exec /sbin/init"

# By number, as <linux/capability.h> counts them; Docker 20.10, Debian 12's, knows no later ones.
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
    "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN "
    "SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE "
    "MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ"
)


class Trouble(Exception):
    """A host or image that could not be made; the message names the cause."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that decides what is in an image; the tag is a hash of it."""

    suite: str
    mirror: str
    format: str = "tar"
    packages: str = PACKAGES
    hooks: tuple[str, ...] = (f'chroot "$1" systemctl mask --quiet {MASKED}',)
    before: tuple[str, ...] = ()

    def arguments(self, out: str) -> list[str]:
        """Return mmdebstrap's arguments that write the image to `out`: an archive, or a directory.

        The account `oper` is for a person who is not root. `before` are hooks that run ahead of the packages.
        """
        hooks = [
            *self.hooks,
            f'chroot "$1" systemctl --quiet disable {DISABLED}',
            "printf '%s UTF-8\\n' en_US.UTF-8 de_DE.UTF-8 tr_TR.UTF-8 > \"$1/etc/locale.gen\"",
            'chroot "$1" locale-gen > /dev/null',
            'chroot "$1" useradd --create-home --shell /bin/bash oper',
            'rm -f "$1"/etc/ssh/ssh_host_*',
            ': > "$1/etc/machine-id"',
        ]
        return [
            "--variant=minbase",
            f"--format={self.format}",
            f"--include={','.join([*self.packages.split(), *MORE_PACKAGES.get(self.suite, '').split()])}",
            *(f"--essential-hook={hook}" for hook in self.before),
            *(f"--customize-hook={hook}" for hook in hooks),
            self.suite,
            out,
            self.mirror,
        ]

    @property
    def tag(self) -> str:
        """Return the tag of the image that this recipe gives."""
        return f"{self.suite}-{hashlib.sha256(json.dumps(self.arguments('')).encode()).hexdigest()[:12]}"


def run(*argv: str, stdin: bytes | None = None) -> str:
    """Return a command's output; raise Trouble with its own last words when it fails."""
    try:
        done = subprocess.run(argv, input=stdin or b"", capture_output=True, check=False)
    except FileNotFoundError as error:
        raise Trouble(f"{argv[0]} is not installed [make setup installs it on Debian, as root]") from error
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise Trouble(f"{shlex.join(argv[:3])} … ended with {done.returncode}: {said[-2000:]}")
    return done.stdout.decode(errors="replace")


def succeeds(*argv: str) -> bool:
    """Say whether a command ends with 0."""
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


# --- images -----------------------------------------------------------------------------------------------------------


def own_mirror() -> str:
    """Return the mirror that this machine's apt takes its own Debian release from."""
    release = dict(
        line.rstrip().split("=", 1)
        for line in pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
        if "=" in line
    )
    codename = release.get("VERSION_CODENAME", "").strip('"')
    targets = run("apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Identifier: Packages")
    found = [words[2] for words in map(str.split, targets.splitlines()) if words[:2] == [codename, "main"]]
    # A vendor's archive may call its suite like Debian's, but it does not end in /debian.
    found.sort(key=lambda uri: not uri.rstrip("/").endswith("/debian"))
    if not found:
        raise Trouble(f"no apt source of this machine serves '{codename} main' [see /etc/apt/sources.list.d]")
    return found[0].rstrip("/")


def image(suite: str) -> str:
    """Return the name of the suite's image, building it when no image of this recipe exists."""
    recipe = Recipe(suite, own_mirror())
    name = f"{REPOSITORY}:{recipe.tag}"
    if succeeds("docker", "image", "inspect", name):
        return name
    print(f"building {name} from {recipe.mirror}", flush=True)
    with tempfile.TemporaryDirectory(prefix="confined-slots-image.") as directory:
        archive = f"{directory}/root.tar"
        run("mmdebstrap", *recipe.arguments(archive))
        run("docker", "import", archive, name)
    for tag in run("docker", "images", "--format", "{{.Tag}}", REPOSITORY).split():
        if tag.startswith(f"{suite}-") and tag != recipe.tag and not succeeds("docker", "rmi", f"{REPOSITORY}:{tag}"):
            print(f"kept the older {REPOSITORY}:{tag}: a container uses it", flush=True)
    return name


# --- hosts ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """The hosts that belong to one state directory."""

    state: pathlib.Path

    @property
    def id(self) -> str:
        """Return the label's value: the same for the same directory, so that leftovers are found again."""
        return hashlib.sha256(bytes(self.state)).hexdigest()[:8]

    def container(self, host: str) -> str:
        """Return the name of a host's container and volume."""
        return f"slots-{self.id}-{host}"

    @property
    def sockets(self) -> pathlib.Path:
        """Return the directory of SSH's control sockets: short, as a socket's path has 108 bytes at most."""
        return pathlib.Path(tempfile.gettempdir(), f"slots-{self.id}")


def capabilities() -> list[str]:
    """Return the docker options that give a container every capability that this machine and Docker have.

    Not ALL: old daemons then ask for what the machine lacks, and new ones refuse to drop it.
    """
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    bounding = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:")), 16)
    return [f"--cap-add={name}" for bit, name in enumerate(CAPABILITIES.split()) if bounding >> bit & 1]


def machine_options() -> list[str]:
    """Return the docker options that depend on what this machine has."""
    options = capabilities()
    if "name=apparmor" in run("docker", "info", "--format", "{{json .SecurityOptions}}"):
        options.append("--security-opt=apparmor=unconfined")
    options += [f"--device={device}" for device in ("/dev/net/tun", "/dev/fuse") if pathlib.Path(device).exists()]
    return options


def key_pair(path: pathlib.Path) -> str:
    """Make an SSH key without a passphrase and return its public half."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "confined.slots test run", "-f", str(path))
    return path.with_name(f"{path.name}.pub").read_text(encoding="ascii")


def archive(files: dict[str, tuple[int, bytes]]) -> bytes:
    """Return a tar archive of root's files: path to mode and content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, (mode, content) in files.items():
            member = tarfile.TarInfo(path)
            member.mode, member.size = mode, len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def keys_of(owner: Run, host: str, public_key: str) -> dict[str, tuple[int, bytes]]:
    """Make the host's own key and return the files of SSH that belong on it: path to mode and content.

    They are in place before the host first runs: nothing is fetched from it, so nothing has to be trusted.
    """
    host_key = owner.state / f"{host}.hostkey"
    host_public = key_pair(host_key)
    secret = host_key.read_bytes()
    for half in (host_key, host_key.with_name(f"{host_key.name}.pub")):
        half.unlink()
    return {
        "root/.ssh/authorized_keys": (0o600, public_key.encode()),
        "etc/ssh/ssh_host_ed25519_key": (0o600, secret),
        "etc/ssh/ssh_host_ed25519_key.pub": (0o644, host_public.encode()),
    }


def known(keys: dict[str, tuple[int, bytes]], address: str) -> str:
    """Return the line of known_hosts for a host with these files."""
    return f"{address} {' '.join(keys['etc/ssh/ssh_host_ed25519_key.pub'][1].decode().split()[:2])}\n"


def start(owner: Run, suite: str, options: list[str], public_key: str) -> tuple[str, str]:
    """Start the suite's host and return its address and its line of known_hosts."""
    name, host = owner.container(HOSTS[suite]), HOSTS[suite]
    keys = keys_of(owner, host, public_key)
    label = f"--label={LABEL}={owner.id}"
    run("docker", "volume", "create", label, name)
    run(
        *("docker", "create", label, f"--name={name}", f"--hostname={host}", "--cgroupns=private", *options),
        *("--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined"),
        *("--tmpfs=/run", "--tmpfs=/tmp", "--env=container=docker", "--stop-signal=SIGRTMIN+3"),
        *(f"--volume={name}:/var/lib/confined-slots", image(suite), "sh", "-c", INIT),
    )
    run("docker", "cp", "-", f"{name}:/", stdin=archive(keys))
    run("docker", "start", name)
    address = run("docker", "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
    return address.strip(), known(keys, address.strip())


def wait_for_systemd(name: str, deadline: float) -> None:
    """Return once systemd says that the host runs; Trouble names the failed units or the container's last words."""
    while True:
        asked = subprocess.run(
            ["docker", "exec", name, "systemctl", "is-system-running"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        said = asked.stdout.decode().strip()
        if said == "running":
            return
        if said == "degraded":
            failed = run("docker", "exec", name, "systemctl", "list-units", "--failed", "--plain", "--no-legend")
            raise Trouble(f"{name} booted with failed units: {failed.strip()}")
        if run("docker", "inspect", "--format", "{{.State.Running}}", name).strip() != "true":
            logs = subprocess.run(["docker", "logs", "--tail=5", name], capture_output=True, check=False)
            words = (logs.stdout + logs.stderr).decode(errors="replace").strip()
            raise Trouble(f"{name} stopped while booting: {words}")
        if time.monotonic() > deadline:
            raise Trouble(f"{name} did not boot within {BOOT_SECONDS} s; systemd says '{said}'")
        time.sleep(0.3)


def wait_for_ssh(argv: list[str], deadline: float) -> None:
    """Return once a command over SSH works."""
    while True:
        asked = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if asked.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise Trouble(f"SSH does not answer: {asked.stderr.decode(errors='replace').strip()} [{shlex.join(argv)}]")
        time.sleep(0.3)


def ssh_options(owner: Run) -> list[str]:
    """Return the options that make SSH use this run's key and known hosts, and nothing of the user's.

    All that speak to a host share a connection, as a new one takes longer than most of what it is for.
    """
    return [
        *("-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes"),
        *("-o", f'UserKnownHostsFile="{owner.state}/known_hosts"', "-o", "GlobalKnownHostsFile=none"),
        *("-o", "ControlMaster=auto", "-o", "ControlPersist=120s", "-o", f"ControlPath={owner.sockets}/%C"),
    ]


def inventory(owner: Run, started: dict[str, dict[str, str]]) -> dict[str, object]:
    """Return the Ansible inventory of the started hosts, each with variables of its own."""
    return {
        "all": {
            "children": {
                "slot_hosts": {
                    "vars": {
                        "ansible_user": "root",
                        "ansible_python_interpreter": "/usr/bin/python3",
                        "ansible_pipelining": True,
                        "ansible_ssh_private_key_file": f"{owner.state}/key",
                        "ansible_ssh_common_args": shlex.join(ssh_options(owner)),
                        "ansible_ssh_args": "",
                        "ansible_ssh_timeout": 60,
                    },
                    "hosts": started,
                }
            }
        }
    }


def prepare(owner: Run) -> str:
    """Make the run's directories and its SSH key; return the key's public half."""
    owner.state.mkdir(parents=True)
    owner.state.chmod(0o700)
    owner.sockets.mkdir(mode=0o700)
    return key_pair(owner.state / "key")


def boot(owner: Run, suites: list[str]) -> None:
    """Start one host for each suite, wait until all can be used, and write their inventory."""
    remove(owner)
    public_key = prepare(owner)
    options = machine_options()
    started = {HOSTS[suite]: start(owner, suite, options, public_key) for suite in suites}
    (owner.state / "known_hosts").write_text("".join(line for _unused, line in started.values()), encoding="ascii")
    deadline = time.monotonic() + BOOT_SECONDS

    def wait(host: str) -> None:
        wait_for_systemd(owner.container(host), deadline)
        key = ["-i", f"{owner.state}/key", "-o", "ConnectTimeout=5"]
        wait_for_ssh(["ssh", *ssh_options(owner), *key, f"root@{started[host][0]}", "true"], deadline)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for done in [pool.submit(wait, host) for host in started]:
            done.result()
    variables = {
        host: {"ansible_host": address, "test_host_container": owner.container(host)}
        for host, (address, _unused) in started.items()
    }
    publish(owner, variables)
    for host, it in variables.items():
        print(f"{host} runs at {it['ansible_host']} as {it['test_host_container']}")


def publish(owner: Run, hosts: dict[str, dict[str, str]]) -> None:
    """Write the inventory, last of all: it is there exactly when its hosts can be used."""
    text = json.dumps(inventory(owner, hosts), indent=2) + "\n"
    (owner.state / "inventory.json").write_text(text, encoding="utf-8")


def remove(owner: Run) -> None:
    """Remove the run's hosts, volumes, keys and sockets, whatever of them there is."""
    label = f"label={LABEL}={owner.id}"
    for listing, removal in (
        (["docker", "ps", "--all", "--quiet", f"--filter={label}"], ["docker", "rm", "--force", "--volumes"]),
        (["docker", "volume", "ls", "--quiet", f"--filter={label}"], ["docker", "volume", "rm", "--force"]),
    ):
        found = run(*listing).split()
        if found:
            run(*removal, *found)
    forget(owner)


def forget(owner: Run) -> None:
    """Remove the run's directories."""
    for directory in (owner.state, owner.sockets):
        if directory.exists():
            shutil.rmtree(directory)


def main(argv: list[str]) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(description="Build images of test hosts, boot and remove test hosts.")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("image", help="build the images that are missing, print their names")
    build.add_argument("suites", nargs="+", choices=HOSTS, metavar="SUITE")
    up = commands.add_parser("boot", help="boot one host for each suite")
    up.add_argument("suites", nargs="+", choices=HOSTS, metavar="SUITE")
    down = commands.add_parser("remove", help="remove the hosts of a state directory")
    for command in (up, down):
        command.add_argument("--state", required=True, type=pathlib.Path, help="directory of keys and inventory")
    wanted = parser.parse_args(argv)
    os.umask(0o022)
    try:
        if wanted.command == "image":
            for suite in wanted.suites:
                print(image(suite))
        elif wanted.command == "boot":
            boot(Run(wanted.state.resolve()), wanted.suites)
        else:
            remove(Run(wanted.state.resolve()))
    except Trouble as trouble:
        print(f"hosts: {trouble}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
