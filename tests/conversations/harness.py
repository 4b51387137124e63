"""For the tests of conversations: a store with its clock, the role, a recording sender."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from angarium.conversations.compat import MessageSyncManager
from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import MessageOptions, MinMessageInfo, OutgoingReply, TaskItem
from angarium.conversations.script_values import NewReply, TakeResult
from angarium.conversations.store import ConversationStore
from angarium.runtime.application import Application
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.runtime import Runtime
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime

DEADLINE_S = 60.0  # for a wait on a busy machine


def info(request_id: str, response_id: str = "", conversation_id: str = "c") -> MinMessageInfo:
    return MinMessageInfo(request_id, response_id, conversation_id)


class Harness:
    """One process: its store, its manager, and a clock that the test moves."""

    def __init__(
        self, runtime: Runtime, clock: FakeClock, senders: Sequence[str] | None = None
    ) -> None:
        """`senders`: the senders of the process; None for any."""
        self.runtime = runtime
        self.clock = clock
        self.store = ConversationStore(runtime, senders)
        self.manager = MessageSyncManager(runtime, self.store)

    async def request(self, request_id: str, conversation_id: str = "c") -> int:
        which = info(request_id, "", conversation_id)
        status, position = await self.store.create_request(which, "whatsapp", 1, "corr")
        assert status == "created"
        return position

    async def reply(
        self,
        request_id: str,
        response_id: str,
        conversation_id: str = "c",
        *,
        held: bool = True,
        required_sender: str = "",
    ) -> MinMessageInfo:
        new = NewReply(
            conversation_id, request_id, response_id, 2, b"{}", "corr", "near" if held else "",
            required_sender=required_sender,
        )  # fmt: skip
        accepted = await self.store.accept_reply(new)
        assert not accepted.duplicate
        return accepted.info

    async def claim(self, most: int = 100) -> list[TakeResult]:
        """Claim and take what is due now."""
        found: list[TakeResult] = []
        for partition in self.store.partitions:
            claim = await self.store.claim_awaited(partition, most)
            found += await self.store.take(claim.infos, claim.claim)
        return found

    async def verdict(self, which: MinMessageInfo) -> str:
        return (await self.store.check_reply(which)).status

    async def events(self) -> list[tuple[str, str]]:
        """Event and subject of everything in the journal, one partition after the other."""
        found: list[tuple[str, str]] = []
        for partition in range(self.runtime.settings.partitions):
            for entry in await Journal(self.runtime).read(partition, entries_max=100_000):
                events = decode_entry(*entry).events
                found += [(event.event, event.subject) for event in events]
        return found

    async def count(self, event: str) -> int:
        return sum(1 for name, _ in await self.events() if name == event)


@asynccontextmanager
async def harnesses(
    redis_url: str, *senders: Sequence[str] | None, **overrides: Any
) -> AsyncIterator[list[Harness]]:
    """Several processes with their senders; their names are `p0`, `p1` and so on."""
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        found: list[Harness] = []
        for number, names in enumerate(senders):
            if found:
                overrides["prefix"] = found[0].runtime.settings.prefix
            runtime = await stack.enter_async_context(
                sample_runtime(redis_url, clock=clock, actor=f"p{number}", **overrides)
            )
            found.append(Harness(runtime, clock, names))
        yield found


@asynccontextmanager
async def harness(redis_url: str, **overrides: Any) -> AsyncIterator[Harness]:
    clock = FakeClock()
    async with sample_runtime(redis_url, clock=clock, **overrides) as runtime:
        yield Harness(runtime, clock)


def task(payload: object = None, **options: Any) -> TaskItem:
    return TaskItem(MessageOptions(payload, **options))


@asynccontextmanager
async def instance(
    redis_url: str, app: Application, *, prefix: str | None = None, **overrides: Any
) -> AsyncIterator[ConversationsInstance]:
    """The role, running in this process on the real clock."""
    fixed: dict[str, Any] = {} if prefix is None else {"prefix": prefix}
    async with sample_runtime(redis_url, **fixed, **overrides) as runtime:
        service = ConversationsInstance(runtime, app)
        await service.start()
        try:
            yield service
        finally:
            await service.stop(10)


class Client:
    """A sender that records the replies it sends; with `ack` it returns an ACK id for each."""

    def __init__(self, *, ack: bool = False) -> None:
        self.app = Application()
        self.sent: list[str] = []
        self._ack = ack
        self.app.reply_sender()(self.send)

    async def wait(self, number: int) -> None:
        """Wait until this many replies are sent."""
        await eventually(lambda: len(self.sent) >= number, DEADLINE_S)

    async def send(self, reply: OutgoingReply) -> str | None:
        self.sent.append(reply.response_id)
        return f"ack-{reply.response_id}" if self._ack else None
