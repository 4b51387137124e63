"""The synchronous client: the calls of `Client`, which block until they are done.

Entered as a context, it runs an event loop in its own thread. In a role's process, synchronous
functions run in threads, and `app.sync_client` passes their calls to the loop of the process.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from angarium.client.client import Client, NotOpened
from angarium.client.http import HttpClient
from angarium.dispatch.message_state import MessageState
from angarium.dispatch.store import Enqueued
from angarium.runtime.errors import InputInvalid

T = TypeVar("T")


class SyncClient:
    """`with SyncClient() as client: client.transactions.start("order", {…})`

    In a role's process `app.sync_client` is already open.
    """

    def __init__(
        self,
        client: Client | HttpClient | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._client: Client | HttpClient = client or Client()
        self._given = loop
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._given is None and self._own is None:
            self._own = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._own.run_forever, daemon=True)
            self._thread.start()
            try:
                _wait(self._client.__aenter__(), self._own)
            except BaseException:
                self._end()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            try:
                _wait(self._client.__aexit__(), self._own)
            finally:
                self._end()

    def _end(self) -> None:
        assert self._own is not None
        assert self._thread is not None
        self._own.call_soon_threadsafe(self._own.stop)
        self._thread.join()
        self._own.close()
        self._own = self._thread = None

    def publish(self, message: Any, *, traceparent: str | None = None) -> int:
        """Publish on the channel. Returns the number of listening dispatchers."""
        if isinstance(self._client, HttpClient):
            raise InputInvalid("the API has no channel; use enqueue")
        return self._call(self._client.publish, message, traceparent=traceparent)

    def enqueue(self, message: Any, *, idempotency_key: str | None = None) -> Enqueued:
        """Put a message into the durable intake; `message_id` of the reply finds its result."""
        return self._call(self._client.enqueue, message, idempotency_key=idempotency_key)

    def result(self, message_id: str, wait_s: float = 0) -> MessageState:
        """What became of a message, after waiting up to `wait_s` for its end."""
        return self._call(self._client.result, message_id, wait_s)

    @property
    def dispatch(self) -> _SyncModuleClient:
        return _SyncModuleClient(self, "dispatch")

    @property
    def routing(self) -> _SyncModuleClient:
        return _SyncModuleClient(self, "routing")

    @property
    def transactions(self) -> _SyncModuleClient:
        return _SyncModuleClient(self, "transactions")

    @property
    def conversations(self) -> _SyncModuleClient:
        return _SyncModuleClient(self, "conversations")

    @property
    def pickup(self) -> _SyncModuleClient:
        return _SyncModuleClient(self, "pickup")

    def module_client(self, name: str) -> Any:
        """The module's client, created in the loop so that it shares the loop's batches."""

        loop = self._loop()

        async def get() -> Any:
            return getattr(self._client, name)

        return _wait(get(), loop)

    def _loop(self) -> asyncio.AbstractEventLoop:
        found = self._given or self._own
        if found is None:
            raise NotOpened("no role runs here; use `with app.sync_client as client`")
        return found

    def _call(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        loop = self._loop()  # raises before the coroutine is created
        return _wait(method(*args, **named), loop)


class _SyncModuleClient:
    """Makes each coroutine method of a module's client a blocking call."""

    def __init__(self, client: SyncClient, name: str) -> None:
        self._client = client
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client.module_client(self._name), name)
        if not inspect.iscoroutinefunction(method):
            raise AttributeError(f"{self._name} has no method {name!r}")

        @functools.wraps(method)
        def call(*args: Any, **named: Any) -> Any:
            return self._client._call(method, *args, **named)

        return call

    def __dir__(self) -> list[str]:
        found = self._client.module_client(self._name)
        return [each for each in dir(found) if inspect.iscoroutinefunction(getattr(found, each))]


def _wait(run: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Runs with the caller's context, so that the loop knows the current work."""
    if loop is _running_loop():
        run.close()
        raise RuntimeError("this function runs in the event loop; use app.client and await")
    return asyncio.run_coroutine_threadsafe(run, loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
