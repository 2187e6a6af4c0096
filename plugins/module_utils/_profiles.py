# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provider profiles: the versioned contract of each CLI, read as data and checked before anything relies on it."""

from __future__ import annotations

import dataclasses
import platform
import re
import typing as t

from ._declarations import Invalid

KINDS = ("builtin", "npm")

# The names of one machine, as npm and as compilers spell them.
MACHINES = {"x86_64": "x64", "aarch64": "arm64"}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
_PACKAGE = re.compile(r"(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*\Z")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}(?:[-+][0-9A-Za-z.-]+)?\Z")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*\Z")
_HOST = re.compile(r"[a-z0-9][a-z0-9.-]*:[1-9][0-9]{0,4}\Z")
_REASONS = ("tree",)


@dataclasses.dataclass(frozen=True)
class Profile:
    """One provider's contract.

    executable, interpreter and path are relative to the provider's tree, absolute for a built-in provider; state is
    relative to HOME. In paths and names of packages, {machine} and {npm} stand for the host's machine.
    """

    name: str
    profile_version: int
    summary: str
    kind: str
    packages: tuple[tuple[str, str], ...]
    executable: str
    interpreter: str | None = None
    arguments: tuple[str, ...] = ()
    identity: str = "file"
    state: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    passed: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    reasons: t.Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def version(self) -> str:
        """Return the version that the profile pins, `distribution` for a built-in provider."""
        return self.packages[0][1] if self.packages else "distribution"

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


_KEYS = {field.name for field in dataclasses.fields(Profile)} - {"kind", "packages"} | {"install"}


def parse(declared: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, Profile]:
    """Return the profiles by name; Invalid names the first value that cannot be. A later one of a name wins."""
    profiles = [_profile(entry, f"profiles[{index}]") for index, entry in enumerate(declared)]
    return {profile.name: profile for profile in profiles}


def exact_version(version: t.Any, where: str) -> str:
    """Return the version once sure that it is an exact one; ranges and tags are refused, they change by themselves."""
    if not isinstance(version, str) or not _VERSION.match(version):
        raise Invalid(f"{where} is {version!r:.80}; it must be one exact version such as 1.2.3 [pin it]")
    return version


def package_name(name: t.Any, where: str) -> str:
    """Return the name of an npm package once sure that npm cannot take it for an option, a path or an address."""
    return _matching(name, _PACKAGE, where, "an npm package's name such as @scope/name")


def named(name: str, profiles: t.Mapping[str, Profile], where: str) -> Profile:
    """Return the profile of a name; Invalid if there is none."""
    if name not in profiles:
        known = ", ".join(sorted(profiles))
        raise Invalid(f"{where} is '{name}'; it can be {known} [add a profile of that name to the site's own]")
    return profiles[name]


def _profile(entry: t.Any, where: str) -> Profile:
    if not isinstance(entry, dict):
        raise Invalid(f"{where} is {entry!r:.80}; it must be a mapping")
    name = _matching(entry.get("name"), _NAME, f"{where}.name", "a-z, 0-9 and _, a letter first")
    where = f"profile '{name}'"
    unknown = sorted(map(str, set(entry) - _KEYS))
    if unknown:
        raise Invalid(f"{where} has {unknown[0]!r:.80}; it can have {', '.join(sorted(_KEYS))} [mend its file]")
    number = entry.get("profile_version")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise Invalid(f"{where}: profile_version is {number!r:.80}; it must be a whole number from 1")
    kind, packages = _install(entry.get("install"), where)
    builtin = kind == "builtin"
    identity = entry.get("identity", "distribution" if builtin else "file")
    allowed = ("distribution",) if builtin else ("file", "tree")
    if identity not in allowed:
        rule = f"with install.kind {kind} it can be {' or '.join(allowed)}"
        raise Invalid(f"{where}: identity is {identity!r:.80}; {rule}")
    interpreter = entry.get("interpreter")
    return Profile(
        name=name,
        profile_version=number,
        summary=_text(entry.get("summary"), f"{where}: summary"),
        kind=kind,
        packages=packages,
        executable=_path(entry.get("executable"), f"{where}: executable", absolute=builtin),
        interpreter=None if interpreter is None else _path(interpreter, f"{where}: interpreter", absolute=builtin),
        arguments=_texts(entry, "arguments", where),
        identity=identity,
        state=tuple(_path(path, f"{where}: state") for path in _list(entry, "state", where)),
        environment=_environment(entry.get("environment"), f"{where}: environment"),
        passed=tuple(
            _matching(one, _VARIABLE, f"{where}: passed", "names of variables") for one in _list(entry, "passed", where)
        ),
        path=tuple(_path(path, f"{where}: path", absolute=builtin) for path in _list(entry, "path", where)),
        network=tuple(
            _matching(one, _HOST, f"{where}: network", "HOST:PORT") for one in _list(entry, "network", where)
        ),
        reasons=_reasons(entry.get("reasons"), where, builtin),
    )


def _install(install: t.Any, where: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    kind = install.get("kind") if isinstance(install, dict) else None
    if kind not in KINDS:
        raise Invalid(f"{where}: install.kind is {kind!r:.80}; it can be {' or '.join(KINDS)}")
    declared = install.get("packages") or []
    if not isinstance(declared, list) or bool(declared) is (kind == "builtin"):
        raise Invalid(f"{where}: install.packages must list packages for kind npm, and none for kind builtin")
    packages = []
    for index, package in enumerate(declared):
        at = f"{where}: install.packages[{index}]"
        if not isinstance(package, dict):
            raise Invalid(f"{at} is {package!r:.80}; it must have name and version")
        version = exact_version(package.get("version"), f"{at}.version")
        name = _text(package.get("name"), f"{at}.name")
        package_name(name.replace("{npm}", "x64").replace("{machine}", "x86_64"), f"{at}.name")
        packages.append((name, version))
    return kind, tuple(packages)


def _reasons(reasons: t.Any, where: str, builtin: bool) -> dict[str, str]:
    if builtin and not reasons:
        return {}
    if not isinstance(reasons, dict) or set(reasons) != set(_REASONS):
        raise Invalid(f"{where}: reasons must say why the slot needs: {', '.join(_REASONS)}")
    return {key: _text(value, f"{where}: reasons.{key}") for key, value in reasons.items()}


def _environment(environment: t.Any, where: str) -> tuple[tuple[str, str], ...]:
    if environment is None:
        return ()
    if not isinstance(environment, dict):
        raise Invalid(f"{where} is {environment!r:.80}; it must map names to values")
    return tuple(
        (_matching(name, _VARIABLE, where, "names of variables"), _text(value, f"{where}.{name}"))
        for name, value in sorted(environment.items())
    )


def _list(entry: t.Mapping[str, t.Any], key: str, where: str) -> list[t.Any]:
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Invalid(f"{where}: {key} is {value!r:.80}; it must be a list")
    return value


def _texts(entry: t.Mapping[str, t.Any], key: str, where: str) -> tuple[str, ...]:
    return tuple(_text(value, f"{where}: {key}[{index}]") for index, value in enumerate(_list(entry, key, where)))


def _text(value: t.Any, where: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise Invalid(f"{where} is {value!r:.80}; it must be one line of text [quote numbers and words like yes]")
    return value


def _path(value: t.Any, where: str, *, absolute: bool = False) -> str:
    path = _text(value, where)
    parts = path[1:].split("/") if absolute else path.split("/")
    if path.startswith("/") is not absolute or any(part in ("", ".", "..") for part in parts):
        kind = "absolute" if absolute else "relative"
        raise Invalid(f"{where} is {path!r:.120}; it must be a plain {kind} path, without '.', '..' or '//'")
    return path


def _matching(value: t.Any, pattern: re.Pattern[str], where: str, rule: str) -> str:
    if not isinstance(value, str) or not pattern.match(value):
        raise Invalid(f"{where} is {value!r:.80}; it can be {rule}")
    return value
