# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds of the repository as a whole."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml
from ansible_collections.confined.slots.plugins.module_utils import (
    _capabilities,
    _layout,
    _mounts,
    _profile_schema,
    _profiles,
    _refusals,
)
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASKS = sorted([*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml")])
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())


@pytest.mark.parametrize("path", TASKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_01_no_task_becomes_a_slot(path: pathlib.Path) -> None:
    """That needs ACLs or world-readable files; modules drop to the slot's uid themselves."""
    assert "become_user" not in path.read_text(encoding="utf-8")


def test_an_04_nothing_switches_broken_conditionals_back_on() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in ROOT.glob("**/*.y*ml") if not {"build", ".venv"} & set(path.parts)
    )
    assert "BROKEN_CONDITIONALS" not in text.upper()


def test_an_06_no_password_library_is_imported_on_a_host() -> None:
    for path in [*ROOT.glob("plugins/modules/*.py"), *ROOT.glob("plugins/module_utils/*.py")]:
        assert not re.search(r"^\s*(import|from) (crypt|passlib)\b", path.read_text(encoding="utf-8"), re.MULTILINE), (
            path
        )


def test_an_09_test_hosts_boot_with_control_groups_of_their_own() -> None:
    boot = (ROOT / "tests" / "hosts" / "hosts.py").read_text(encoding="utf-8")
    assert "--cgroupns=private" in boot
    assert "/sys/fs/cgroup:/sys/fs/cgroup" not in boot


@pytest.mark.parametrize("role", ROLES)
def test_every_option_of_a_role_has_a_value_and_words(role: str) -> None:
    defaults = yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8")) or {}
    specs = yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    described = specs["argument_specs"]["main"]["options"]
    assert set(described) <= set(defaults)
    for name, option in described.items():
        if "default" in option:
            assert option["default"] == defaults[name], name


def test_every_refusal_is_documented_and_none_that_does_not_exist() -> None:
    assert codes_below("## Refusals") == set(_refusals.CODES)


def test_every_code_of_a_converge_is_documented_and_none_that_does_not_exist() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("plugins/module*/*.py")))
    documented = codes_below("## When a converge or a removal stops")
    assert set(re.findall(r"\"([a-z]+(?:-[a-z]+)+): ", text)) <= {*documented, *_refusals.CODES, "slot-launcher"}
    assert [code for code in documented if not re.search(rf"[\" ]{code}[\":]", text)] == []


def codes_below(heading: str) -> set[str]:
    """Return the codes of the table below a heading of docs/operations.md."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text[text.index(f"{heading}\n") + len(heading) :].partition("\n## ")[0]
    return {
        code
        for line in table.splitlines()
        if line.startswith("| `")
        for code in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", line.split("|")[1])
    }


def test_a_refusal_of_unknown_code_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="no-such-code"):
        raise _refusals.Refusal("no-such-code", "what", "cure")


@pytest.mark.parametrize("text", ["\x1b]0;evil\x07", "line\nbreak", "\u202eright-to-left", "\udcff", "\u200b"])
def test_a_refusal_cannot_steer_a_terminal(text: str) -> None:
    assert _refusals.Refusal("slot-unknown", text, "cure").what.isprintable()


def test_bw_06_the_hosts_proc_is_never_bound() -> None:
    """A fresh /proc or none: no fallback binds the host's, and no declaration can ask for it."""
    assert "/proc" in _mounts.FORBIDDEN
    source = "".join(
        (ROOT / "plugins" / "module_utils" / f"{name}.py").read_text(encoding="utf-8")
        for name in ("_policy", "_strict", "_compatibility", "_mounts", "_launch")
    )
    assert not re.search(r"bind[^\n]*/proc[\"']", source)


def test_es_04_the_limit_of_a_shared_network_is_stated() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    assert "abstract sockets" in text[text.index("### network: host") :]


def test_a_mount_without_a_reason_does_not_exist() -> None:
    with pytest.raises(Invalid):
        _mounts.Mount("tmpfs", "/x", "")


def test_no_two_slots_share_a_path() -> None:
    for path in (_layout.state, _layout.policy, _layout.log, _layout.account, _layout.slice_unit):
        assert len({path(name) for name in ("a", "b", "a-b", "ab")}) == 4


def test_each_key_of_a_profile_and_each_provider_is_documented() -> None:
    text = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
    rows = {
        name
        for line in text.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert rows == {*_profile_schema.PROFILE["properties"], *(path.stem for path in ROOT.glob("profiles/*.yml"))}


def test_each_capability_is_documented_in_its_words_with_all_that_it_maps_to() -> None:
    text = (ROOT / "docs" / "capabilities.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `use_")}
    profiles = _profiles.parse([yaml.safe_load(path.read_text("utf-8")) for path in ROOT.glob("profiles/*.yml")])
    capabilities = {each.key: each for profile in profiles.values() for each in profile.capabilities}
    assert set(rows) == set(capabilities)
    for key, capability in capabilities.items():
        mapped = [capability.words, *capability.state, *capability.hosts, *capability.credentials[:1]]
        assert all(each in rows[key] for each in mapped) and ("needed" in rows[key]) is capability.required, key


def test_the_example_of_a_sites_capabilities_is_valid() -> None:
    text = (ROOT / "inventories" / "example" / "group_vars" / "all.yml").read_text(encoding="utf-8")
    example = text[text.index("# site_capabilities:") :].replace("\n# ", "\n").removeprefix("# ")
    parsed = _capabilities.parse(yaml.safe_load(example)["site_capabilities"])
    assert [each.words for each in parsed.values()] == [
        "Use Git identity",
        "Access the configured AWS account",
        "Export reports to Downloads",
    ]


def test_an_10_the_hosts_of_molecule_are_our_own_and_its_versions_pinned() -> None:
    shared = yaml.safe_load((ROOT / ".config/molecule/config.yml").read_text(encoding="utf-8"))
    assert (shared["driver"]["name"], shared["verifier"]["name"]) == ("default", "testinfra")
    assert all((ROOT / f"molecule/default/{name}.yml").is_file() for name in ("create", "destroy"))
    pinned = (ROOT / "requirements/tests.txt").read_text(encoding="utf-8")
    assert all(f"\n{package}==" in pinned for package in ("molecule", "pytest", "pytest-testinfra", "pytest-xdist"))
