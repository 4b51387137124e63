"""Which event begins, moves and ends which account, from the manifests of the modules.

An account is what has to balance: accepted = finished + in flight. Pure: no Spark, no Redis.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from angarium.modules import MODULES
from angarium.runtime.module import LEASE, EventType, Outcome, Part

CATALOGUE: Mapping[tuple[str, str], EventType] = MappingProxyType(
    {(module.name, each.name): each for module in (*MODULES, LEASE) for each in module.events}
)
ENDS = tuple(sorted(key for key, each in CATALOGUE.items() if each.part is Part.END))
# Outcomes are few on purpose: they are columns of the audit.
OUTCOMES: tuple[str, ...] = tuple(each for each in get_args(Outcome) if each)
# Of an event's status, those that make a transaction's `completed` something else than delivered.
FAILED_STATUSES = ("failed", "aborted", "internal-error")
# Accounts whose subjects are accepted once in all time; elsewhere an id may come again.
ONCE = tuple((module.name, account) for module in MODULES for account in module.ids_once)
