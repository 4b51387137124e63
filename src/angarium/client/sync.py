"""The client for code without a loop: the same calls, which return when they are done.

Entered as a context it runs a loop in a thread of its own. In a role's process, a plain function,
which runs in a thread, has one that hands its calls to the loop of the process: `app.sync_client`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from angarium.client.client import Client, NotOpened

T = TypeVar("T")


class SyncClient:
    """`with SyncClient() as client: client.transactions.start("order", {…})`

    That of a role's process (`app.sync_client`) is open already.
    """

    def __init__(
        self, client: Client | None = None, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._client = client or Client()
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
        return self._call(self._client.publish, message, traceparent=traceparent)

    @property
    def dispatch(self) -> _Part:
        return _Part(self, "dispatch")

    @property
    def routing(self) -> _Part:
        return _Part(self, "routing")

    @property
    def transactions(self) -> _Part:
        return _Part(self, "transactions")

    @property
    def conversations(self) -> _Part:
        return _Part(self, "conversations")

    @property
    def pickup(self) -> _Part:
        return _Part(self, "pickup")

    def part(self, name: str) -> Any:
        """A module's client, made in the loop: it takes part in the batches of that loop."""

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
        loop = self._loop()  # first: without one there is nothing to call
        return _wait(method(*args, **named), loop)


class _Part:
    """A module's client: each of its methods, to be waited for."""

    def __init__(self, client: SyncClient, name: str) -> None:
        self._client = client
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client.part(self._name), name)
        if not inspect.iscoroutinefunction(method):
            raise AttributeError(f"{self._name} has no method {name!r}")

        def call(*args: Any, **named: Any) -> Any:
            return self._client._call(method, *args, **named)

        return call


def _wait(run: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """The context of the caller goes along: what is in hand is known on the other side."""
    if loop is _running_loop():
        run.close()
        raise RuntimeError("this function runs in the loop itself; use app.client and await")
    return asyncio.run_coroutine_threadsafe(run, loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
