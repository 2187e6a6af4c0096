# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""AppArmor on a host: what it can do there, what is loaded, and the steps that load this project's profiles or none.

One file holds all profiles. It is parsed before it is installed, since apparmor.service loads every profile of the
host at boot and fails for one that it cannot parse. Loaded is what the kernel says, byte for byte, not what a parser
returned.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import tempfile
import typing as t

from . import _apparmor_profiles, _files, _layout
from ._manifest import sha256
from ._programs import ENVIRONMENT, Failed, run
from ._steps import Step

PROFILES = "/etc/apparmor.d"
FILE = f"{PROFILES}/confined-slots"
LOADED = "/sys/kernel/security/apparmor/policy/profiles"
FEATURES = "/sys/kernel/security/apparmor/features"
PARSER = "/usr/sbin/apparmor_parser"

NO_APPARMOR = "this kernel runs without AppArmor: sessions are held by the other walls alone"
NO_NAMESPACES = (
    "this host's AppArmor knows no rule about user namespaces: mounts and capabilities are refused to what runs inside,"
    " namespaces by bubblewrap's --disable-userns alone"
)

# "profile NAME PATH flags {", of which one of NAME and PATH may be missing; without NAME the word profile may be too
_HEADER = re.compile(
    r"""^[ \t]*(?:profile[ \t]+("[^"\n]*"|[^\s"(]+)|(?="?[/@]))[ \t]*("[^"\n]*"|[/@][^\s"(]*)?[^\n#]*[ \t)]\{""",
    re.MULTILINE,
)
_CONFINED = b"confined-slots-"
DROP_IN = "50-confined-slots.conf"
MANAGER = f"# Made by confined.slots\n[Service]\nAppArmorProfile={_apparmor_profiles.ACCOUNT}\n"

NOTHING = sha256(b"")
UNKNOWN = "<unknown>"  # the kernel's word for an attachment that it does not tell


class ApparmorError(Failed):
    """What cannot be done about AppArmor on this host: one sentence, the cure in brackets."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """A profile of the host: where it was found (a file, or `kernel`), its name and the paths it attaches to."""

    where: str
    name: str
    attachment: str


@dataclasses.dataclass(frozen=True)
class Found:
    """AppArmor as it stands: loaded has the mode of each profile of ours, compiled their policy's sha256 in all."""

    kernel: bool = False
    namespaces: bool = False
    abis: tuple[str, ...] = ()
    file: str | None = None
    loaded: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    compiled: str = ""
    others: tuple[Profile, ...] = ()


def active(features: str = FEATURES) -> bool:
    """Return whether the kernel enforces AppArmor policy."""
    return os.path.isdir(features)


def modes(loaded: str = LOADED) -> dict[str, str]:
    """Return the mode (enforce, complain, unconfined, …) of each profile that the kernel has, by name."""
    return {_word(entry, "name"): _word(entry, "mode") for entry in _entries(loaded)}


def is_loaded(name: str, loaded: str = LOADED) -> bool:
    """Return whether the kernel has a profile of this name, in enforce mode."""
    return modes(loaded).get(name) == "enforce"


def find(root: str = "") -> Found:
    """Return how AppArmor stands on the host (below root, for tests)."""
    if not active(root + FEATURES):
        return Found()
    loaded, others, blobs = {}, [], {}
    for entry in _entries(root + LOADED):
        name, attachment = _word(entry, "name"), _word(entry, "attach")
        if name in _apparmor_profiles.ALL:
            loaded[name] = _word(entry, "mode")
            blobs[name] = _bytes(entry, "raw_data")
        else:
            others.append(Profile("kernel", name, "" if attachment == UNKNOWN else attachment))
    for path in _profile_files(root + PROFILES):
        with open(path, encoding="utf-8", errors="replace") as file:
            others += [Profile(path, *header) for header in headers(file.read())]
    content = _files.read(root + FILE)
    abis = f"{root}{PROFILES}/abi"
    return Found(
        True,
        _has_userns(root + FEATURES),
        tuple(sorted(os.listdir(abis))) if os.path.isdir(abis) else (),
        None if content is None else content.decode("utf-8", "replace"),
        loaded,
        # the parser orders them by name; each came by itself, or all at once from its cache
        sha256(b"".join(dict.fromkeys(blobs[name] for name in sorted(blobs)))),
        tuple(others),
    )


def text(found: Found) -> str:
    """Return the profiles that this host can have: of the highest ABI that it has and they are written for."""
    known = [abi for abi in _apparmor_profiles.ABIS if abi in found.abis]
    if not known:
        raise ApparmorError(
            f"apparmor-abi-unsupported: {PROFILES}/abi has {', '.join(found.abis) or 'nothing'}; the profiles are"
            f" written for {' and '.join(_apparmor_profiles.ABIS)} [upgrade the package apparmor]"
        )
    return _apparmor_profiles.text(known[-1])


def mediates_namespaces(found: Found) -> bool:
    """Return whether the profiles that this host can have speak of user namespaces."""
    return _apparmor_profiles.MEDIATES_NAMESPACES in found.abis


def own_paths() -> list[str]:
    """Return the paths to which the profiles attach: those of the active release, as the kernel sees them executed."""
    release = os.path.realpath(_layout.CURRENT)
    return [f"{release}/bin/{name}" for name in ("slot-launcher", "slotctl", "bwrap")]


def conflicts(found: Found, paths: t.Sequence[str]) -> list[str]:
    """Return in words which foreign profiles attach to one of the paths, or have a name of ours."""
    words = []
    for other in found.others:
        hit = next((path for path in paths if other.attachment and matches(other.attachment, path)), None)
        if hit is not None:
            words.append(f"profile {other.name} ({other.where}) attaches to {other.attachment}, as ours does to {hit}")
        elif other.name in _apparmor_profiles.ALL:
            words.append(f"{other.where} has a profile of the name {other.name}")
    return sorted(set(words))


def plan(wanted: str | None, compiled: str, found: Found) -> list[Step]:
    """Return the steps to wanted (None: no profile of ours); compiled is the sha256 of its compiled form.

    Unloading comes first: it may be refused.
    """
    steps = []
    if wanted is None and found.loaded:
        steps.append(Step("AppArmor profiles", "unload", "\n".join(sorted(found.loaded)), None))
    if found.file != wanted:
        steps.append(Step(FILE, "remove" if wanted is None else "write", found.file, wanted))
    if wanted is not None:
        # with apparmor.export_binary=0 the kernel does not tell
        told = found.compiled != NOTHING or not found.loaded
        same = found.compiled == compiled if told else found.file == wanted
        if not same or set(found.loaded.values()) != {"enforce"}:
            before = [f"{name} ({mode})" for name, mode in sorted(found.loaded.items())]
            after = [f"{name} (enforce)" for name in sorted(_apparmor_profiles.ALL)]
            steps.append(Step("AppArmor profiles", "load", "\n".join(before), "\n".join(after)))
    return steps


def find_managers(units: str = _layout.UNITS) -> dict[str, str]:
    """Return our drop-ins for user managers: path to content."""
    found = {}
    for name in sorted(os.listdir(units)):
        path = f"{units}/{name}/{DROP_IN}"
        if name.startswith("user@") and os.path.exists(path):
            found[path] = (_files.read(path) or b"").decode("utf-8", "replace")
    return found


def plan_managers(uids: t.Iterable[int], found: t.Mapping[str, str]) -> list[Step]:
    """Return the steps after which these accounts' user managers, and no others, are held by the profile ACCOUNT."""
    wanted = {f"{_layout.UNITS}/user@{uid}.service.d/{DROP_IN}": MANAGER for uid in uids}
    steps = [Step(path, "write", found.get(path), MANAGER) for path in wanted if found.get(path) != MANAGER]
    return steps + [Step(path, "remove", text) for path, text in found.items() if path not in wanted]


def compiled(content: str) -> str:
    """Return the sha256 of the profiles as the parser compiles them for this kernel, loading nothing."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="confined-slots.", suffix=".aa") as file:
        file.write(content)
        file.flush()
        done = _parser("--skip-cache", "--skip-kernel-load", "--stdout", file.name)
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[-500:]
        raise ApparmorError(
            f"apparmor-abi-unsupported: this host's parser does not take the profiles: {said} [upgrade the package"
            " apparmor, or set apparmor_enabled: false]"
        )
    return sha256(done.stdout)


def apply(steps: t.Iterable[Step]) -> None:
    """Take the steps; what a parser returns is not believed, so the caller looks again afterwards."""
    steps = list(steps)
    for step in steps:
        if step.action == "write":
            _files.ensure_directory(os.path.dirname(step.subject))
            _files.write(step.subject, step.after.encode())
        elif step.action == "load":
            _must(_parser("--replace", "--write-cache", FILE))
        elif step.action == "unload":
            refuse_in_use()
            for name in step.before.split("\n"):
                with open("/sys/kernel/security/apparmor/.remove", "w", encoding="ascii") as file:
                    file.write(name)
        elif step.action == "remove":
            _files.remove(step.subject)
    if any(step.subject.startswith(f"{_layout.UNITS}/") for step in steps):
        run(("systemctl", "daemon-reload"))


def refuse_in_use(proc: str = "/proc") -> None:
    """Refuse while a process runs under one of the profiles: without it, it would run unconfined."""
    held = []
    for pid in filter(str.isdecimal, os.listdir(proc)):
        try:
            with open(f"{proc}/{pid}/attr/current", "rb") as file:
                if file.read(4096).startswith(_CONFINED):
                    held.append(pid)
        except OSError:
            continue  # it has just ended
    if held:
        raise ApparmorError(
            f"{len(held)} processes run under the profiles, process {held[0]} for one; without them these would run"
            " unconfined [stop the slots' sessions: slotctl stop SLOT]"
        )


def headers(content: str) -> t.Iterator[tuple[str, str]]:
    """Yield name and attachment of each profile in a file of AppArmor policy; one without a name has its path."""
    for match in _HEADER.finditer(content):
        name, attachment = (word.strip('"') if word else "" for word in match.groups())
        if not attachment and name.startswith(("/", "@")):
            attachment = name
        if name or attachment:
            yield name or attachment, attachment


def matches(glob: str, path: str) -> bool:
    """Return whether an AppArmor path expression takes in a path."""
    pattern, depth, position = "", 0, 0
    while position < len(glob):
        character = glob[position]
        if glob.startswith("**", position):
            pattern += ".*"
            position += 1
        elif character == "*":
            pattern += "[^/]*"
        elif character == "?":
            pattern += "[^/]"
        elif character == "{":
            pattern, depth = f"{pattern}(?:", depth + 1
        elif character == "}" and depth:
            pattern, depth = f"{pattern})", depth - 1
        elif character == "," and depth:
            pattern += "|"
        elif character == "[" and "]" in glob[position:]:
            end = glob.index("]", position)
            pattern += glob[position : end + 1].replace("\\", "\\\\")
            position = end
        else:
            pattern += re.escape(character)
        position += 1
    try:
        return re.fullmatch(pattern + ")" * depth, path, re.DOTALL) is not None
    except re.error:
        return True  # what cannot be read might be anything


def _entries(loaded: str) -> list[str]:
    """Return the directories in which the kernel describes the loaded profiles."""
    return sorted(entry.path for entry in os.scandir(loaded)) if os.path.isdir(loaded) else []


def _bytes(entry: str, kind: str) -> bytes:
    try:
        with open(f"{entry}/{kind}", "rb") as file:
            return file.read()
    except OSError:  # an older kernel has it not, or the profile was unloaded just now
        return b""


def _word(entry: str, kind: str) -> str:
    return _bytes(entry, kind).decode("utf-8", "replace").strip()


def _has_userns(features: str) -> bool:
    return b"userns_create" in _bytes(f"{features}/namespaces", "mask")


def _profile_files(directory: str) -> list[str]:
    """Return the files that apparmor.service loads, without our own."""
    found = [entry for entry in os.scandir(directory) if entry.is_file() and not entry.name.startswith(".")]
    off = set(os.listdir(f"{directory}/disable")) if os.path.isdir(f"{directory}/disable") else set()
    return sorted(entry.path for entry in found if entry.name != os.path.basename(FILE) and entry.name not in off)


def _parser(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run([PARSER, "--quiet", *arguments], capture_output=True, env=ENVIRONMENT, check=False)
    except FileNotFoundError:
        raise ApparmorError(f"{PARSER} is not there [install the package apparmor]") from None


def _must(done: subprocess.CompletedProcess[bytes]) -> None:
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[-500:]
        raise ApparmorError(f"AppArmor's parser ended with {done.returncode}: {said} [see 'journalctl -k']")
