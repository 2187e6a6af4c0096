# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a workspace has less than its slot: declarations that grant no more than the one they are made of."""

from __future__ import annotations

import dataclasses
import typing as t

from ._declarations import Invalid, Slot


def narrowed(slot: Slot, workspace: str) -> Slot:
    """Return the slot as sessions in a narrower workspace see it; Invalid if it takes away what is not there."""
    rule, where = slot.restrictions[workspace], f"slot '{slot.name}': workspace '{workspace}'"
    granted = slot.capabilities or ()
    _known(rule.without_capabilities, granted, f"{where}: without_capabilities")
    _known(rule.without_binds, [bind.target for bind in slot.binds], f"{where}: without_binds")
    return dataclasses.replace(
        slot,
        workspaces=(workspace,),
        network="none" if rule.offline else slot.network,
        forwards=() if rule.offline else slot.forwards,
        # a container that another session starts has the slot's workspaces to write in, and the internet
        docker=False,
        credential=None if rule.without_credential else slot.credential,
        capabilities=None
        if slot.capabilities is None
        else tuple(key for key in granted if key not in rule.without_capabilities),
        binds=tuple(bind for bind in slot.binds if bind.target not in rule.without_binds),
    )


def _known(taken: t.Sequence[str], there: t.Collection[str], where: str) -> None:
    for each in taken:
        if each not in there:
            raise Invalid(
                f"{where} names {each!r:.120}, which the slot does not declare; it declares"
                f" {', '.join(sorted(there)) or 'none'} [name one of these]"
            )
