"""The modules of this version, in the order in which their roles start."""

from __future__ import annotations

from angarium.conversations.module import CONVERSATIONS
from angarium.dispatch.module import DISPATCH
from angarium.lake.module import LAKE
from angarium.pickup.module import PICKUP
from angarium.routing.module import ROUTING
from angarium.runtime.module import RUNTIME, Module
from angarium.transactions.module import TRANSACTIONS

MODULES: tuple[Module, ...] = (
    RUNTIME,
    DISPATCH,
    ROUTING,
    PICKUP,
    CONVERSATIONS,
    TRANSACTIONS,
    LAKE,
)
