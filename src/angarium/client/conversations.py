"""Conversations: open requests, reply, acknowledge, show.

A response id is accepted once while its request lives; a step that passes `step.key` and runs twice
replies once. The role `conversations` sends the reply when it is its turn. The correlator defaults
to the trace of the current work.
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
        self._store = runtime.store(ConversationStore)
        self._operations = ConversationOperations(
            self._store, runtime.settings.group(ConversationsSettings)
        )

    async def request(
        self, conversation_id: str, request_id: str, origin: str = "pickup", *, corr: str = ""
    ) -> str:
        """Open a request: 'created' or 'duplicate'. `origin` names the sender of its replies."""

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
        """Returns 'accepted' or 'duplicate'. `address` is for the sender: see `PickupAddress`."""
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
        """Returns 'delivered' or 'gone'. Raises `AckUnknown`."""
        return await self._operations.acknowledge(ack_id, conversation_id)

    async def show(self, conversation_id: str) -> ConversationView:
        """The conversation's queue, with the reason each reply waits."""
        return await view_conversation(self._store, conversation_id)

    async def _traced(
        self, name: str, conversation_id: str, corr: str, call: Callable[[str], Awaitable[str]]
    ) -> str:
        """Call with the given correlator, or else with the trace of the current work."""
        trace = None if corr else current_trace()
        if trace is None or self._tracing is None:
            return await call(corr if trace is None else trace.header)
        values = {"angarium.conversation_id": conversation_id}
        with self._tracing.span(name, trace, values, kind="producer") as own:
            return await call(own.header)
