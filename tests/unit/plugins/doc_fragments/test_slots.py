# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words about slots are those of what the modules take."""

from __future__ import annotations

import typing as t

import yaml
from ansible_collections.confined.slots.plugins.doc_fragments.slots import ModuleDocFragment
from ansible_collections.confined.slots.plugins.module_utils._declarations import slots_argument

SAID = ("type", "elements", "required", "default", "choices")


def rules(option: dict[str, t.Any], inner: str) -> dict[str, t.Any]:
    """Return what can be compared of an option, words and no_log left out."""
    kept = {key: option[key] for key in SAID if key in option}
    return kept | {"options": {name: rules(option[inner][name], inner) for name in option.get(inner, {})}}


def test_the_fragment_documents_what_the_modules_take() -> None:
    documented = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]["slots"]
    assert rules(documented, "suboptions") == rules(slots_argument(), "options")
