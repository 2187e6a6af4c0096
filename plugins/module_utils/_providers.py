# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provider trees on a host: laid beside the old ones, verified as read back, chosen by a record of root's."""

from __future__ import annotations

import json
import os
import typing as t

from . import _files, _layout, _manifest, _profiles
from ._declarations import Invalid
from ._host import Identity, Provider
from ._launch import stamp_of
from ._manifest import MANIFEST
from ._refusals import Refusal

UNKNOWN = "unknown"
CURE = "run the role confined.slots.providers with it"


class Installed(t.NamedTuple):
    """The tree that a provider's sessions use: version, and digest of its manifest."""

    version: str
    tree: str


def record_of(root: str = _layout.OPT) -> dict[str, Installed]:
    """Return the providers that are installed, as the record says."""
    data = _files.read(f"{root}/providers.json") if os.path.isdir(root) else None
    try:
        entries = json.loads(data or b"{}")
        return {name: Installed(str(entry["version"]), str(entry["tree"])) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def on_host(
    name: str, profiles: t.Sequence[t.Mapping[str, t.Any]], root: str = _layout.OPT, *, predict: bool = False
) -> Provider:
    """Return a provider as it stands on this host, its executables verified.

    Invalid if there is no such profile, or if it is not installed as recorded; with predict (a check run) one that is
    not installed yet is given with unknown digests.
    """
    profile = _profiles.named(name, _profiles.parse(profiles), "provider").of_machine()
    if profile.kind == "builtin":
        words = [profile.interpreter, profile.executable] if profile.interpreter else [profile.executable]
        identities = tuple(Identity(word, "distribution") for word in words if word)
        return _provider(profile, profile.version, "", identities)
    installed = record_of(root).get(name)
    if installed is None:
        if not predict:
            raise Invalid(f"provider '{name}' is not installed on this host [{CURE}]")
        installed = Installed(profile.version, UNKNOWN)
    directory = f"{root}/providers/{name}/{installed.version}"
    paths = tuple(path for path in (profile.interpreter, profile.executable) if path)
    if installed.tree == UNKNOWN:
        unknown = tuple(Identity(f"{directory}/{path}", UNKNOWN) for path in paths)
        return _provider(profile, installed.version, directory, unknown)
    try:
        listed = _manifest.verify_tree(directory, installed.tree, paths)
        digests = {_manifest.resolve(path, listed): None for path in paths}
    except (Refusal, _manifest.Untrusted) as error:
        raise Invalid(f"provider '{name}': {error} [{CURE}]") from None
    found = [(f"{directory}/{path}", listed[path][5:]) for path in digests]
    if profile.identity == "tree":
        found.append((f"{directory}/{MANIFEST}", installed.tree))
    identities = tuple(Identity(path, digest, stamp_of(os.stat(path))) for path, digest in found)
    return _provider(profile, installed.version, directory, identities)


def _provider(profile: _profiles.Profile, version: str, directory: str, identities: tuple[Identity, ...]) -> Provider:
    prefix = f"{directory}/" if directory else ""
    words = (profile.interpreter, profile.executable) if profile.interpreter else (profile.executable,)
    return Provider(
        name=profile.name,
        version=version,
        profile_version=profile.profile_version,
        command=(*(f"{prefix}{word}" for word in words), *profile.arguments),
        identities=identities,
        trees=((directory, profile.reasons["tree"]),) if directory else (),
        environment=profile.environment,
        passed=profile.passed,
        path=tuple(f"{prefix}{path}" for path in profile.path),
    )
