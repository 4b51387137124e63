"""One process fills a lake: a lease with a term on the lake's id, kept in Redis.

The lease keeps a second runner from doing the first one's work again. It is no guard of the tables:
a runner that was paused past its lease finds its batches in the tables' logs, and commits nothing
twice. While Redis does not answer, nobody can take the lease, so its holder goes on; when Redis is
back and nobody had the lease meanwhile, which the terms say, the holder has it again.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from contextlib import AbstractContextManager, suppress
from typing import Any

from angarium.lake import keys as lake_keys
from angarium.redis.blocking import BlockingRedis
from angarium.redis.errors import RedisUnavailable
from angarium.redis.options import RedisOptions
from angarium.runtime import keys
from angarium.runtime.keyspace import Keyspace
from angarium.runtime.lease import (
    ACQUIRE,
    RELEASE,
    RENEW,
    RENEWALS_PER_LEASE,
    LeaseEnd,
    LeaseRefused,
    LeaseRenewal,
    LeaseWish,
)
from angarium.runtime.transition import Transition

LEASE_MS = 15_000


class RunnerLease(AbstractContextManager["RunnerLease"]):
    """`acquire` or `wait` for it; then `lost` is set when another runner has it.

    A turn of its own thread prolongs it; leaving the context gives it back.
    """

    def __init__(
        self,
        options: RedisOptions,
        keyspace: Keyspace,
        lake_id: str,
        url: str,
        *,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._options = options
        self._lease_ms = lease_ms
        self._lake = lake_id, url
        self._lakes = keyspace.name(lake_keys.LAKES)
        journal = keyspace.name(keys.JOURNAL), keyspace.name(keys.JOURNAL_META)
        self._lock = [*journal, keyspace.name(lake_keys.LAKE_RUNNER, 0, lake_id)]
        self._term_key = keyspace.name(lake_keys.LAKE_RUNNER_TERM, 0, lake_id)
        self._name = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
        # Not journalled: each run of the lake would leave events that the next one finds.
        self._base: tuple[str, str, int] = ("", f"lake {self._name}", 0)
        self._redis = BlockingRedis(options)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.term: int | None = None
        self.holder = ""
        self.lost = threading.Event()

    def acquire(self) -> bool:
        """Take it if it is free. False: `holder` says who has it."""
        if not self._take(self._redis):
            return False
        self._redis.call("HSET", self._lakes, *self._lake, key=self._lakes)
        self._thread = threading.Thread(target=self._keep, name="lake-lease", daemon=True)
        self._thread.start()
        return True

    def wait(self, stop: threading.Event) -> bool:
        """Until it is ours, or `stop` is set."""
        while not self.acquire():
            if stop.wait(self._lease_ms / RENEWALS_PER_LEASE / 1000):
                return False
        return True

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self.term is not None and not self.lost.is_set():
            with suppress(RedisUnavailable):  # then it ends by itself
                self._run(self._redis, RELEASE, self._lock, LeaseEnd(self._name, self.term))
        self._redis.close()

    def _keep(self) -> None:
        with BlockingRedis(self._options) as redis:
            while not self._ended.wait(self._lease_ms / RENEWALS_PER_LEASE / 1000):
                with suppress(RedisUnavailable):
                    if not self._renew(redis):
                        self.lost.set()
                        return

    def _renew(self, redis: BlockingRedis) -> bool:
        assert self.term is not None
        term = self.term
        renewal = LeaseRenewal(self._name, term, self._lease_ms)
        if self._run(redis, RENEW, self._lock, renewal) == "renewed":
            return True
        # It has expired; the next term is ours unless somebody had it.
        return self._take(redis) and self.term == term + 1

    def _take(self, redis: BlockingRedis) -> bool:
        names = [*self._lock, self._term_key]
        reply = self._run(redis, ACQUIRE, names, LeaseWish(self._name, self._lease_ms))
        if isinstance(reply, LeaseRefused):
            self.holder = reply.holder
            return False
        self.term, self.holder = reply.term, self._name
        return True

    def _run(
        self,
        redis: BlockingRedis,
        transition: Transition[Any],
        names: list[str],
        args: tuple[Any, ...],
    ) -> Any:
        values = (*self._base, *transition.arguments(args))
        return transition.decode(redis.run(transition.script, names, values))
