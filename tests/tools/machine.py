# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a fresh machine lacks: distribution packages, the virtual environment, a running Docker daemon."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import venv

from steps import Failed, Log, Missing

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DAEMON_SECONDS = 300

# The program that is needed, and the Debian packages that bring it.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "git": ("git",),
    "shellcheck": ("shellcheck",),
    "bwrap": ("bubblewrap",),
}
HOST_PROGRAMS: dict[str, tuple[str, ...]] = {
    "docker": ("docker.io", "docker-cli"),
    "dockerd": ("docker.io",),
    "iptables": ("iptables",),
    "mmdebstrap": ("mmdebstrap",),
    "ssh": ("openssh-client",),
}
GUEST_PROGRAMS: dict[str, tuple[str, ...]] = {
    "mke2fs": ("e2fsprogs",),
    "mmdebstrap": ("mmdebstrap",),
    "qemu-img": ("qemu-utils",),
    "qemu-system-x86_64": ("qemu-system-x86",),
    "ssh": ("openssh-client",),
}

BROWSER_PROGRAMS: dict[str, tuple[str, ...]] = {"chromium": ("chromium",)}


def find(program: str, path: str) -> str | None:
    """Return where a program is; a user's PATH lacks the directories of daemons."""
    return shutil.which(program, path=f"{path}:{SYSTEM_PATH}")


def is_debian() -> bool:
    """Say whether apt can install what is missing."""
    return pathlib.Path("/etc/debian_version").exists() and find("apt-get", "") is not None


class Machine:
    """This machine, as the checkout's steps need it."""

    def __init__(self, root: pathlib.Path, build: pathlib.Path) -> None:
        """Take the checkout and its directory for what is built."""
        self.root = root
        self.build = build
        self.venv = root / ".venv"
        self.pid_file = build / "dockerd.pid"
        self._daemon: subprocess.Popen[bytes] | None = None

    # --- packages

    def packages(self, programs: dict[str, tuple[str, ...]]) -> list[str]:
        """Return the Debian packages of the programs that are missing."""
        path = os.environ.get("PATH", "")
        wanted = {package for program, names in programs.items() if not find(program, path) for package in names}
        return sorted(wanted)

    def install(self, log: Log, programs: dict[str, tuple[str, ...]]) -> None:
        """Install what is missing, and nothing else; where that cannot be done, say what is missing."""
        missing = self.packages(programs)
        if programs is PROGRAMS and not (self.venv / "bin" / "python").exists() and not has_ensurepip():
            missing.append("python3-venv")
        if not missing:
            return
        if not is_debian():
            raise Missing(f"missing here: {', '.join(missing)} (Debian's names) [no Debian: install them by hand]")
        if os.geteuid() != 0:
            raise Missing(f"missing here: {', '.join(missing)} [as root: apt-get install {' '.join(missing)}]")
        apt = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300")
        log.run(*apt, "update")
        # docker-cli is a package of its own since Debian 13.
        known = [name for name in missing if log.status("apt-cache", "show", "--no-all-versions", name) == 0]
        log.run(*apt, "install", "--no-install-recommends", *known, DEBIAN_FRONTEND="noninteractive")
        still = [program for program in programs if not find(program, os.environ.get("PATH", ""))]
        if still:
            raise Failed(f"installed {', '.join(known)}, and {', '.join(still)} is still missing")

    # --- the virtual environment

    def make_venv(self, log: Log, requirements: pathlib.Path) -> None:
        """Make the virtual environment anew when its pins, its Python or its place changed."""
        if not has_ensurepip():
            raise Failed(f"{sys.executable} cannot make virtual environments [install python3-venv]")
        stamp = self.venv / "confined-slots.stamp"
        pins = [file.read_text(encoding="utf-8") for file in sorted(requirements.parent.glob("*.txt"))]
        # not sys.executable: with the environment itself first in PATH that would be its own, and it made anew
        words = [sys.version, os.path.realpath(sys.executable), str(self.venv), *pins]
        wanted = hashlib.sha256("\0".join(words).encode()).hexdigest()
        if stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
            return
        if self.venv.exists():
            shutil.rmtree(self.venv)
        venv.create(self.venv, with_pip=True, symlinks=True)
        pip = (str(self.venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input")
        log.run(*pip, "install", "--quiet", "--requirement", str(requirements))
        stamp.write_text(wanted, encoding="ascii")

    # --- the Docker daemon

    def docker_answers(self, log: Log) -> bool:
        """Say whether a daemon can be used."""
        return bool(find("docker", os.environ.get("PATH", ""))) and log.status("docker", "info") == 0

    def start_docker(self, log: Log) -> None:
        """Start a daemon unless one answers."""
        if self.docker_answers(log):
            return
        if os.geteuid() != 0:
            raise Missing("no Docker daemon answers this user [run as root, or start one that this user may use]")
        log.write("$ dockerd")
        with log.path.open("ab") as file:
            try:
                # Not a child of a step: it lives until `stop_docker`, whatever interrupts the steps.
                self._daemon = subprocess.Popen(
                    ["dockerd", f"--pidfile={self.pid_file}"],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=log.environment,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise Missing("dockerd is not installed") from error
        deadline = time.monotonic() + DAEMON_SECONDS
        while log.status("docker", "info", "--format", "{{.ServerVersion}}") != 0:
            if self._daemon.poll() is not None:
                raise Failed(f"dockerd ended with {self._daemon.returncode} while starting")
            if time.monotonic() > deadline:
                raise Failed(f"dockerd did not answer within {DAEMON_SECONDS} s")
            time.sleep(0.5)

    def stop_docker(self, environment: dict[str, str]) -> str:
        """End the daemon that `start_docker` started, unless others use it by now; return what was done, if any."""
        if self._daemon is None or self._daemon.poll() is not None:
            return ""
        running = subprocess.run(
            ["docker", "ps", "--quiet"], stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment
        )
        if running.stdout.strip():
            return f"dockerd (process {self._daemon.pid}) goes on: it runs containers that are not of this run"
        self._daemon.send_signal(signal.SIGTERM)
        try:
            self._daemon.wait(30)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
            return "dockerd did not end within 30 s and was killed"
        return "dockerd, started by this run, was stopped"


def has_ensurepip() -> bool:
    """Say whether this Python can make virtual environments: Debian keeps that in python3-venv."""
    return importlib.util.find_spec("ensurepip") is not None
