"""Checks ids and timestamps of conversations, and finds a conversation's partition.

An id must fit into a key name without spelling another key of the module. Pure except for a cache.
"""

from __future__ import annotations

from functools import lru_cache

from angarium.conversations import keys
from angarium.conversations.errors import IdRefused
from angarium.runtime.errors import InputInvalid
from angarium.runtime.keyspace import Keyspace, Scope, Shape
from angarium.runtime.text import check_text

TIMESTAMP_MAX = 2**53  # Lua numbers are exact up to here
CACHED_IDS_MAX = 16_384  # conversation ids that passed the checks; most come back many times


class ConversationIds:
    def __init__(self, keyspace: Keyspace, id_bytes_max: int) -> None:
        self._keyspace = keyspace
        self._id_bytes_max = id_bytes_max
        self._reserved = self._reserved_words()
        self._checked_partition = lru_cache(CACHED_IDS_MAX)(self._check_conversation)

    def partition_of(self, conversation_id: str) -> int:
        """The conversation's partition; raises `IdRefused` for an id that can't be a key name."""
        return self._checked_partition(conversation_id)

    def check(self, kind: str, value: str) -> None:
        try:
            size = len(check_text(value, f"{kind} id {value!r}").encode())
        except InputInvalid as error:
            raise IdRefused(str(error)) from None
        if not 0 < size <= self._id_bytes_max:
            raise IdRefused(f"a {kind} id has 1 to {self._id_bytes_max} bytes, not {size}")

    def check_optional(self, kind: str, value: str) -> None:
        if value:
            self.check(kind, value)

    def check_timestamp(self, kind: str, value: int) -> None:
        if type(value) is not int or not 0 <= value <= TIMESTAMP_MAX:
            raise InputInvalid(f"a {kind} timestamp is a whole number of ms, not {value!r}")

    def _check_conversation(self, conversation_id: str) -> int:
        self.check("conversation", conversation_id)
        partition = self._keyspace.partition_of(conversation_id)
        if ":" in conversation_id or conversation_id in self._reserved:
            self._refuse_other_keys(conversation_id, partition)
        return partition

    def _refuse_other_keys(self, conversation_id: str, partition: int) -> None:
        for key in (
            keys.CONVERSATION_RESPONSES,
            keys.CONVERSATION_REQUESTS,
            keys.CONVERSATION_ORDER,
        ):
            found = self._keyspace.explain(self._keyspace.name(key, partition, conversation_id))
            if found is None or found.key is not key:
                spelled = "another key" if found is None else f"a key of «{found.key.name}»"
                raise IdRefused(f"conversation id {conversation_id!r} would spell {spelled}")

    def _reserved_words(self) -> frozenset[str]:
        """The first word behind the module's prefix, of every key name.

        An id without a colon can spell another key only if it is one of these words.
        """
        name = self._keyspace.name
        prefix = name(keys.CONVERSATION_RESPONSES, 0, "")
        names = (
            name(key, 0, *("",) * Shape.of(key.name).parts)
            for key in keys.KEYS
            if key.scope is Scope.PARTITION
        )
        return frozenset(
            each.removeprefix(prefix).partition(":")[0] for each in names if each.startswith(prefix)
        )
