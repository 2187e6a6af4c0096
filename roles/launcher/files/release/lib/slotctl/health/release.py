# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The release that sessions start with: every byte, against a digest from outside of the host where one is given.

The controller's part of a release has one digest (`source`), which can be computed anew from what a verified manifest
lists. What a host made itself (bytecode, seccomp filter, the copy of bwrap) is made again, or compared with its origin.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys

from confined_slots import _archive, _files, _layout, _manifest, _release
from confined_slots._health import CouldNot, Outcome, critical, ok, warn
from confined_slots._manifest import BWRAP, SECCOMP
from confined_slots._refusals import Refusal

from ..slots import CONVERGE, current_release
from .context import Check, Context, said

PYTHON = "/usr/bin/python3"
MADE_HERE = frozenset({BWRAP, SECCOMP})
COMPILED = ".pyc"
# magic number, flags and the source's hash stand before the code
_HEADER = 16


def release(context: Context) -> Outcome:
    """Return whether every file of the active release, its owner, mode and all above it are as they were made."""
    directory = current_release()
    name = os.path.basename(directory)
    listed = _manifest.verify_release(directory)
    header, values = _archive.loads(_manifest.read_checked(f"{directory}/{_manifest.MANIFEST}", limit=1 << 26))
    pinned = context.options.source
    made = f"{name}, {len(listed)} files as listed"
    if not pinned:
        return ok(f"{made}; no digest from outside this host was given", "the files are as the release's name says")
    own = {path: value for path, value in values.items() if path not in MADE_HERE and not path.endswith(COMPILED)}
    version = str(header.get("version"))
    found = _manifest.sha256(_release.source_manifest(own, version))
    expected = f"the controller's part has digest {pinned[:12]}"
    if found != pinned:
        what = f"{name} is intact in itself, and its part from a controller has digest {found[:12]}"
        return critical(what, expected, f"{CONVERGE}, or look for who installed another release")
    return ok(f"{made}, digest {found[:12]}", expected)


def bytecode(_context: Context) -> Outcome:
    """Return whether the compiled modules, which the launcher runs unread, are what their sources compile to."""
    directory, listed = _verified()
    expected = "each compiled module is what its source compiles to"
    count = 0
    for path in sorted(listed):
        if not path.endswith(COMPILED):
            continue
        parent, _unused, file = path.rpartition("/__pycache__/")
        source = f"{parent}/{file.partition('.')[0]}.py"
        text = _manifest.read_checked(f"{directory}/{source}")
        if file.split(".")[1] != _tag():
            what = f"{path} is not of this host's Python, {_tag()}, so that a launch compiles each module anew"
            return warn(what, expected, CONVERGE)
        wanted = compile(text, source, "exec", dont_inherit=True, optimize=0)
        if marshal.loads(_manifest.read_checked(f"{directory}/{path}")[_HEADER:]) != wanted:
            return critical(f"{directory}/{path} is not what {source} compiles to", expected, CONVERGE)
        count += 1
    return ok(f"{count} compiled modules", expected)


def _verified() -> tuple[str, dict[str, str]]:
    """Return where the release is and what it lists; CouldNot if it is not as listed."""
    try:
        directory = current_release()
        return directory, _manifest.verify_release(directory)
    except Refusal:
        raise CouldNot("the release is not as listed: see the check release") from None


def seccomp(_context: Context) -> Outcome:
    """Return whether the release's filter of system calls is the one that libseccomp makes here and now."""
    directory = current_release()
    expected = "the filter is what _seccomp.py makes here"
    there = _manifest.read_checked(f"{directory}/{SECCOMP}")
    # by the module that this very program was sent with, not by the one that stands there
    made = said(PYTHON, "-I", "-c", _AS_HEX, f"{os.path.dirname(_manifest.__file__)}/_seccomp.py").strip()
    if there.hex() != made:
        return critical(f"{directory}/{SECCOMP} is another filter of {len(there)} bytes", expected, CONVERGE)
    return ok(f"{len(there) // 8} instructions", expected)


def bwrap(_context: Context) -> Outcome:
    """Return whether the release's bwrap is the distribution's, and of a version without a known hole."""
    directory = current_release()
    expected = "the release's copy is the distribution's bubblewrap, 0.12 or newer"
    data = _files.read(_release.BWRAP)
    if data is None:
        raise CouldNot(f"{_release.BWRAP} is not there to be compared with")
    header, listed = _archive.loads(_manifest.read_checked(f"{directory}/{_manifest.MANIFEST}", limit=1 << 26))
    about = header.get("bwrap")
    version = str(about.get("version")) if isinstance(about, dict) else "of no version"
    if listed.get(BWRAP, "")[5:] != _manifest.sha256(data):
        what = f"{_release.BWRAP} is not what the release was made of ({version})"
        return warn(what, expected, CONVERGE)
    if _release.bwrap_is_old(version):
        return warn(f"bubblewrap {version} has CVE-2026-87766", expected, "upgrade bubblewrap when there is 0.12")
    return ok(f"bubblewrap {version}", expected)


def command(_context: Context) -> Outcome:
    """Return whether the operators' command leads to the active release and can be redirected by nobody but root."""
    wanted = f"{_layout.CURRENT}/bin/slotctl"
    expected = f"{_release.COMMAND} leads to {wanted}"
    os.close(_manifest.open_trusted(os.path.dirname(_release.COMMAND)))
    try:
        found = os.lstat(_release.COMMAND)
        target = os.readlink(_release.COMMAND) if stat.S_ISLNK(found.st_mode) else "(no link)"
    except FileNotFoundError:
        return critical(f"{_release.COMMAND} is not there", expected, CONVERGE)
    if target != wanted:
        return critical(f"it leads to {target}", expected, CONVERGE)
    return ok("it does", expected)


def leftovers(_context: Context) -> Outcome:
    """Return whether a release was set aside because it was tampered with, and nobody has looked at it yet."""
    expected = "no release was tampered with"
    found = _release.find()
    if found.aside:
        return warn(f"set aside: {', '.join(found.aside)}", expected, "find out who did it, then remove them")
    faulty = [one for one in found.releases if one.fault and not one.active]
    if faulty:
        return warn(f"{faulty[0].name}, kept for a rollback: {faulty[0].fault}", expected, CONVERGE)
    return ok(f"{len(found.releases)} releases", expected)


_AS_HEX = (
    "import subprocess, sys;"
    " print(subprocess.run([sys.executable, '-I', sys.argv[1]], stdout=subprocess.PIPE, check=True).stdout.hex())"
)


def _tag() -> str:
    return str(sys.implementation.cache_tag)


HOST = (
    Check("release", "the active release is as it was made", release),
    Check("bytecode", "the release's compiled modules are what their sources say", bytecode, 30.0),
    Check("seccomp", "the filter of system calls is the release's own", seccomp),
    Check("bwrap", "the release's bwrap is the distribution's", bwrap),
    Check("command", "slotctl is the release's", command),
    Check("releases", "no release was tampered with", leftovers),
)
