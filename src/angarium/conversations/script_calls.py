"""Calls the module's scripts with the keys and arguments that all of them share.

The include `conversation` describes those keys and arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from angarium.conversations import keys
from angarium.conversations.ids import ConversationIds
from angarium.conversations.limits import ConversationsLimits
from angarium.conversations.model import MinMessageInfo
from angarium.conversations.settings import ConversationsSettings
from angarium.redis.connection import Argument
from angarium.redis.scripts import Script
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script


def load(name: str) -> Script:
    return load_script("angarium.conversations", name)


class ScriptCalls:
    def __init__(self, runtime: Runtime, senders: Sequence[str] | None) -> None:
        settings, limits = (
            runtime.settings.group(ConversationsSettings),
            runtime.settings.limits_of(ConversationsLimits),
        )
        self._runtime = runtime
        self.name = runtime.keyspace.name
        self.ids = ConversationIds(runtime.keyspace, limits.id_bytes_max)
        self.partitions = range(runtime.settings.partitions)
        self.wake_channel = runtime.keyspace.global_name(keys.CONVERSATIONS_WAKE)
        self._args: tuple[Argument, ...] = (
            settings.message_ttl,
            settings.awaited_message_ttl,
            settings.max_pending_ttl,
            settings.sent_message_ttl,
            self.wake_channel,
            limits.conversation_requests_max,
            limits.conversation_replies_max,
            "" if senders is None else msgspec.json.encode(senders),
        )
        self.shared_keys = [
            [
                self.name(keys.PENDING_MESSAGES, partition),
                self.name(keys.OPEN_REQUESTS, partition),
                self.name(keys.NEW_MESSAGES, partition),
                self.name(keys.WAITING_SENDER, partition, ""),
            ]
            for partition in self.partitions
        ]

    def batched(self, script: Script) -> Any:
        return self._runtime.batched(script, self.shared_keys.__getitem__, self._args)

    async def run(
        self, script: Script, partition: int, names: Sequence[str], args: Sequence[Argument]
    ) -> Any:
        return await self._runtime.run(
            script, partition, [*self.shared_keys[partition], *names], [*self._args, *args]
        )

    # Key names, in the order in which scripts take them

    def conversation_keys(self, conversation_id: str, partition: int) -> tuple[str, str, str]:
        """The conversation's requests, responses and order."""
        return (
            self.name(keys.CONVERSATION_REQUESTS, partition, conversation_id),
            self.name(keys.CONVERSATION_RESPONSES, partition, conversation_id),
            self.name(keys.CONVERSATION_ORDER, partition, conversation_id),
        )

    def request_keys(self, info: MinMessageInfo, partition: int) -> tuple[str, str, str]:
        """Request, requests, order."""
        requests, _, order = self.conversation_keys(info.conversation_id, partition)
        return self.request_key(info, partition), requests, order

    def response_keys(self, info: MinMessageInfo, partition: int) -> tuple[str, str, str]:
        """Response, responses, order."""
        _, responses, order = self.conversation_keys(info.conversation_id, partition)
        return self.response_key(info, partition), responses, order

    def all_keys(self, info: MinMessageInfo, partition: int) -> tuple[str, ...]:
        """Request, response, requests, responses, order."""
        return (
            self.request_key(info, partition),
            self.response_key(info, partition),
            *self.conversation_keys(info.conversation_id, partition),
        )

    def request_key(self, info: MinMessageInfo, partition: int) -> str:
        return self.name(keys.CONVERSATION_REQUEST, partition, info.request_id)

    def response_key(self, info: MinMessageInfo, partition: int) -> str:
        return self.name(keys.CONVERSATION_RESPONSE, partition, info.response_id)
