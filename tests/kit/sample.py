"""The smallest module there could be: a batch-shaped transition and a fenced one.

The runtime's own tests and benchmarks need transitions to run; these stand in for a module's, and
show what a module's store looks like.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from angarium.dispatch import keys
from angarium.runtime.clock import Clock
from angarium.runtime.lease import LeaseKeys
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition
from angarium.settings import Settings, load


class SampleItem(NamedTuple):
    id: str
    payload: str


class FencedAppend(NamedTuple):
    term: str
    value: str


ACCEPT_ITEMS = Transition(
    "tests.kit",
    "accept_items",
    keys={"payloads": keys.MESSAGES_PAYLOADS, "order": keys.CONSUMER_IDS},
    item=SampleItem,
    replies={"accepted": None, "duplicate": None},
)
APPEND_FENCED: Transition[Any] = Transition(
    "tests.kit",
    "append_fenced",
    keys={"term": keys.LEADER_LOCK_TERM, "list": keys.CONSUMER_IDS},
    args=FencedAppend,
    replies={"appended": None, "stale_term": None},
)


def sample_settings(redis_url: str, **overrides: Any) -> Settings:
    """Settings with a prefix of their own, so that tests on one server do not meet."""
    partitions = 4 if "+cluster" in redis_url else 1
    prefix = f"t{secrets.token_hex(4)}:"
    given: dict[str, Any] = {"prefix": prefix, "partitions": partitions, **overrides}
    return load(redis_url=redis_url, **given)


@asynccontextmanager
async def sample_runtime(
    redis_url: str, *, clock: Clock | None = None, actor: str | None = None, **overrides: Any
) -> AsyncIterator[Runtime]:
    async with Runtime.open(
        sample_settings(redis_url, **overrides), clock=clock, actor=actor
    ) as runtime:
        yield runtime


class SampleStore:
    """Borrows two of the dispatch module's names; its keys live under the test's own prefix."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._accept = runtime.batch(ACCEPT_ITEMS)

    async def accept(self, item_id: str, payload: str = "x") -> str:
        partition = self.runtime.keyspace.partition_of(item_id)
        item = SampleItem(item_id, payload)
        return str(await self._accept.submit(partition, item, None, len(payload)))

    async def accept_alone(self, item_id: str, payload: str = "x") -> str:
        partition = self.runtime.keyspace.partition_of(item_id)
        (reply,) = await self.runtime.call(
            ACCEPT_ITEMS, partition, items=[SampleItem(item_id, payload)]
        )
        return str(reply)

    async def order(self, partition: int = 0) -> list[str]:
        name = self.shared_keys(partition)[1]
        return [i.decode() for i in await self.runtime.redis.call("LRANGE", name, 0, -1, key=name)]

    async def all_ids(self) -> list[str]:
        partitions = range(self.runtime.settings.partitions)
        return [item for partition in partitions for item in await self.order(partition)]

    async def append_fenced(self, term: int, value: str) -> str:
        return str(await self.runtime.call(APPEND_FENCED, 0, FencedAppend(str(term), value)))

    @property
    def lease_keys(self) -> LeaseKeys:
        name = self.runtime.keyspace.name
        return LeaseKeys(0, name(keys.LEADER_LOCK, 0), name(keys.LEADER_LOCK_TERM, 0))

    def shared_keys(self, partition: int) -> list[str]:
        name = self.runtime.keyspace.name
        return [name(keys.MESSAGES_PAYLOADS, partition), name(keys.CONSUMER_IDS, partition)]
