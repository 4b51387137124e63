"""One object with a client for each module, on one connection to Redis.

In a role's process it uses the process's runtime; elsewhere it is entered as a context and opens
its own. A module's client is imported at its first use. It checks its input as the module's HTTP
API does, and calls the module's store.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from angarium.runtime.errors import AngariumError
from angarium.runtime.runtime import Runtime

if TYPE_CHECKING:
    from angarium.client.conversations import ConversationsClient
    from angarium.client.dispatch import DispatchClient
    from angarium.client.pickup import PickupQueuesClient
    from angarium.client.routing import RoutingClient
    from angarium.client.transactions import TransactionsClient
    from angarium.dispatch.message_state import MessageState
    from angarium.dispatch.store import Enqueued
    from angarium.settings import Settings


MODULES = ("dispatch", "routing", "transactions", "conversations", "pickup")


class NotOpened(AngariumError):
    """The client was used outside a role's process without being opened."""

    code = "not_opened"


class Client:
    """`async with Client() as client: …`; without `settings` it uses those of the environment.

    In a role's process `app.client` is already open; entering it changes nothing.
    """

    def __init__(self, settings: Settings | None = None, *, runtime: Runtime | None = None) -> None:
        self._settings = settings
        self._given = runtime
        self._opened: Runtime | None = None
        self._stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        if self._given is None and self._opened is None:
            from angarium.settings import load

            async with AsyncExitStack() as stack:
                runtime = Runtime.open(self._settings or load())
                self._opened = await stack.enter_async_context(runtime)
                self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            async with stack:
                await self.close()
            self._opened = None

    @property
    def runtime(self) -> Runtime:
        found = self._given or self._opened
        if found is None:
            raise NotOpened("no role runs here; use `async with app.client as client`")
        return found

    async def publish(self, message: Any, *, traceparent: str | None = None) -> int:
        """Publish on the channel. Returns the number of listening dispatchers."""
        if traceparent is not None:
            message = _traced(message, traceparent)
        return await self.dispatch.publish(message)

    async def enqueue(self, message: Any, *, idempotency_key: str | None = None) -> Enqueued:
        """Put a message into the durable intake; `message_id` of the reply finds its result."""
        return await self.dispatch.enqueue(message, idempotency_key=idempotency_key)

    async def result(self, message_id: str, wait_s: float = 0) -> MessageState:
        """What became of a message, after waiting up to `wait_s` for its end."""
        return await self.dispatch.result(message_id, wait_s)

    @cached_property
    def dispatch(self) -> DispatchClient:
        from angarium.client.dispatch import DispatchClient

        return DispatchClient(self.runtime)

    @cached_property
    def routing(self) -> RoutingClient:
        from angarium.client.routing import RoutingClient

        return RoutingClient(self.runtime)

    @cached_property
    def transactions(self) -> TransactionsClient:
        from angarium.client.transactions import TransactionsClient

        return TransactionsClient(self.runtime)

    @cached_property
    def conversations(self) -> ConversationsClient:
        from angarium.client.conversations import ConversationsClient

        return ConversationsClient(self.runtime)

    @cached_property
    def pickup(self) -> PickupQueuesClient:
        from angarium.client.pickup import PickupQueuesClient

        return PickupQueuesClient(self.runtime)

    async def close(self) -> None:
        """Close the database connections of the modules' clients."""
        for name in MODULES:
            part = self.__dict__.pop(name, None)
            if part is not None and hasattr(part, "close"):
                await part.close()


def _traced(message: Any, traceparent: str) -> Any:
    if not isinstance(message, Mapping):
        raise TypeError("only a message that is an object can carry a traceparent")
    return {**message, "traceparent": traceparent}
