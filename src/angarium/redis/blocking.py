"""The Redis client for code without an event loop: Spark's tasks and driver, scripts, tests.

It is the asynchronous client on an event loop of its own, which runs only while a call waits for
its reply. It belongs to one thread at a time. It connects on first use and does not judge the
server (`connect` of the asynchronous client does).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

from angarium.redis.client import Redis
from angarium.redis.connection import Argument, Command, ReplyError
from angarium.redis.errors import AngariumError, RedisUnavailable
from angarium.redis.options import RedisOptions
from angarium.redis.scripts import Script

Result = TypeVar("Result")


class BlockingRedis(AbstractContextManager["BlockingRedis"]):
    """`with BlockingRedis(RedisOptions(url)) as redis: redis.call("PING")`.

    Every command sent here must be one that may run twice. `options.unavailable_timeout_s` is how
    long an outage may last.
    """

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        try:
            self._redis = self._wait(self._make())
        except BaseException:
            self._loop.close()
            raise

    @property
    def clustered(self) -> bool:
        return self._redis.clustered

    def call(self, *command: Argument, key: str | bytes | None = None) -> Any:
        """One command; an error of Redis is raised."""
        return self._wait(self._redis.call(*command, key=key))

    def ask(self, commands: Sequence[Command], *, key: str | bytes | None = None) -> list[Any]:
        """Commands for the server of `key`, sent together; the first error of Redis is raised."""
        replies = self._wait(self._redis.execute(commands, key=key, repeatable=True))
        for reply in replies:
            if isinstance(reply, ReplyError):
                self._redis.raise_refusal(reply)
        return replies

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """One call of a script that is safe to repeat."""
        assert script.repeatable, script.name
        return self._wait(self._redis.run(script, keys, args))[0]

    def find_keys(self, pattern: str, kind: str) -> set[bytes]:
        return self._wait(self._redis.find_keys(pattern, kind))

    def close(self) -> None:
        if not self._loop.is_closed() and os.getpid() == self._process:
            self._finished(self._redis.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _make(self) -> Redis:
        return Redis(self._options)

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if os.getpid() != self._process:
            # Two processes on one socket would read each other's replies, fences and all.
            work.close()
            raise AngariumError("this client was made before a fork; make one in each process")
        try:
            return self._finished(work)
        except RedisUnavailable as error:
            waited = f"waited {self._options.unavailable_timeout_s:.0f} s"
            raise RedisUnavailable(f"{error} ({waited})") from error

    def _finished(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run_until_complete(work)
        # The caller's thread runs another event loop, which a second one can't run inside.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._loop.run_until_complete, work).result()
