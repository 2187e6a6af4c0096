# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""AppArmor: what a payload, what runs in a nested sandbox and what runs as a slot's account may not, by behaviour."""

from __future__ import annotations

import json
import typing as t

import pytest
from waiting import held

PROFILES = "/etc/apparmor.d/confined-slots"
ACCOUNT = "systemd-run --quiet --pipe --wait --collect -p User=slot-coder -p AppArmorProfile=confined-slots-account --"

# Each line says whether something that must not be was possible. The slot may nest, so bwrap's --disable-userns, which
# refuses the same, is not in the way of what AppArmor refuses.
IN_SESSION = """
says() { if "${@:2}" >/dev/null 2>&1; then echo "$1=open"; else echo "$1=held"; fi; }
inner() { /usr/bin/bwrap --unshare-user --ro-bind / / --proc /proc --dev /dev "$@"; }
says namespace unshare --user true
says mount unshare --user --map-root-user --mount mount -t tmpfs none /tmp
says trace strace -o /dev/null /usr/bin/bwrap --unshare-user --ro-bind / / true
says inner-namespace inner unshare --user true
says inner-sandbox inner true
says own-trace strace -f true
echo "label=$(cat /proc/self/attr/apparmor/current)"
echo "inner-label=$(inner cat /proc/self/attr/apparmor/current)"
"""
HELD = ("namespace", "mount", "trace", "inner-namespace", "unit-namespace", "login-namespace")
OF_THE_ACCOUNT = {"unit-namespace", "login-namespace"}


def rows(guest: t.Any) -> dict[str, str]:
    """Return every row."""
    said = guest.session("nester", IN_SESSION).stdout
    said += guest.run(f"{ACCOUNT} unshare --user true && echo unit-namespace=open || echo unit-namespace=held")
    login = "su - slot-coder -c 'unshare --user true'"
    said += guest.run(f"{login} && echo login-namespace=open || echo login-namespace=held")
    return dict(line.split("=", 1) for line in said.split("\n") if "=" in line)


def test_a_payload_makes_no_namespace_and_no_mount_and_may_trace_its_own_children_only(guest: t.Any) -> None:
    found = rows(guest)
    assert {row: found[row] for row in HELD} == dict.fromkeys(HELD, "held")
    # and what a slot with nested_sandbox, or any, is promised
    assert found["inner-sandbox"] == "open" and found["own-trace"] == "open"
    assert found["label"] == "confined-slots-nesting-bwrap//&confined-slots-nesting-payload (enforce)"
    assert "confined-slots-payload" in found["inner-label"]


PAYLOAD = "profile confined-slots-payload "
NESTING = "profile confined-slots-nesting-payload "


@pytest.mark.parametrize(
    ("changes", "opened"),
    [
        pytest.param([(NESTING, "userns,")], {"namespace"}, id="payload-with-userns"),
        pytest.param([(NESTING, "userns, capability, mount,")], {"namespace", "mount"}, id="payload-with-mount"),
        pytest.param([(NESTING, "userns,"), (PAYLOAD, "userns,")], {"namespace", "inner-namespace"}, id="inner-too"),
        pytest.param([(NESTING, "ptrace,")], {"trace"}, id="payload-with-ptrace"),
        pytest.param([("profile confined-slots-account ", "userns,")], OF_THE_ACCOUNT, id="account-with-userns"),
    ],
)
def test_with_the_rule_that_is_left_out_exactly_that_row_opens(
    guest: t.Any, profiles: t.Callable[[str], None], changes: list[tuple[str, str]], opened: set[str]
) -> None:
    text = guest.run(f"cat {PROFILES}")
    for profile, rule in changes:
        start = text.index("{\n", text.index(profile)) + 2
        text = f"{text[:start]}  {rule}\n{text[start:]}"
    profiles(text)
    found = rows(guest)
    assert {row for row in HELD if found[row] == "open"} == opened


def test_bw_01_a_launcher_outside_of_its_profile_starts_nothing(guest: t.Any) -> None:
    guest.run(f"apparmor_parser --quiet --remove {PROFILES}")
    try:
        refused = guest.session("coder", "touch started")
    finally:
        guest.run(f"apparmor_parser --quiet --replace {PROFILES}")
    assert refused.returncode == 125 and "sandbox-unavailable" in refused.stderr
    assert "confined-slots-launcher, the AppArmor profile for its path" in refused.stderr
    assert guest.session("coder", "ls started").returncode == 2


def test_the_settings_of_the_host_are_as_the_distribution_has_them(guest: t.Any) -> None:
    """BW-01: no role weakens the host for all."""
    found = guest.run("sysctl -n kernel.unprivileged_userns_clone; ls /etc/sysctl.d /run/sysctl.d 2>/dev/null; true")
    assert found.split()[0] == "1" and "confined" not in found
    assert guest.run("sysctl -n user.max_user_namespaces").strip() != "0"


@pytest.mark.parametrize("setting", ["kernel.unprivileged_userns_clone", "user.max_user_namespaces"])
def test_a_setting_that_forbids_namespaces_is_named_and_left_as_it_is(guest: t.Any, setting: str) -> None:
    before = guest.run(f"sysctl -n {setting}; sysctl -q {setting}=0").strip()
    try:
        refused = guest.module("apparmor", confine_slots=True)
        after = guest.run(f"sysctl -n {setting}").strip()
        session = guest.session("coder", "true")
    finally:
        guest.run(f"sysctl -q {setting}={before}")
    assert refused["msg"].startswith("sandbox-unavailable: ") and f"{setting} is 0" in refused["msg"]
    assert after == "0"
    assert session.returncode == 125 and "sandbox-unavailable" in session.stderr and f"{setting} is 0" in session.stderr


FOREIGN = "profile other-vendor {path} flags=(unconfined) {{ userns, }}\n"


def test_bw_03_a_foreign_profile_for_the_launchers_path_is_reported_and_left_alone(guest: t.Any) -> None:
    foreign, file = FOREIGN.format(path="/opt/confined-slots/releases/*/bin/slot-launcher"), "/etc/apparmor.d/other"
    guest.run(f"cat > {file} && cp -p {PROFILES} /root/before", given=foreign)
    try:
        refused = guest.module("apparmor", confine_slots=True)
        assert refused["msg"].startswith("apparmor-conflict: profile other-vendor (/etc/apparmor.d/other) attaches to")
        assert guest.run(f"cat {file}") == foreign
        assert guest.run(f"cmp {PROFILES} /root/before && systemctl is-active apparmor").strip() == "active"
    finally:
        guest.run(f"rm {file}")
    assert not guest.module("apparmor", confine_slots=True)["changed"]


def test_bw_03_a_foreign_profile_for_the_distributions_bwrap_changes_nothing(guest: t.Any) -> None:
    guest.run("apparmor_parser --quiet --replace", given=FOREIGN.format(path="/usr/bin/bwrap"))
    try:
        session = guest.session("coder", "cat /proc/self/attr/apparmor/current")
    finally:
        guest.run("echo -n other-vendor > /sys/kernel/security/apparmor/.remove")
    assert session.stdout == "confined-slots-bwrap//&confined-slots-payload (enforce)\n"


def test_bw_04_all_profiles_of_the_host_load_with_ours_among_them(guest: t.Any) -> None:
    guest.run("systemctl reload apparmor && systemctl is-active apparmor")
    assert not guest.module("apparmor", confine_slots=True)["changed"]


def test_profiles_that_were_changed_or_unloaded_behind_our_back_are_loaded_again(
    guest: t.Any, profiles: t.Callable[[str], None]
) -> None:
    text = guest.run(f"cat {PROFILES}")
    profiles(text.replace("  ptrace peer=", "  ptrace, # peer="))
    predicted = guest.module("apparmor", check=True, confine_slots=True)
    assert [step["action"] for step in predicted["steps"]] == ["load"]
    assert [step["action"] for step in guest.module("apparmor", confine_slots=True)["steps"]] == ["load"]
    assert not guest.module("apparmor", confine_slots=True)["changed"]


def test_profiles_are_not_taken_from_under_a_running_session(guest: t.Any) -> None:
    with held(guest.host, "coder"):
        refused = guest.module("apparmor", enabled=False)
    assert "processes run under the profiles" in refused["msg"] and "[stop the slots' sessions" in refused["msg"]
    assert not guest.module("apparmor", confine_slots=True)["changed"]


def test_removal_unloads_all_of_ours_and_nothing_else(guest: t.Any) -> None:
    listing = "cd /sys/kernel/security/apparmor; grep -c . profiles; grep -c confined-slots profiles"
    everything, ours = map(int, guest.run(listing).split())
    removed = guest.module("apparmor", enabled=False)
    try:
        assert removed["changed"] and ours == 9
        assert guest.run(f"{listing}; ls {PROFILES} 2>&1 | grep -c cannot || true").split() == [
            *(str(everything - ours), "0", "1"),
        ]
    finally:
        again = guest.module("apparmor", confine_slots=True)
    assert again["changed"] and not guest.module("apparmor", confine_slots=True)["changed"]


def test_a_user_manager_of_a_slot_runs_in_the_profile_without_namespaces(guest: t.Any) -> None:
    uid = guest.run("id -u slot-coder").strip()
    try:
        guest.run(f"systemctl start user@{uid}.service")
        label = guest.run(f"cat /proc/$(systemctl show -p MainPID --value user@{uid}.service)/attr/apparmor/current")
    finally:
        guest.run(f"systemctl stop user@{uid}.service")
    assert label.strip() == "confined-slots-account (enforce)"


def test_a_login_of_a_slots_account_works_and_is_held(guest: t.Any) -> None:
    said = guest.run("su - slot-coder -c 'id -un; cat /proc/self/attr/apparmor/current'")
    assert said == "slot-coder\nconfined-slots-account (enforce)\n"


def test_a_discovery_sees_all_of_a_session_that_is_held(guest: t.Any) -> None:
    """PL-06: strace looks on from outside, through each change of profile."""
    guest.asked("slotctl discover coder -- -c 'cat /etc/ssh/sshd_config; true' </dev/null")
    found = json.loads(guest.run("slotctl review coder --json"))
    assert found["complete"], found["faults"]
    assert "/etc/ssh/sshd_config" in json.dumps(found)
