# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What compatibility and verified mode are made of, and what they refuse."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pwd
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import (
    _compatibility,
    _host,
    _layout,
    _plan,
    _policy,
)
from ansible_collections.confined.slots.plugins.module_utils._declarations import MODES, Invalid
from ansible_collections.confined.slots.plugins.module_utils._mounts import Mount

from .compiling import HOME, PRIVATE, PROFILE, THERE, TREE, as_read, compiled, host, provider, source

ALL_OWN = ["use_fake", "use_fake_login", "use_fake_key"]


def mounts(mode: str, **declared: t.Any) -> tuple[Mount, ...]:
    """Return the mounts of the slot's own policy."""
    return compiled(mode, **declared)[0].mounts


def at(found: t.Iterable[Mount], target: str) -> Mount:
    """Return the one mount at target."""
    (mount,) = [each for each in found if each.target == target and each.kind != "seal"]
    return mount


def targets(found: t.Iterable[Mount], kind: str) -> list[str]:
    """Return where the mounts of a kind are."""
    return [mount.target for mount in found if mount.kind == kind]


# Compatibility


@pytest.mark.parametrize("path", sorted(THERE - {"/srv/secret", "/srv/secret.key"}))
def test_each_place_known_to_hold_secrets_is_masked_and_sealed(path: str) -> None:
    found = mounts("compatibility")
    assert at(found, path).kind == "mask"
    assert path in targets(found, "seal")


@pytest.mark.parametrize("path", [path for path, _unused in _compatibility.MASKED])
def test_a_place_that_is_not_there_or_is_a_link_is_not_masked_by_a_mount_point_that_is_not_there(path: str) -> None:
    for changed in ({"kind": "missing", "real": ""}, {"real": "/elsewhere"}):
        masks = {**host().masks, path: source(path, **changed)}
        assert path not in targets(mounts("compatibility", on=host(masks=masks)), "mask")


def test_the_root_of_the_host_is_read_only_and_the_only_writable_binds_are_the_slots_own() -> None:
    found = mounts("compatibility")
    assert (found[0].kind, found[0].target, found[0].mode) == ("bind", "/", "ro")
    assert [mount.target for mount in found if mount.kind == "bind" and mount.mode != "ro"] == [HOME]


def test_every_way_to_a_mask_in_the_slots_own_home_is_held_and_stamped() -> None:
    found = mounts("compatibility")
    assert (at(found, f"{HOME}/.config").kind, at(found, f"{HOME}/.config").stamp) == ("hold", "1:2")
    assert at(found, f"{HOME}/.config/gcloud").content == "directory"
    assert (at(found, f"{HOME}/.netrc").content, at(found, f"{HOME}/.netrc").stamp) == ("file", "1:4")
    records = _plan.load(compiled("compatibility")[0].plan())
    assert ("hold", "1:2", f"{HOME}/.config") in records
    assert ("mask", "directory", "1:3", f"{HOME}/.config/gcloud") in records


def test_what_is_masked_in_home_comes_after_the_home_which_would_cover_it() -> None:
    order = [mount.target for mount in mounts("compatibility")]
    assert order.index(HOME) < order.index(f"{HOME}/.config") < order.index(f"{HOME}/.config/gcloud")


def test_no_mask_comes_after_what_the_session_is_given_below_it() -> None:
    """The last mount wins: a mask that came later would hide a workspace, one that came before must not be covered."""
    found = [mount for mount in mounts("compatibility", network="host") if mount.kind != "seal"]
    for index, mount in enumerate(found):
        if mount.kind == "mask" and not mount.stamp:
            assert not any(each.target.startswith(f"{mount.target}/") for each in found[:index]), mount


def test_the_survey_finds_what_is_masked_and_the_way_to_it_and_follows_no_link(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".config/gcloud").mkdir(parents=True)
    (tmp_path / ".netrc").touch()
    (tmp_path / ".aws").symlink_to(".config")
    (tmp_path / ".docker").mkdir()
    found = list(_host.held(str(tmp_path), _compatibility.MASKED_AT_HOME))
    assert {(pathlib.Path(each.path).name, each.directory, each.masked) for each in found} == {
        (".config", True, False),
        ("gcloud", True, True),
        (".netrc", False, True),
        (".docker", True, True),
    }
    stamp = (tmp_path / ".netrc").lstat()
    assert f"{stamp.st_dev}:{stamp.st_ino}" in {each.inode for each in found}


def test_a_pipe_or_a_socket_in_the_place_of_a_secret_keeps_nobody_waiting(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / ".netrc")
    assert list(_host.held(str(tmp_path), _compatibility.MASKED_AT_HOME)) == []


def test_declared_masks_hide_files_and_directories() -> None:
    found = mounts("compatibility", masks=["/srv/secret", "/srv/secret.key"])
    assert (at(found, "/srv/secret").content, at(found, "/srv/secret.key").content) == ("directory", "file")
    assert "/srv/secret" in targets(found, "seal") and "/srv/secret.key" not in targets(found, "seal")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"kind": "missing", "real": ""}, "does not exist on this host", id="missing"),
        pytest.param({"real": "/data/secret"}, "goes through a link", id="link"),
        pytest.param({"writable_parent": "/srv"}, "/srv can be written by others, who could rename it", id="parent"),
    ],
)
def test_a_mask_that_would_not_hold_is_refused_by_its_number(changed: dict[str, str], said: str) -> None:
    masks = {**host().masks, "/srv/secret": source("/srv/secret", **changed)}
    with pytest.raises(Invalid, match=rf"slot 'coder': masks\[0\] is /srv/secret.*{said}"):
        compiled("compatibility", on=host(masks=masks), masks=["/srv/secret"])


@pytest.mark.parametrize("path", [_layout.workspace("coder", "main"), _layout.state("coder"), HOME])
def test_a_mask_over_what_the_session_is_given_is_refused_and_not_ignored(path: str) -> None:
    masks = {**host().masks, path: source(path)}
    with pytest.raises(Invalid, match="the slot's own, which its sessions are given"):
        compiled("compatibility", on=host(masks=masks), masks=[path])


@pytest.mark.parametrize("path", ["/", "/proc", "/dev", "/tmp"])
def test_a_mask_of_what_every_session_needs_is_refused(path: str) -> None:
    masks = {**host().masks, path: source(path)}
    with pytest.raises(Invalid, match=r"two mounts|lies below"):
        compiled("compatibility", on=host(masks=masks), masks=[path])


@pytest.mark.parametrize("mode", ["isolated", "verified"])
def test_masks_are_refused_where_nothing_is_shown_anyway(mode: str) -> None:
    with pytest.raises(Invalid, match=f"masks are for compatibility mode; {mode} mode shows nothing"):
        compiled(mode, masks=["/srv/secret"])


def test_a_bind_cannot_cover_a_mask() -> None:
    """FACTS: a mask is lost under a later bind of what is above it."""
    binds = [{"source": "/srv", "reason": "r"}]
    with pytest.raises(Invalid, match="lies below the one at /srv"):
        compiled("compatibility", on=host(sources={"/srv": source("/srv")}), masks=["/srv/secret"], binds=binds)


def test_a_bind_with_another_target_is_refused_where_the_hosts_files_stay_in_their_place() -> None:
    binds = [{"source": "/srv/reference", "target": "/srv/other", "reason": "r"}]
    with pytest.raises(Invalid, match="has the target /srv/other; in compatibility mode"):
        compiled("compatibility", binds=binds)


def test_a_resolver_below_a_mask_is_shown_alone_and_none_without_network() -> None:
    assert at(mounts("compatibility", network="host"), "/run/systemd/resolve/stub-resolv.conf").mode == "ro"
    assert not any("resolv" in mount.target for mount in mounts("compatibility", network="none"))


def test_compatibility_says_best_effort_in_its_policy_and_the_others_do_not() -> None:
    notes = {mode: compiled(mode)[0].as_dict().get("note", "") for mode in MODES}
    assert notes == {"compatibility": _compatibility.NOTE, "isolated": "", "verified": ""}
    assert "best effort" in _compatibility.NOTE


def test_homes_of_people_and_services_that_log_in_are_masked_and_those_of_slots_and_the_system_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def person(name: str, uid: int, home: str, shell: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", uid, uid, "", home, shell))

    people = [
        person("root", 0, "/root", "/bin/bash"),
        person("bob", 1000, "/data/people/bob/", "/bin/bash"),
        person("postgres", 70, "/var/lib/postgresql", "/bin/bash"),
        person("daemon", 1, "/usr/sbin", "/usr/sbin/nologin"),
        person("sync", 4, "/bin", "/bin/sync"),
        person("odd", 5, "/", "/bin/sh"),
        person("slot-coder", 20001, HOME, "/bin/bash"),
    ]
    monkeypatch.setattr(pwd, "getpwall", lambda: people)
    assert list(_host._homes()) == ["/data/people/bob", "/var/lib/postgresql"]


# Verified


def test_home_is_in_memory_and_only_the_state_of_granted_capabilities_stays() -> None:
    found = mounts("verified", capabilities=ALL_OWN)
    assert (at(found, PRIVATE).kind, at(found, PRIVATE).size) == ("home", 1 << 30)
    assert (at(found, f"{PRIVATE}/.fake").source, at(found, f"{PRIVATE}/.fake").mode) == (
        _layout.approved_state("coder", "fake", ".fake"),
        "rw",
    )
    assert not any(".cache/fake" in mount.target for mount in found), "no capability has it"
    without = mounts("verified", capabilities=["use_fake"])
    assert not any(mount.target.startswith(f"{PRIVATE}/") for mount in without)
    assert not any(mount.source.startswith(_layout.state("coder")) for mount in without)


def test_the_home_in_memory_is_the_slots_alone() -> None:
    assert ("tmpfs", "0700", str(1 << 30), PRIVATE) in _plan.load(compiled("verified")[0].plan())


def test_state_that_stays_must_be_the_slots_own_directory_at_launch() -> None:
    records = _plan.load(compiled("verified")[0].plan())
    assert ("own", _layout.approved_state("coder", "fake", ".fake")) in records


def test_what_is_above_approved_state_is_not_the_slots() -> None:
    """CVE-2026-87766: a mount point or a source below what the slot can write is a trap."""
    assert not _layout.approved_state("coder", "fake", ".fake").startswith((HOME, _layout.private_home("coder", "")))


@pytest.mark.parametrize("mode", MODES)
def test_only_verified_mode_asks_for_an_approval_and_narrower_workspaces_for_that_of_their_slot(mode: str) -> None:
    workspaces = ["main", {"name": "tight", "read_only": True}]
    base, tight = compiled(mode, workspaces=workspaces)
    wanted = [("approved", base.fingerprint())] if mode == "verified" else []
    for policy in (base, tight):
        assert [record for record in _plan.load(policy.plan()) if record[0] == "approved"] == wanted
    assert base.fingerprint() != tight.fingerprint()


@pytest.mark.parametrize("status", ["documented", "none"])
def test_what_is_not_certified_is_refused(status: str) -> None:
    with pytest.raises(Invalid, match=rf"profile of fake is {status}, not certified \[choose isolated"):
        compiled("verified", by=provider(certification={"status": status}))
    compiled("isolated", by=provider(certification={"status": status}))


def test_bw_07_another_version_than_the_certified_one_is_refused() -> None:
    other = dataclasses.replace(provider(), version="1.2.4")
    with pytest.raises(Invalid, match=r"fake 1\.2\.3 was certified, and 1\.2\.4 is installed \[pin 1\.2\.3"):
        compiled("verified", by=other)
    compiled("isolated", by=other)


def test_bw_07_other_bytes_of_the_certified_version_are_refused() -> None:
    other = dataclasses.replace(provider(), identities=(_host.Identity(f"{TREE}/bin/fake", "e" * 64, "1:1:1:1:1"),))
    with pytest.raises(Invalid, match=r"the bytes of fake 1\.2\.3 are not those that were certified"):
        compiled("verified", by=other)
    compiled("isolated", by=other)


def test_a_capability_without_which_nothing_runs_must_be_granted() -> None:
    with pytest.raises(Invalid, match=r"capability-missing: fake cannot run without use_fake, 'Use Fake' \[add it"):
        compiled("verified", capabilities=["use_fake_login"])


def test_a_credential_needs_a_capability_that_has_it() -> None:
    key = {"name": "FAKE_API_KEY", "value": "k"}
    compiled("verified", credential=key, capabilities=ALL_OWN)
    with pytest.raises(Invalid, match="capability-missing: none of its capabilities has the credential FAKE_API_KEY"):
        compiled("verified", credential=key, capabilities=["use_fake", "use_fake_login"])


@pytest.mark.parametrize("mode", MODES)
def test_the_version_of_the_profile_that_is_meant_must_be_the_one_there_is(mode: str) -> None:
    compiled(mode, profile_version=3)
    with pytest.raises(Invalid, match="profile_version is 2, but the profile of fake has version 3"):
        compiled(mode, profile_version=2)


@pytest.mark.parametrize("mode", MODES)
def test_a_second_name_for_the_credential_is_refused_with_those_the_cli_reads(mode: str) -> None:
    with pytest.raises(
        Invalid, match=r"credential\.name is OTHER_KEY, which fake does not read; it can be FAKE_API_KEY"
    ):
        compiled(mode, credential={"name": "OTHER_KEY", "value": "k"})


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_capability_is_refused_with_those_there_are(mode: str) -> None:
    with pytest.raises(Invalid, match=r"capabilities has 'use_everything'; it can have .*use_fake_login"):
        compiled(mode, capabilities=["use_fake", "use_everything"])


@pytest.mark.parametrize("mode", MODES)
def test_a_credential_by_descriptor_stands_with_its_variable_in_the_plan(mode: str) -> None:
    by = provider(capabilities={**PROFILE["capabilities"], "use_token": ASK_TOKEN})
    records = _plan.load(compiled(mode, by=by, credential={"name": "FAKE_TOKEN", "value": "k"})[0].plan())
    assert ("credential", "FAKE_TOKEN", "FAKE_TOKEN_FD") in records


ASK_TOKEN = {"words": "Use the token", "why": "works", "credentials": ["FAKE_TOKEN"]}


@pytest.mark.parametrize("mode", MODES)
def test_a_bind_at_the_root_is_refused(mode: str) -> None:
    binds = [{"source": "/srv/reference", "target": "/", "reason": "r"}]
    with pytest.raises(Invalid, match=r"two mounts|lies below|in compatibility mode"):
        compiled(mode, binds=binds)


# What is noticed in every mode

CHANGES: dict[str, tuple[dict[str, t.Any], dict[str, t.Any]]] = {
    "executable": ({}, {"identities": (_host.Identity(f"{TREE}/bin/fake", "e" * 64, "2:2:2:2:2"),)}),
    "version": ({}, {"version": "1.2.4"}),
    "command": ({"arguments": ["--more"]}, {}),
    "profile version": ({"profile_version": 4}, {}),
    "managed settings": ({"managed": [{**PROFILE["managed"][0], "content": {"sandbox": True}}]}, {}),
    "environment": ({"environment": {"FAKE_HOME": "{home}/.other"}}, {}),
    "passed names": ({"passed": ["LANG", "TZ"]}, {}),
    "headless": ({"headless": ["-x", "--", "{prompt}"]}, {}),
    "resume": ({"resume": ["--again", "{session}"]}, {}),
    "words of a capability": (
        {
            "capabilities": {
                **PROFILE["capabilities"],
                "use_fake": {"words": "Use it", "why": "runs it", "required": True},
            }
        },
        {},
    ),
    "certification": ({"certification": {"status": "documented"}}, {}),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_provider_or_profile_changes_the_fingerprint_or_is_refused(mode: str, change: str) -> None:
    profile, stands = CHANGES[change]
    if (mode, change) == ("compatibility", "managed settings"):
        assert not targets(mounts(mode), "data"), "docs/modes.md: the host's files stand where they are"
        return
    by = provider(**profile)
    by = dataclasses.replace(by, command=(*by.command, *by.profile.arguments), **stands)
    try:
        found = compiled(mode, by=by)[0]
    except Invalid:
        assert mode == "verified"
        return
    assert found.fingerprint() != compiled(mode)[0].fingerprint()


@pytest.mark.parametrize("mode", MODES)
def test_the_policy_for_people_has_the_same_fingerprint_as_the_plan(mode: str) -> None:
    policy = compiled(mode)[0]
    assert (
        as_read(policy)["fingerprint"] == policy.fingerprint() == _plan.value(_plan.load(policy.plan()), "fingerprint")
    )


@pytest.mark.parametrize("mode", MODES)
def test_no_mode_gives_up_a_flag_of_another(mode: str) -> None:
    assert compiled(mode)[0].flags == (*_policy.FLAGS, _policy.NO_NESTING, _policy.NO_NETWORK)
