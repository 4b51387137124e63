"""The agent's inbound transport: takes the messages of its keys from Redis, in order.

A message is acknowledged when the agent has processed it, so an agent that dies loses none. A
message that the agent can't open becomes a dead letter at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from angarium.routing.acapy.agent import agent_class
from angarium.routing.acapy.plugin_runtime import PluginRuntime
from angarium.routing.consumer import ConsumerOptions, InstanceConsumer
from angarium.routing.errors import ItemInvalid
from angarium.routing.items import InboundMessage

LOGGER = logging.getLogger(__name__)
# A message that the agent has not processed by then is retried; the last retry makes a dead letter.
PROCESSING_S_MAX = 60.0
STOP_S = 5.0
HANDLERS = 32
# The agent raises these for a message it can't open; a retry would not help.
UNREADABLE = ("WireFormatParseError", "MessageParseError")

_Base: Any = agent_class("transport.inbound.base", "BaseInboundTransport")


class AngariumInbound(_Base):  # type: ignore[misc]
    """One instance of the routing module; the agent handles the messages of its keys."""

    def __init__(self, host: str, port: int, create_session: Any, **kwargs: Any) -> None:
        super().__init__("redis", create_session, **kwargs)
        self.host, self.port = host, port
        self._consumer: InstanceConsumer | None = None

    async def start(self) -> None:
        plugin = PluginRuntime.of(self.root_profile)
        options = ConsumerOptions(handlers=HANDLERS, keys_max=plugin.limits.inbox_keys_max)
        await plugin.enter()
        store = await plugin.routing()
        self._consumer = InstanceConsumer(store, plugin.uid, self._handle, options, name="acapy")
        await self._consumer.start()
        LOGGER.info("instance %s takes messages from Redis", plugin.uid)

    async def stop(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop(STOP_S)
            await PluginRuntime.of(self.root_profile).leave()

    async def _handle(self, message: InboundMessage) -> bytes | str | None:
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
