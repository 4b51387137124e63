"""The agent's inbound transport: messages of its keys out of Redis, in order.

A message is acknowledged when the agent has processed it, so a dying agent loses none. One that
the agent can't open is a dead letter at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from angarium.routing.acapy.agent import agent_class
from angarium.routing.acapy.link import Link
from angarium.routing.errors import ItemInvalid
from angarium.routing.items import Message
from angarium.routing.mailbox import Mailbox, MailboxOptions

LOGGER = logging.getLogger(__name__)
# A message that an agent has not processed by then is tried again, and given up in the end.
PROCESSING_S_MAX = 60.0
STOP_S = 5.0
HANDLERS = 32
# What the agent raises for a message it can't open: trying again would not help.
UNREADABLE = ("WireFormatParseError", "MessageParseError")

_Base: Any = agent_class("transport.inbound.base", "BaseInboundTransport")


class AngariumInbound(_Base):  # type: ignore[misc]
    """An instance of the routing module: the mail of its keys goes to the agent, in order."""

    def __init__(self, host: str, port: int, create_session: Any, **kwargs: Any) -> None:
        super().__init__("redis", create_session, **kwargs)
        self.host, self.port = host, port
        self._mailbox: Mailbox | None = None

    async def start(self) -> None:
        link = Link.of(self.root_profile)
        options = MailboxOptions(handlers=HANDLERS, keys_max=link.limits.inbox_keys_max)
        await link.enter()
        store = await link.routing()
        self._mailbox = Mailbox(store, link.uid, self._handle, options, name="acapy")
        await self._mailbox.start()
        LOGGER.info("instance %s takes messages from Redis", link.uid)

    async def stop(self) -> None:
        if self._mailbox is not None:
            await self._mailbox.stop(STOP_S)
            await Link.of(self.root_profile).leave()

    async def _handle(self, message: Message) -> bytes | str | None:
        waits = message.txn_id is not None
        session = await self.create_session(accept_undelivered=False, can_respond=waits)
        async with session:
            try:
                inbound = await session.receive(message.payload)
            except Exception as error:
                if type(error).__name__ in UNREADABLE:
                    raise ItemInvalid(f"the agent can't read it: {error}") from None
                raise
            async with asyncio.timeout(PROCESSING_S_MAX):
                await inbound.wait_processing_complete()
            if not waits or not session.response_buffer:
                return None
            response: bytes | str | None = await session.wait_response()
            session.can_respond = False
            session.clear_response()
            return response
