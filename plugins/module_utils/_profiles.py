# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provider profiles: the versioned contract of each CLI, read as data and checked before anything relies on it.

The schema says what each value can be; what one value means for another is checked here.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import typing as t

from . import _schema
from ._capabilities import DENIED, Capability, refuse_variables
from ._declarations import Invalid
from ._profile_schema import PROFILE, VERSION

# The names of one machine, as npm and as compilers spell them.
MACHINES = {"x86_64": "x64", "aarch64": "arm64"}

_CURE = "mend its file"


@dataclasses.dataclass(frozen=True)
class State:
    """A directory below HOME that outlives a session, and what is in it."""

    path: str
    holds: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class KnownCredential:
    """A secret that a slot can declare; by descriptor, variable gets the descriptor's number in its stead."""

    name: str
    by: t.Literal["environment", "descriptor"]
    variable: str | None = None
    refreshable: bool = False


@dataclasses.dataclass(frozen=True)
class LoginExpiry:
    """Where below HOME a login says when it ends, by keys into JSON, and what it is renewed by if that is there."""

    file: str
    at: tuple[str, ...]
    unit: t.Literal["seconds", "milliseconds"]
    renewed_by: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Managed:
    """A file of settings that root owns, seen read-only at target."""

    target: str
    content: str
    reason: str


@dataclasses.dataclass(frozen=True)
class InnerSandbox:
    """The CLI's own sandbox: it has none, or it is disabled or allowed, and how."""

    setting: t.Literal["none", "disabled", "allowed"]
    reason: str
    how: str | None = None


@dataclasses.dataclass(frozen=True)
class Daemon:
    """A process that the CLI likes to leave behind."""

    name: str
    socket: str
    stopped_by: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Certification:
    """What is known of the CLI, of which version and executable, and where the evidence is (beside the profile)."""

    status: t.Literal["certified", "documented", "builtin", "none"] = "none"
    note: str | None = None
    evidence: str | None = None
    cli_version: str | None = None
    sha256: str | None = None


@dataclasses.dataclass(frozen=True)
class Profile:
    """One provider's contract.

    executable, interpreter and path are relative to the provider's tree, absolute for a built-in provider; state,
    renames and transcript are relative to HOME. In paths and names of packages, {machine} and {npm} stand for the
    host's machine; in values of the environment, {home} stands for the session's HOME; in words, {prompt} and {session}
    for what is asked and which conversation. version is the one that the profile pins, `distribution` if built in.
    """

    name: str
    profile_version: int
    summary: str
    kind: str
    version: str
    packages: tuple[tuple[str, str], ...]
    executable: str
    interpreter: str | None = None
    arguments: tuple[str, ...] = ()
    identity: str = "file"
    path: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    denied: tuple[str, ...] = DENIED
    environment: tuple[tuple[str, str], ...] = ()
    state: tuple[State, ...] = ()
    renames: tuple[str, ...] = ()
    transcript: str | None = None
    headless: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    resume_headless: tuple[str, ...] = ()
    login: tuple[str, ...] = ()
    credentials: tuple[KnownCredential, ...] = ()
    login_expiry: LoginExpiry | None = None
    conflicts: tuple[str, ...] = ()
    managed: tuple[Managed, ...] = ()
    inner_sandbox: InnerSandbox | None = None
    daemons: tuple[Daemon, ...] = ()
    network: tuple[str, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    certification: Certification = Certification()
    reasons: t.Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

    def of_machine(self, machine: str | None = None) -> Profile:
        """Return the profile with paths for a machine, as uname -m says it; Invalid if the provider has none for it."""
        machine = machine or platform.machine()
        paths = (self.executable, self.interpreter or "", *self.path, *(name for name, _unused in self.packages))
        if machine not in MACHINES and any("{" in path for path in paths):
            raise Invalid(f"provider '{self.name}' has no build for {machine}; it can be {' or '.join(MACHINES)}")

        def on(path: str) -> str:
            return path.replace("{machine}", machine).replace("{npm}", MACHINES.get(machine, ""))

        return dataclasses.replace(
            self,
            packages=tuple((on(name), version) for name, version in self.packages),
            executable=on(self.executable),
            interpreter=on(self.interpreter) if self.interpreter else None,
            path=tuple(map(on, self.path)),
        )


def parse(declared: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, Profile]:
    """Return the profiles by name; Invalid names the first value that cannot be. A later one of a name wins."""
    profiles = [_profile(entry, f"profiles[{index}]") for index, entry in enumerate(declared)]
    return {profile.name: profile for profile in profiles}


def exact_version(version: t.Any, where: str) -> str:
    """Return the version once sure that it is an exact one; ranges and tags are refused, they change by themselves."""
    _schema.check(version, VERSION, where, "pin it")
    return str(version)


def named(name: str, profiles: t.Mapping[str, Profile], where: str) -> Profile:
    """Return the profile of a name; Invalid if there is none."""
    if name not in profiles:
        known = ", ".join(sorted(profiles))
        raise Invalid(f"{where} is '{name}'; it can be {known} [add a profile of that name to the site's own]")
    return profiles[name]


def _profile(entry: t.Any, where: str) -> Profile:
    if isinstance(entry, dict) and not any(_schema.faults(entry.get("name"), PROFILE["properties"]["name"])):
        where = f"profile '{entry['name']}'"
    _schema.check(entry, PROFILE, where, _CURE)
    install = entry["install"]
    kind = install["kind"]
    packages = tuple((package["name"], package["version"]) for package in install.get("packages", ()))
    if (bool(packages), "version" in install) != (kind == "npm", kind == "archive"):
        needs = {"npm": "packages and no version", "archive": "a version and no packages"}.get(kind, "neither")
        raise Invalid(f"{where}: install of kind {kind} must have {needs} [{_CURE}]")
    made: dict[str, t.Any] = {
        "kind": kind,
        "version": packages[0][1] if packages else install.get("version", "distribution"),
        "packages": packages,
        "identity": entry.get("identity", "distribution" if kind == "builtin" else "file"),
        "denied": tuple(sorted({*DENIED, *entry.get("denied", ())})),
        "environment": tuple(sorted(entry.get("environment", {}).items())),
        "capabilities": tuple(
            Capability(key, **_frozen(words)) for key, words in sorted(entry.get("capabilities", {}).items())
        ),
    }
    for key, several in (("state", State), ("credentials", KnownCredential), ("daemons", Daemon)):
        made[key] = tuple(several(**_frozen(each)) for each in entry.get(key, ()))
    made["managed"] = tuple(_managed(each, where) for each in entry.get("managed", ()))
    singles = (("inner_sandbox", InnerSandbox), ("certification", Certification), ("login_expiry", LoginExpiry))
    for key, one in singles:
        if key in entry:
            made[key] = one(**_frozen(entry[key]))
    profile = Profile(**{key: value for key, value in _frozen(entry).items() if key != "install"} | made)
    _check(profile, where)
    return profile


def _frozen(mapping: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in mapping.items()}


def _managed(entry: t.Mapping[str, t.Any], where: str) -> Managed:
    content = entry["content"]
    if not isinstance(content, str):
        try:
            content = json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise Invalid(f"{where}: managed {entry['target']} cannot be JSON: {error} [{_CURE}]") from None
    return Managed(entry["target"], content, entry["reason"])


def _check(profile: Profile, where: str) -> None:
    """Raise Invalid for the first thing that contradicts another."""
    builtin = profile.kind == "builtin"
    identities = ("distribution",) if builtin else ("file", "tree")
    if profile.identity not in identities:
        can = " or ".join(identities)
        raise Invalid(f"{where}: identity is '{profile.identity}'; for kind {profile.kind} it can be {can} [{_CURE}]")
    for key, fault in _faults(profile):
        raise Invalid(f"{where}: {key} {fault} [{_CURE}]")
    variables = {
        "passed": profile.passed,
        "environment": [name for name, _unused in profile.environment],
        "credentials": [name for each in profile.credentials for name in (each.name, each.variable) if name],
    }
    for key, names in variables.items():
        refuse_variables(names, profile.denied, f"{where}: {key}")


def _faults(profile: Profile) -> t.Iterator[tuple[str, str]]:
    """Yield the keys whose values contradict others, and how."""
    builtin = profile.kind == "builtin"
    paths = {"executable": [profile.executable], "interpreter": [profile.interpreter or ""], "path": profile.path}
    for key, several in paths.items():
        for path in filter(None, several):
            if path.startswith("/") is not builtin:
                yield key, f"is '{path}'; it must be a plain {'absolute' if builtin else 'relative'} path"
    if not builtin and not profile.reasons:
        yield "reasons", "must say why the slot needs: tree"

    state = [each.path for each in profile.state]
    for index, path in enumerate(state):
        if any(f"{path}/".startswith(f"{other}/") for other in state[:index] + state[index + 1 :]):
            yield "state", f"has '{path}' in another of its directories, or twice; each must stand by itself"
    for path in profile.renames:
        if not any(path.startswith(f"{directory}/") for directory in state):
            yield "renames", f"has '{path}', which is in no directory of state; it could not be replaced"
    login = profile.login_expiry
    if login and not any(login.file.startswith(f"{directory}/") for directory in state):
        yield (
            "login_expiry",
            f"has '{login.file}', which is in no directory of state; no login outlives a session there",
        )

    words = {"headless": ["{prompt}"], "resume": ["{session}"], "resume_headless": ["{prompt}", "{session}"]}
    for key, placeholders in words.items():
        said = sorted(word for word in getattr(profile, key) if word in ("{prompt}", "{session}"))
        if getattr(profile, key) and said != placeholders:
            yield key, f"must have {' and '.join(placeholders)} once each, as words of their own"

    names = [each.name for each in profile.credentials]
    if len(set(names)) < len(names):
        yield "credentials", "names one twice"
    for each in profile.credentials:
        if (each.by == "descriptor") is not bool(each.variable):
            yield "credentials", f"has {each.name} by {each.by}; a variable goes with a descriptor, and only with it"
    sandbox = profile.inner_sandbox
    if sandbox and (sandbox.setting == "none") is bool(sandbox.how):
        yield "inner_sandbox", "must say how, unless its setting is none"

    for key, some, every in (
        ("conflicts", profile.conflicts, names),
        *((f"capabilities.{each.key}.state", each.state, state) for each in profile.capabilities),
        *((f"capabilities.{each.key}.credentials", each.credentials, names) for each in profile.capabilities),
        *((f"capabilities.{each.key}.hosts", each.hosts, profile.network) for each in profile.capabilities),
    ):
        for value in some:
            if value not in every:
                yield key, f"has '{value}'; it can have {', '.join(every) or 'nothing, as the profile has none'}"
    certification = profile.certification
    if certification.status == "builtin" and not builtin:
        yield "certification", f"is 'builtin'; for kind {profile.kind} it cannot be"
    if certification.status == "certified":
        if not (certification.evidence and certification.sha256):
            yield "certification", "is 'certified'; that needs evidence and sha256"
        if certification.cli_version != profile.version:
            yield "certification", f"is of version {certification.cli_version}; the profile pins {profile.version}"
