"""Conversations: open a request, reply to it, acknowledge, look.

A reply is taken once for each response id, for as long as its request lives; a step that runs
twice gives `step.key` and replies once. It leaves when it is its turn, by a process of the role
`conversations`. The trace of what is in hand is the correlator unless another is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from angarium.conversations.model import (
    MessageOptions,
    TaskItem,
)
from angarium.conversations.operations import ConversationOperations, new_reply
from angarium.conversations.settings import ConversationsSettings
from angarium.conversations.store import ConversationStore
from angarium.conversations.views import ConversationView, view_conversation
from angarium.runtime.outbound import check_url
from angarium.runtime.runtime import Runtime
from angarium.runtime.trace import current_trace


class ConversationsClient:
    def __init__(self, runtime: Runtime) -> None:
        self._settings = runtime.settings
        self._tracing = runtime.tracing
        self._store = ConversationStore(runtime)
        self._operations = ConversationOperations(
            self._store, runtime.settings.group(ConversationsSettings)
        )

    async def request(
        self, conversation_id: str, request_id: str, origin: str = "pickup", *, corr: str = ""
    ) -> str:
        """Open a request, once: 'created' | 'duplicate'. Its replies leave by `origin`."""

        async def open_under(corr: str) -> str:
            opened = await self._operations.open_request(
                conversation_id, request_id, origin, corr=corr
            )
            return opened[0]

        return await self._traced("conversations request", conversation_id, corr, open_under)

    async def reply(
        self,
        conversation_id: str,
        request_id: str,
        response_id: str,
        payload: Any,
        *,
        sender: str | None = None,
        callback_url: str | None = None,
        address: Any = None,
        corr: str = "",
    ) -> str:
        """'accepted' | 'duplicate'. `address` is for the sender: see `PickupAddress`."""
        if callback_url is not None:
            check_url(callback_url, allow_private=self._settings.allow_private_addresses)
        options = MessageOptions(payload, sender, callback_url, address)

        async def reply_under(corr: str) -> str:
            task = TaskItem(options, response_id, conversation_id, corr=corr)
            new = new_reply(conversation_id, request_id, response_id, task, corr=corr)
            accepted = await self._store.accept_reply(new)
            return "duplicate" if accepted.duplicate else "accepted"

        return await self._traced("conversations reply", conversation_id, corr, reply_under)

    async def acknowledge(self, ack_id: str, conversation_id: str | None = None) -> str:
        """'delivered' | 'gone'; raises `AckUnknown`."""
        return await self._operations.acknowledge(ack_id, conversation_id)

    async def show(self, conversation_id: str) -> ConversationView:
        """Who waits for whom, and why."""
        return await view_conversation(self._store, conversation_id)

    async def _traced(
        self, name: str, conversation_id: str, corr: str, call: Callable[[str], Awaitable[str]]
    ) -> str:
        """Under the correlator given, else under the trace of what is in hand."""
        trace = None if corr else current_trace()
        if trace is None or self._tracing is None:
            return await call(corr if trace is None else trace.header)
        values = {"angarium.conversation_id": conversation_id}
        with self._tracing.span(name, trace, values, kind="producer") as own:
            return await call(own.header)
