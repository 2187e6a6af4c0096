# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of the module providers: fetches what a host lacks, once, and sends it as one archive."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import typing as t

from ansible.errors import AnsibleActionFail

from ..module_utils import _archive, _manifest, _profiles, _providers
from ..module_utils._declarations import Invalid
from ..module_utils._refusals import printable
from ..plugin_utils.sending import Sending

NPM_SECONDS = 1800
NPM = (
    *("npm", "install", "--no-audit", "--no-fund", "--omit=dev", "--loglevel=error", "--no-update-notifier"),
    # Nothing that was fetched is executed on the control node; profiles name the platform's own packages.
    *("--ignore-scripts", "--os=linux", "--libc=glibc"),
)


class ActionModule(Sending):
    """Runs the module once, and once more with the archives that the host lacks."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        try:
            profiles = _profiles.parse(arguments.get("profiles") or [])
            entries = _providers.parse(arguments.get("providers") or [], arguments.get("names") or [], profiles)
            for entry in entries:
                if entry["source"] == "archive":
                    entry["archive"] = self._find_needle("files", os.path.expanduser(entry["archive"]))
                    entry["sha256"] = checked_digest(entry)
            arguments |= {"providers": entries, "names": []}
            result = self.module(arguments, task_vars)
            if result.get("needs") and not result.get("failed"):
                wanted = {one.name: one for one in _providers.wanted_of(entries, profiles, result["machine"])}
                arguments["archives"] = {
                    entry["name"]: self._send(
                        archive_of(entry, wanted[entry["name"]], result["machine"]), entry["name"]
                    )
                    for entry in entries
                    if entry["name"] in result["needs"]
                }
                result = self.module(arguments, task_vars)
        except Invalid as error:
            raise AnsibleActionFail(str(error)) from error
        except _manifest.Untrusted as error:
            raise AnsibleActionFail(
                f"a provider cannot be packed: {error} [mend its archive, or pin another]"
            ) from error
        except OSError as error:
            raise AnsibleActionFail(
                f"{error.filename or 'the archive'}: {error.strerror} [mend the control node]"
            ) from error
        finally:
            self.forget()
        return result

    def _send(self, archive: str, name: str) -> dict[str, str]:
        return {"path": self.send(archive, f"{name}.tar.gz"), "digest": _archive.digest_told(archive)}


def checked_digest(entry: t.Mapping[str, t.Any]) -> str:
    """Return the SHA-256 of a local archive; Invalid if it is not the one declared."""
    digest = _archive.digest_of(entry["archive"])
    if entry["sha256"] not in (None, digest):
        raise Invalid(
            f"provider '{entry['name']}': {printable(entry['archive'])} has SHA-256 {digest}, not {entry['sha256']}"
            " [take the right archive, or mend sha256]"
        )
    return digest


def archive_of(entry: t.Mapping[str, t.Any], wanted: _providers.Wanted, machine: str) -> str:
    """Return the path of the packed tree of a provider for a machine, fetched and packed unless the cache has it."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "confined-slots")
    os.makedirs(cache, mode=0o700, exist_ok=True)
    key = _manifest.sha256(wanted.origin.encode())[: _manifest.SHORT]
    path = os.path.join(cache, f"{wanted.name}-{wanted.version}-{machine}-{key}.tar.gz")
    with locked(os.path.join(cache, "lock")):
        if not os.path.exists(path):
            with tempfile.TemporaryDirectory(prefix=".", dir=cache) as directory:
                tree = os.path.join(directory, "tree")
                os.mkdir(tree)
                fetch(entry, wanted, machine, tree)
                pack(tree, wanted, machine, os.path.join(directory, "archive"))
                os.rename(os.path.join(directory, "archive"), path)
    return path


def fetch(entry: t.Mapping[str, t.Any], wanted: _providers.Wanted, machine: str, directory: str) -> None:
    """Lay a provider's tree into a directory of the control node."""
    if entry["source"] == "archive":
        _archive.extract(entry["archive"], directory)
        return
    npm = shutil.which(NPM[0])
    if npm is None:
        raise Invalid("npm is not installed on the control node [install it, or give the provider's archive]")
    packages = _providers.packages_of(entry, wanted.profile)
    command = [
        npm,
        *NPM[1:],
        f"--cpu={_profiles.MACHINES.get(machine, machine)}",
        "--prefix",
        directory,
        "--",
        *packages,
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=NPM_SECONDS, cwd=directory
        )
    except subprocess.TimeoutExpired:
        raise Invalid(f"npm has not fetched {' '.join(packages)} in {NPM_SECONDS} s [try again]") from None
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[-500:]
        raise Invalid(f"npm cannot fetch {' '.join(packages)}: {printable(said)} [mend the version, or npm's set-up]")


def pack(directory: str, wanted: _providers.Wanted, machine: str, path: str) -> None:
    """Pack a tree with its manifest."""
    tree = _archive.collect(directory)
    _archive.check_links(tree.listed)
    header = {"machine": machine, "name": wanted.name, "origin": wanted.origin, "version": wanted.version}
    with open(path, "wb") as out:
        _archive.pack(tree, _archive.dumps(tree.listed, header), out, level=1)


@contextlib.contextmanager
def locked(path: str) -> t.Iterator[None]:
    """Let one of the forks fetch while the others wait for what it fetches."""
    with open(path, "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
