# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the compiler makes of declarations, and what it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import types
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import (
    _host,
    _launch,
    _mounts,
    _plan,
    _policy,
    _profiles,
    _strict,
)
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid, parse

ACCOUNT = _host.Account(20001, 20001)
BASH = _profiles.Profile("shell", 1, "bash", "builtin", "distribution", (), "/bin/bash", identity="distribution")
SHELL = _host.Provider(BASH, "distribution", ("/bin/bash",), (_host.Identity("/bin/bash", "distribution"),))
MERGED = (("/bin", "usr/bin"), ("/sbin", "usr/sbin"), ("/lib", "usr/lib"), ("/lib64", "usr/lib64"))
HOST = _host.Host(MERGED, frozenset({"/etc/ssl/certs", "/etc/localtime", "/etc/resolv.conf"}), "/etc/resolv.conf", {})
GOOD = _host.Source("/srv/reference", "directory", "/srv/reference")


def compiled(host: _host.Host = HOST, **declared: t.Any) -> _policy.Policy:
    """Return the policy of one slot called coder."""
    (slot,) = parse([{"name": "coder", "mode": "isolated", **declared}])
    return _policy.compile_all(slot, ACCOUNT, SHELL, host, {})[0]


def with_source(source: _host.Source) -> _host.Host:
    """Return a host on which the operator's bind is as described."""
    return dataclasses.replace(HOST, sources={source.path: source})


def bind(**changed: t.Any) -> list[dict[str, t.Any]]:
    """Return one declared bind."""
    return [{"source": "/srv/reference", "reason": "the team's reference code", **changed}]


def test_every_mount_has_a_reason() -> None:
    assert all(mount.reason for mount in compiled().mounts)


def test_a_mount_without_a_reason_does_not_compile() -> None:
    with pytest.raises(Invalid, match="has no reason"):
        _mounts.Mount("bind", "/x", " ", "/x", "ro")


def test_the_root_is_sealed_last() -> None:
    assert [mount.target for mount in compiled().mounts][-1] == "/"


def test_every_tmpfs_has_a_size() -> None:
    assert all(mount.size > 0 for mount in compiled().mounts if mount.kind == "tmpfs")


@pytest.mark.parametrize(
    ("roots", "kinds"),
    [
        pytest.param(
            MERGED, {"/bin": "symlink", "/sbin": "symlink", "/lib": "symlink", "/lib64": "symlink"}, id="merged"
        ),
        pytest.param(
            (("/bin", ""), ("/sbin", ""), ("/lib", ""), ("/lib64", "")),
            {"/bin": "bind", "/sbin": "bind", "/lib": "bind", "/lib64": "bind"},
            id="split",
        ),
        pytest.param((("/bin", "usr/bin"), ("/lib", "usr/lib")), {"/bin": "symlink", "/lib": "symlink"}, id="aarch64"),
    ],
)
def test_bw_09_each_of_the_roots_is_a_link_or_a_bind_or_nothing(
    roots: tuple[tuple[str, str], ...], kinds: dict[str, str]
) -> None:
    mounts = compiled(dataclasses.replace(HOST, roots=roots)).mounts
    assert {mount.target: mount.kind for mount in mounts if mount.target in _host.ROOTS} == kinds


def test_bw_09_the_survey_tells_links_from_directories(tmp_path: pathlib.Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").mkdir()
    assert _host.survey([], [], str(tmp_path)).roots == (("/bin", "usr/bin"), ("/lib", ""))


def test_bw_10_a_resolver_that_leads_nowhere_is_named_with_its_links(tmp_path: pathlib.Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/resolv.conf").symlink_to("static/resolv.conf")
    (tmp_path / "etc/static").mkdir()
    (tmp_path / "etc/static/resolv.conf").symlink_to("/run/nothing/resolv.conf")
    host = _host.survey([], [path for path, _unused in (*_strict.SYSTEM_FILES, _strict.RESOLVER)], str(tmp_path))
    with pytest.raises(Invalid, match=r"resolv\.conf -> .*static/resolv\.conf -> /run/nothing/resolv\.conf"):
        compiled(host, network="host")


def test_bw_10_a_slot_without_network_gets_no_resolver() -> None:
    assert "/etc/resolv.conf" not in {mount.target for mount in compiled(network="none").mounts}
    assert "/etc/resolv.conf" in {mount.target for mount in compiled(network="host").mounts}


def test_network_none_takes_the_network_away() -> None:
    assert ("flag", "--unshare-net") in _plan.load(compiled(network="none").plan())
    assert ("flag", "--unshare-net") not in _plan.load(compiled(network="host").plan())


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(_host.Source("/srv/reference", "missing"), "does not exist", id="missing"),
        pytest.param(
            _host.Source("/srv/reference", "directory", "/data/reference"), "write /data/reference", id="through-a-link"
        ),
        pytest.param(
            _host.Source("/srv/reference", "directory", "/srv/reference", socket="/srv/reference/s"),
            "is a socket",
            id="ES-01-socket",
        ),
        pytest.param(
            _host.Source("/srv/reference", "directory", "/srv/reference", "/srv"),
            "can be written by others",
            id="ES-10-parent",
        ),
        pytest.param(
            _host.Source("/srv/reference", "other", "/srv/reference"), "only files and directories", id="device"
        ),
    ],
)
def test_a_bind_that_would_open_the_host_is_refused(source: _host.Source, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        compiled(with_source(source), binds=bind())


@pytest.mark.parametrize(
    "path", [*_mounts.FORBIDDEN, *(f"{path}/x" for path in _mounts.FORBIDDEN), "/", "/etc", "/var", "/opt", "/var/lib"]
)
def test_es_01_no_bind_of_runtime_secrets_or_homes(path: str) -> None:
    with pytest.raises(Invalid, match="nothing at, in or around"):
        compiled(with_source(_host.Source(path, "directory", path)), binds=bind(source=path, target="/srv/x"))


def test_cr_03_a_single_file_is_not_bound_writable() -> None:
    source = _host.Source("/srv/reference", "file", "/srv/reference")
    with pytest.raises(Invalid, match="bind its directory"):
        compiled(with_source(source), binds=bind(mode="rw"))
    compiled(with_source(source), binds=bind(mode="ro"))


@pytest.mark.parametrize(
    "target",
    [
        "/usr/share/x",
        "/tmp/x",
        "/etc/passwd",
        "/proc/x",
        "/var",
        "/",
        "/var/lib/confined-slots/slots/coder/workspaces/main/x",
        "/dev/x",
    ],
)
def test_no_mount_point_hides_another_or_lies_below_what_the_slot_can_write(target: str) -> None:
    """CVE-2026-87766 needs a mount point below a writable path."""
    with pytest.raises(Invalid, match=r"lies below|two mounts"):
        compiled(with_source(GOOD), binds=bind(target=target))


def test_es_01_a_socket_is_found_in_a_tree(tmp_path: pathlib.Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "deep/er/s"))
        assert _host.look_at(str(tmp_path)).socket == str(tmp_path / "deep/er/s")


def test_a_tree_that_changes_while_it_is_looked_through_is_one_of_which_nobody_knows(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stat(**_words: t.Any) -> t.NoReturn:
        raise FileNotFoundError(2, "No such file or directory")

    entry = types.SimpleNamespace(path="x", stat=stat)
    monkeypatch.setattr(_host.os, "scandir", lambda _path: contextlib.nullcontext([entry]))
    assert "nobody knows what" in _host.look_at(str(tmp_path)).socket


def test_a_directory_of_any_size_is_read_only_as_far_as_it_is_looked_through(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (file,) = os.scandir(tmp_path)
    monkeypatch.setattr(_host, "MOST_ENTRIES", 10)
    entries = iter([file] * 100)
    monkeypatch.setattr(_host.os, "scandir", lambda _path: contextlib.nullcontext(entries))
    assert "too many to look through" in _host.look_at(str(tmp_path)).socket
    assert len(list(entries)) == 89


def test_the_policy_for_people_has_the_fingerprint_of_what_it_shows() -> None:
    policy = compiled(workspaces=["main", "review"])
    shown = json.loads(policy.as_text())
    fingerprint = shown.pop("fingerprint")
    assert fingerprint == "sha256:" + _plan.sha256(json.dumps(shown, sort_keys=True).encode())


@pytest.mark.parametrize(
    "changed", [{"network": "host"}, {"workspaces": ["other"]}, {"enabled": False}, {"resources": {"tmp_size": "2G"}}]
)
def test_any_change_of_what_is_allowed_changes_the_fingerprint(changed: dict[str, t.Any]) -> None:
    assert compiled().fingerprint() != compiled(**changed).fingerprint()


def test_no_secret_reaches_policy_or_plan() -> None:
    policy = compiled(credential={"name": "API_KEY", "value": "s3cret-value"}, console_password_hash="$6$" + "a" * 40)
    assert b"s3cret-value" not in policy.plan() + policy.as_text().encode()
    assert b"$6$" not in policy.plan()
    assert ("credential", "API_KEY", "") in _plan.load(policy.plan())


NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,22}", fullmatch=True)
WORKSPACES = st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True), min_size=1, unique=True)


@hypothesis.given(NAMES, WORKSPACES)
def test_every_declaration_that_is_valid_compiles_to_a_plan_the_launcher_reads(
    name: str, workspaces: list[str]
) -> None:
    (slot,) = parse([{"name": name, "mode": "isolated", "workspaces": workspaces}])
    records = _plan.load(_policy.compile_all(slot, ACCOUNT, SHELL, HOST, {})[0].plan())
    for workspace in workspaces:
        path = _launch.workspace_path(records, workspace)
        options = _launch.bwrap_options(records, path, "s", {})
        assert options[options.index("--bind") :].count(path) >= 2
        others = {_launch.workspace_path(records, other) for other in workspaces if other != workspace}
        assert not others.intersection(options)


def test_a_providers_variable_can_name_the_home() -> None:
    profile = dataclasses.replace(BASH, environment=(("TOOL_HOME", "{home}/.tool"),))
    (slot,) = parse([{"name": "coder", "mode": "isolated"}])
    provider = dataclasses.replace(SHELL, profile=profile)
    environment = dict(_policy.compile_policy(slot, ACCOUNT, provider, HOST, {}).environment)
    assert environment["TOOL_HOME"] == environment["HOME"] + "/.tool"


def test_only_approved_names_pass_from_the_callers_environment() -> None:
    """ES-08: the filter names what passes, so that an unheard-of variable does not."""
    caller = {
        "TERM": "xterm",
        "LD_PRELOAD": "/x.so",
        "SSH_AUTH_SOCK": "/s",
        "DOCKER_HOST": "d",
        "TMUX": "t",
        "BASH_ENV": "/e",
        "A\nB": "c",
    }
    options = _launch.bwrap_options(_plan.load(compiled().plan()), "/w", "s", caller)
    names = {options[index + 1] for index, word in enumerate(options) if word == "--setenv"}
    assert names == {
        "CONFINED_SLOT",
        "HOME",
        "LANG",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TMPDIR",
        "USER",
        "TERM",
        "XDG_RUNTIME_DIR",
        "CONFINED_SESSION",
    }
    assert options[0] == "--clearenv"
