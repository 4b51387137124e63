"""Dispatchers, a worker and a publisher as real processes under a prefix of their own.

Only through Redis do the benchmarks speak to them: orders to the publisher go in by a list, and
done is what stands in the stream of results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

from angarium.dispatch import keys as dispatch_keys
from angarium.runtime import keys as runtime_keys
from angarium.runtime.keyspace import Key, Keyspace
from benchmarks.end_to_end import wait_for

DEADLINE_S = 120.0
ORDERS = "benchmark:orders"


class Fabric:
    """Use as a context manager; what it started is gone at the end."""

    def __init__(
        self,
        name: str,
        server: ServerProcess,
        *,
        prefix: str = "",
        partitions: int = 1,
        dispatchers: int = 1,
        settings: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
    ) -> None:
        """`command` is what runs a role, where it is not the installed `angarium`."""
        self.name = name
        self._command = command
        self.dispatchers: list[RoleProcess] = []
        self._server = server
        self._partitions = partitions
        self._dispatchers = dispatchers
        self._witness: Any = server.client(decode_responses=True)
        self._env = {
            "ANGARIUM_REDIS_URL": server.url,
            "ANGARIUM_PREFIX": prefix,
            "ANGARIUM_PARTITIONS": str(partitions),
            "ANGARIUM_DISPATCH__ACK_PORT": "0",
            **(settings or {}),
        }
        keyspace = Keyspace(prefix, partitions)
        self._orders = prefix + ORDERS
        self.channel = keyspace.global_name(dispatch_keys.MESSAGES_PUBLISHED)

        def named(key: Key) -> list[str]:
            return [keyspace.name(key, partition) for partition in range(partitions)]

        self.streams = named(dispatch_keys.MESSAGES_PROCESSED)
        self.pending = named(dispatch_keys.MESSAGES_PENDING)
        self.payloads = named(dispatch_keys.MESSAGES_PAYLOADS)
        self.locks = named(dispatch_keys.LEADER_LOCK)
        self.terms = named(dispatch_keys.LEADER_LOCK_TERM)
        self._journals = named(runtime_keys.JOURNAL)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for _ in range(self._dispatchers):
                self.dispatchers.append(stack.enter_context(self._role("serve", "dispatcher")))
            self._worker = stack.enter_context(
                self._role("serve", "worker", "--app", "benchmarks.echo:app")
            )
            publisher = ["-m", "benchmarks.publisher", self._server.url]
            self._publisher = stack.enter_context(
                RoleProcess([*publisher, self.channel, self._orders])
            )
            self._wait_led()
            self.run(1)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for dispatcher in self.dispatchers:
            dispatcher.close()
        self._stack.close()

    def add_dispatcher(self) -> None:
        """One more, that hears the channel when this returns."""
        hearing = sum(each.alive for each in self.dispatchers)
        dispatcher = self._role("serve", "dispatcher")
        self.dispatchers.append(dispatcher)
        dispatcher.__enter__()
        self._wait_hearing(hearing + 1)

    def reset(self) -> None:
        self._witness.delete(*self.streams, *self._journals)

    def run(self, messages: int) -> None:
        wanted = self.results() + messages
        self.order(messages)
        wait_for(lambda: self.results() >= wanted, DEADLINE_S, f"{self.name}: {messages} messages")

    def order(self, messages: int, rate: int = 0) -> None:
        """Have so many published, `rate` a second or as fast as it goes; returns at once."""
        self._witness.rpush(self._orders, f"{messages} {rate}")

    def orders_waiting(self) -> int:
        return int(self._witness.llen(self._orders))

    def results(self) -> int:
        return sum(self._witness.xlen(stream) for stream in self.streams)

    def pids(self) -> Mapping[str, Sequence[int]]:
        return {
            "publisher": [self._publisher.pid],
            "dispatcher" if self._dispatchers == 1 else "dispatchers": [
                each.pid for each in self.dispatchers if each.alive
            ],
            "worker": [self._worker.pid],
        }

    def _role(self, *args: str) -> RoleProcess:
        return RoleProcess([*self._command, *args], self._env)

    def _wait_led(self) -> None:
        self._wait_hearing(self._dispatchers)

        def leaders() -> int:
            return len({value for lock in self.locks if (value := self._witness.get(lock))})

        wanted = min(self._partitions, self._dispatchers)
        wait_for(
            lambda: self._witness.exists(*self.locks) == self._partitions and leaders() >= wanted,
            DEADLINE_S,
            f"{self.name}: leaders",
        )

    def _wait_hearing(self, dispatchers: int) -> None:
        wait_for(
            lambda: self._witness.pubsub_numsub(self.channel)[0][1] >= dispatchers,
            DEADLINE_S,
            f"{self.name}: subscriptions",
        )
