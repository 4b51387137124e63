"""Conversations: open requests, reply, acknowledge, show.

A response id is accepted once while its request lives; a step that passes `step.key` and runs twice
replies once. The role `conversations` sends the reply when it is its turn. The correlator defaults
to the trace of the current work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from angarium.conversations.model import MessageOptions
from angarium.conversations.service import ConversationService
from angarium.conversations.views import ConversationView
from angarium.runtime.runtime import Runtime
from angarium.runtime.trace import current_trace


class ConversationsClient:
    def __init__(self, runtime: Runtime) -> None:
        self._tracing = runtime.tracing
        self._service = ConversationService(runtime)

    async def request(
        self, conversation_id: str, request_id: str, origin: str = "pickup", *, corr: str = ""
    ) -> str:
        """Open a request: 'created' or 'duplicate'. `origin` names the sender of its replies."""

        async def open_under(corr: str) -> str:
            opened = await self._service.request(conversation_id, request_id, origin, corr=corr)
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
        options = MessageOptions(payload, sender, callback_url, address)

        async def reply_under(corr: str) -> str:
            return await self._service.post_reply(
                conversation_id, request_id, response_id, options, corr=corr
            )

        return await self._traced("conversations reply", conversation_id, corr, reply_under)

    async def acknowledge(self, ack_id: str, conversation_id: str | None = None) -> str:
        """Returns 'delivered' or 'gone'. Raises `AckUnknown`."""
        return await self._service.acknowledge(ack_id, conversation_id)

    async def show(self, conversation_id: str) -> ConversationView:
        """The conversation's queue, with the reason each reply waits."""
        return await self._service.show(conversation_id)

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
