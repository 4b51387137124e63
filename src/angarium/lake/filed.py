"""Transactions that Spark has filed, for the module that is asked for their status.

Costs nothing until a transaction is asked for that neither Redis nor the database has. A lake that
is not installed, never ran or belongs to somebody else has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from angarium.runtime.errors import SettingInvalid

if TYPE_CHECKING:
    from angarium.runtime.settings import CommonSettings


def transactions_of(settings: CommonSettings) -> Callable[[str], Awaitable[bytes | None]]:
    """The state of a filed transaction by its id, as JSON; None for one that is not there."""

    async def find(transaction_id: str) -> bytes | None:
        from angarium.lake.lookup import Lookup
        from angarium.lake.tables import Lake

        with contextlib.suppress(SettingInvalid):
            return await Lookup(Lake.of(settings)).find_transaction(transaction_id)
        return None

    return find
