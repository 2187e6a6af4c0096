# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""AppArmor: what stands on a host and what is to be done (that the kernel obeys is shown in the scenario vm)."""

from __future__ import annotations

import pathlib
import re

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _apparmor, _apparmor_profiles, _userns
from ansible_collections.confined.slots.plugins.module_utils._apparmor import Found, Profile

LAUNCHER = "/opt/confined-slots/releases/1.0.0-0123456789ab/bin/slot-launcher"
OURS = dict.fromkeys(_apparmor_profiles.ALL, "enforce")


def kernel(root: pathlib.Path, name: str, *, mode: str = "enforce", raw: bytes = b"", attach: str = "") -> None:
    """Put a loaded profile below root as the kernel shows it."""
    entry = root / "sys/kernel/security/apparmor/policy/profiles" / f"{name.replace('/', '.')}.1"
    entry.mkdir(parents=True)
    for kind, text in {"name": name, "mode": mode, "attach": attach or "<unknown>"}.items():
        (entry / kind).write_text(f"{text}\n", encoding="utf-8")
    (entry / "raw_data").write_bytes(raw)


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    features = tmp_path / "sys/kernel/security/apparmor/features/namespaces"
    features.mkdir(parents=True)
    (features / "mask").write_text("userns_create\n", encoding="ascii")
    for abi in ("3.0", "4.0", "kernel-5.4-vanilla"):
        (tmp_path / "etc/apparmor.d/abi").mkdir(parents=True, exist_ok=True)
        (tmp_path / "etc/apparmor.d/abi" / abi).touch()
    monkeypatch.setattr(_apparmor._files, "read", lambda path: None)
    return tmp_path


def test_a_kernel_without_apparmor_has_nothing(tmp_path: pathlib.Path) -> None:
    assert _apparmor.find(str(tmp_path)) == Found()
    assert not _apparmor.is_loaded("any", str(tmp_path / "none"))


def test_what_stands_on_a_host_is_found(root: pathlib.Path) -> None:
    kernel(root, _apparmor_profiles.BWRAP, raw=b"b")
    kernel(root, _apparmor_profiles.LAUNCHER, mode="complain", raw=b"l")
    kernel(root, "/usr/bin/man", attach="/usr/bin/man")
    (root / "etc/apparmor.d/vendor").write_text("profile vendor /opt/** flags=(unconfined) { userns, }\n")
    (root / "etc/apparmor.d/disable").mkdir()
    (root / "etc/apparmor.d/off").write_text("profile off /opt/** {\n}\n")
    (root / "etc/apparmor.d/disable/off").touch()
    found = _apparmor.find(str(root))
    assert found.kernel and found.namespaces and found.abis == ("3.0", "4.0", "kernel-5.4-vanilla")
    assert found.loaded == {_apparmor_profiles.BWRAP: "enforce", _apparmor_profiles.LAUNCHER: "complain"}
    assert found.compiled == _apparmor.sha256(b"bl")
    assert [(each.name, each.attachment) for each in found.others] == [
        ("/usr/bin/man", "/usr/bin/man"),
        ("vendor", "/opt/**"),
    ]
    loaded = str(root) + _apparmor.LOADED
    assert _apparmor.is_loaded(_apparmor_profiles.BWRAP, loaded)
    assert not _apparmor.is_loaded(_apparmor_profiles.LAUNCHER, loaded)  # complaining holds nothing


def test_policy_that_was_loaded_in_one_piece_counts_once(root: pathlib.Path) -> None:
    for name in _apparmor_profiles.ALL:
        kernel(root, name, raw=b"all of them")
    assert _apparmor.find(str(root)).compiled == _apparmor.sha256(b"all of them")


@pytest.mark.parametrize(
    ("abis", "rule"),
    [(("3.0", "4.0", "kernel-5.4-vanilla"), True), (("3.0",), False), (("4.0", "5.0"), True)],
    ids=["debian-13", "debian-12", "later"],
)
def test_bw_04_the_highest_abi_of_the_host_that_the_profiles_are_written_for(abis: tuple[str, ...], rule: bool) -> None:
    text = _apparmor.text(Found(True, abis=abis))
    assert ("userns," in text) == rule
    assert f"abi <abi/{'4.0' if rule else '3.0'}>," in text


def test_bw_04_a_host_without_a_known_abi_is_refused_by_name() -> None:
    with pytest.raises(_apparmor.ApparmorError, match=r"apparmor-abi-unsupported: .* has 9\.9; .*\[upgrade"):
        _apparmor.text(Found(True, abis=("9.9",)))


def test_what_runs_inside_gets_no_rule_that_leads_out() -> None:
    """Of those that may make namespaces none is entered but by the exec of a bwrap or of pasta."""
    profiles = dict(
        re.findall(r"^profile (\S+) [^{]*\{\n(.*?)^\}", _apparmor.text(Found(True, abis=("4.0",))), re.S | re.M)
    )
    assert set(profiles) == set(_apparmor_profiles.ALL)
    for name in (_apparmor_profiles.PAYLOAD, _apparmor_profiles.NESTING_PAYLOAD, _apparmor_profiles.ACCOUNT):
        assert "userns" not in profiles[name] and "change_profile" not in profiles[name]
    for name in (_apparmor_profiles.PAYLOAD, _apparmor_profiles.NESTING_PAYLOAD):
        assert not re.search(r"\b(mount|capability|pivot_root|ptrace,)", profiles[name])
    assert [name for name, rules in profiles.items() if "userns," in rules] == [
        _apparmor_profiles.NETWORK,
        _apparmor_profiles.BWRAP,
        _apparmor_profiles.NESTING_BWRAP,
        _apparmor_profiles.INNER_BWRAP,
    ]


def test_the_profiles_attach_to_nothing_that_others_than_root_can_write() -> None:
    attached = re.findall(r"^profile \S+ (/\S+) ", _apparmor.text(Found(True, abis=("4.0",))), re.M)
    assert len(attached) == 3 and all(path.startswith("/opt/confined-slots/") for path in attached)
    assert not any(_apparmor.matches(path, "/usr/bin/bwrap") for path in attached)


def test_what_is_loaded_is_left_and_what_differs_is_loaded_again() -> None:
    same = Found(True, file="text", loaded=OURS, compiled="abc")
    assert _apparmor.plan("text", "abc", same) == []
    for other in (
        Found(True, file="text", loaded=OURS, compiled="def"),
        Found(True, file="text", loaded=OURS | {_apparmor_profiles.PAYLOAD: "complain"}, compiled="abc"),
        Found(True, file="text", compiled=_apparmor.NOTHING),
    ):
        assert [step.action for step in _apparmor.plan("text", "abc", other)] == ["load"]
    silent = Found(True, file="text", loaded=OURS, compiled=_apparmor.NOTHING)
    assert _apparmor.plan("text", "abc", silent) == []  # a kernel that does not tell
    assert [step.action for step in _apparmor.plan("new", "abc", silent)] == ["write", "load"]
    assert [step.action for step in _apparmor.plan(None, "", same)] == ["unload", "remove"]
    assert _apparmor.plan(None, "", Found()) == []


def test_bw_03_a_foreign_profile_for_our_path_or_of_our_name_is_a_conflict() -> None:
    foreign = (
        Profile("/etc/apparmor.d/vendor", "vendor", "/opt/confined-slots/**"),
        Profile("/etc/apparmor.d/copy", _apparmor_profiles.BWRAP, ""),
        Profile("/etc/apparmor.d/bwrap", "bwrap", "/usr/bin/bwrap"),
    )
    said = _apparmor.conflicts(Found(True, others=foreign), [LAUNCHER])
    assert said == [
        f"/etc/apparmor.d/copy has a profile of the name {_apparmor_profiles.BWRAP}",
        f"profile vendor (/etc/apparmor.d/vendor) attaches to /opt/confined-slots/**, as ours does to {LAUNCHER}",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("profile a /usr/bin/a {", ("a", "/usr/bin/a"), id="both"),
        pytest.param("profile a /usr/bin/a flags=(complain) {", ("a", "/usr/bin/a"), id="flags"),
        pytest.param("  profile a { userns, }", ("a", ""), id="one-line"),
        pytest.param("/usr/bin/a {", ("/usr/bin/a", "/usr/bin/a"), id="path-alone"),
        pytest.param("profile /usr/bin/a {", ("/usr/bin/a", "/usr/bin/a"), id="path-as-name"),
        pytest.param('profile "a b" "/usr/bin/a b" {', ("a b", "/usr/bin/a b"), id="quoted"),
        pytest.param("profile a /usr/{bin,sbin}/a flags=(x) {", ("a", "/usr/{bin,sbin}/a"), id="alternatives"),
        pytest.param("@{bin}/a {", ("@{bin}/a", "@{bin}/a"), id="variable"),
        pytest.param("# profile a /usr/bin/a {", None, id="comment"),
        pytest.param("  /usr/bin/a px -> b,", None, id="rule"),
    ],
)
def test_the_profiles_of_a_file_are_seen(line: str, expected: tuple[str, str] | None) -> None:
    assert list(_apparmor.headers(f"abi <abi/4.0>,\n{line}\n")) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("glob", "hit"),
    [
        ("/opt/confined-slots/releases/*/bin/slot-launcher", True),
        ("/opt/**", True),
        ("/**", True),
        ("/opt/*", False),
        ("/opt/confined-slots/releases/*/bin/{slotctl,slot-launcher}", True),
        ("/opt/confined-slots/releases/*/bin/slot-launche?", True),
        ("/opt/confined-slots/releases/*/bin/slot-launche[a-z]", True),
        ("/opt/confined-slots/releases/*/bin/slot-launche[", False),
        ("/usr/bin/bwrap", False),
    ],
)
def test_path_expressions_match_as_the_kernel_reads_them(glob: str, hit: bool) -> None:
    assert _apparmor.matches(glob, LAUNCHER) == hit


def test_user_managers_are_held_where_asked_and_let_go_where_not() -> None:
    path = "/etc/systemd/system/user@20000.service.d/50-confined-slots.conf"
    assert [(step.subject, step.action) for step in _apparmor.plan_managers([20000], {})] == [(path, "write")]
    assert _apparmor.plan_managers([20000], {path: _apparmor.MANAGER}) == []
    assert [step.action for step in _apparmor.plan_managers([], {path: _apparmor.MANAGER})] == ["remove"]


@pytest.mark.parametrize(
    ("found", "profiles", "named"),
    [
        pytest.param({}, False, [], id="a-kernel-that-has-none"),
        pytest.param({_userns.CLONE: 1, _userns.MOST["user"]: 63000, _userns.RESTRICTED: 0}, False, [], id="debian"),
        pytest.param({_userns.CLONE: 0}, True, ["kernel.unprivileged_userns_clone"], id="hardened"),
        pytest.param({_userns.MOST["user"]: 0}, True, ["user.max_user_namespaces"], id="none-allowed"),
        pytest.param({_userns.RESTRICTED: 1}, True, [], id="ubuntu-with-the-profiles"),
        pytest.param(
            {_userns.RESTRICTED: 1}, False, ["kernel.apparmor_restrict_unprivileged_userns"], id="bw-01-ubuntu-without"
        ),
    ],
)
def test_settings_that_keep_slots_from_running_are_named(
    found: dict[str, int], profiles: bool, named: list[str]
) -> None:
    said = _userns.obstacles(found, profiles=profiles)
    assert [words.split()[0] for words in said] == named
    assert all("[" in words and words.endswith("]") for words in said)


def test_settings_are_read_as_the_kernel_has_them(tmp_path: pathlib.Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / _userns.MOST["user"]).write_text("128\n", encoding="ascii")
    assert _userns.read(str(tmp_path)) == {_userns.MOST["user"]: 128}
