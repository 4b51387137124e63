"""What people page through in this module: conversations in which something waits.

Beside `store.py` the only file of the module that knows key names. It only reads, a page at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from angarium.conversations.model import MinMessageInfo
from angarium.conversations.script_values import read_infos
from angarium.runtime import keyspace as keys
from angarium.runtime.runtime import Runtime

Kind = Literal["replies", "requests"]
_KEYS = {"replies": keys.PENDING_MESSAGES, "requests": keys.OPEN_REQUESTS}


@dataclass(frozen=True)
class Waiting:
    """A reply in flight, and from when on it may be claimed; or a request without a reply, and
    when its time is over."""

    info: MinMessageInfo
    at_ms: int


class ConversationListing:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.partitions = runtime.settings.partitions

    async def waiting(self, kind: Kind, partition: int, first: int, count: int) -> list[Waiting]:
        """By time, the earliest first; fewer than `count` when there are no more."""
        name = self._runtime.keyspace.name(_KEYS[kind], partition)
        found = await self._runtime.redis.call(
            "ZRANGE", name, first, first + count - 1, "WITHSCORES", key=name
        )
        return [
            Waiting(info, int(float(score) * 1000))
            for member, score in zip(found[::2], found[1::2], strict=True)
            for info in read_infos([member])
        ]
