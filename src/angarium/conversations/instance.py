"""The role `conversations`: takes replies, waits for their turn, sends them, hears their ACKs.

Any number of processes run it side by side; Redis decides who may send what. A reply that waits
is woken by what happened before it: in this process at once, from another over Pub/Sub. Polling
and the awaited agent find what a lost hint or a dead process left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import msgspec

from angarium.conversations.awaited_agent import AwaitedAgent
from angarium.conversations.errors import (
    WHY_CHARS_MAX,
    Fatal,
    IdRefused,
    Recoverable,
    RetriesEnded,
    error_text,
)
from angarium.conversations.memory_queue import (
    MemoryQueue,
    MemoryQueueLimits,
    MemoryQueueMetrics,
    QueuedTask,
    TaskVerdict,
    Validation,
)
from angarium.conversations.model import (
    ConversationMessage,
    MinMessageInfo,
    OutgoingReply,
    TaskItem,
    acceptable_senders,
    encode_task,
    required_sender_of,
)
from angarium.conversations.operations import MessageSyncManager, wall_clock_ms
from angarium.conversations.script_values import AcceptResult, NewReply, TakenReply
from angarium.conversations.senders import ReplySender, ReplySenders, sender_names
from angarium.conversations.store import WAITING, ConversationStore
from angarium.conversations.views import SendersView, view_senders
from angarium.runtime.application import Angarium
from angarium.runtime.errors import AngariumError, SettingInvalid
from angarium.runtime.outbound import Outbound
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Loop, Service
from angarium.runtime.settings import Settings

ROLE = "conversations"
# New replies that one pass fetches from a partition: enough to fill the execution queue, few
# enough to leave some for the other processes.
FETCH_MAX = 100


def check(settings: Settings, app: Angarium) -> None:
    conversations = settings.conversations
    if conversations.max_pending_ttl_margin >= conversations.max_pending_ttl:
        raise SettingInvalid(
            "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL_MARGIN",
            f"{conversations.max_pending_ttl_margin} is not less than max_pending_ttl",
            f"choose less than {conversations.max_pending_ttl}",
        )


def build(
    runtime: Runtime, app: Angarium, senders: Mapping[str, ReplySender] | None = None
) -> ConversationsInstance:
    """`senders` are ways out that other modules offer, by name; they are joined in the server."""
    return ConversationsInstance(runtime, app, senders)


class WakeHints(msgspec.Struct, frozen=True):
    """What the scripts publish; anything else on the channel is ignored."""

    new: bool = False
    due: bool = False
    woken: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


_read_hints = msgspec.json.Decoder(WakeHints).decode


@dataclass(frozen=True)
class _Pass:
    again: bool


class ConversationsInstance(Service):
    def __init__(
        self, runtime: Runtime, app: Angarium, senders: Mapping[str, ReplySender] | None = None
    ) -> None:
        super().__init__(ROLE, clock=runtime.clock)
        self._joined = dict(senders or {})
        self._runtime = runtime
        self._app = app
        settings, limits = runtime.settings.conversations, runtime.settings.limits
        self._settings = settings
        self._tasks_max = limits.conversation_queue_replies_max
        self._bytes_max = limits.conversation_queue_bytes_max
        # Of replies that will be held here when Redis has accepted them.
        self._coming = self._coming_bytes = 0
        self._threads_max = settings.concurrent + limits.conversation_slow_sends_max
        # Sending must be over while the reply is still surely ours.
        self._hold_s = (settings.max_pending_ttl - settings.max_pending_ttl_margin) / 1000
        self._names = sender_names(app, self._joined)
        self.store = ConversationStore(runtime, self._names)
        # Replies found here without their sender since it was last asked who else runs.
        self._without_sender = 0
        self.queue = MemoryQueue(
            MemoryQueueLimits(
                settings.concurrent,
                settings.concurrent_factor,
                settings.max_retries,
                limits.conversation_slow_sends_max,
            ),
            self.clock,
        )
        self.manager = MessageSyncManager(self.store, settings, self.queue.wake)
        self.agent = AwaitedAgent(
            self.manager, self.store, settings, self.clock, self._module, self._enqueue
        )
        self._figures = ProcessReporter(runtime, ROLE)
        self._senders: ReplySenders | None = None
        self._outbound: Outbound | None = None
        self._fetching: Loop | None = None
        self._fetching_waiting: Loop | None = None
        self._partial = MemoryQueueMetrics()
        self.sent = self.acknowledged = self.cancelled = self.awaited = 0

    # What a process that runs the role can ask of it

    async def request(
        self,
        conversation_id: str,
        request_id: str,
        origin: str,
        *,
        corr: str = "",
        request_timestamp: int | None = None,
    ) -> tuple[str, ConversationMessage]:
        """Open a request: ('created' | 'duplicate', the request)."""
        return await self.manager.create_conversation_register(
            origin, conversation_id, request_id, corr, request_timestamp
        )

    async def reply(
        self,
        conversation_id: str,
        request_id: str,
        response_id: str,
        task_item: TaskItem,
        *,
        corr: str = "",
        response_timestamp: int | None = None,
    ) -> AcceptResult:
        """Accept a reply and send it from here, when it is its turn.

        A process whose memory is full, or that lacks the reply's sender, leaves it to others.
        """
        responded = wall_clock_ms() if response_timestamp is None else response_timestamp
        task, held = encode_task(task_item), self._module() > 0
        new = NewReply(
            conversation_id, request_id, response_id, responded, task, corr, held,
            need=required_sender_of(task_item.message_options),
        )  # fmt: skip
        self._coming += held
        self._coming_bytes += held * len(task)
        try:
            accepted = await self.store.accept_reply(new)
        finally:
            self._coming -= held
            self._coming_bytes -= held * len(task)
        if accepted.held:
            # What the sender gets beside the task comes from the request.
            self._enqueue_own(accepted, task_item, new)
        return accepted

    async def acknowledge(self, ack_id: str, conversation_id: str | None = None) -> str:
        """'delivered' or 'gone'; raises `AckUnknown`."""
        status = await self.manager.acknowledge(ack_id, conversation_id)
        self.acknowledged += status == "delivered"
        return status

    # Life

    async def on_start(self) -> None:
        settings = self._settings
        self._outbound = Outbound(
            allow_private=self._runtime.settings.allow_private_addresses, timeout_s=self._hold_s
        )
        self._senders = ReplySenders(self._app, self._outbound, self._threads_max, self._joined)
        await self.store.senders.register(self._names)
        self.store.older_beside = await self.store.senders.older_beside()
        self.spawn("queue", self.queue.run)
        self._fetching = self.loop("new", self._fetch_new, settings.interval / 1000)
        self._fetching_waiting = self.loop(
            "waiting", self._fetch_waiting, settings.check_queue_interval / 1000
        )
        self.loop("senders", self._sign_of_life, INTERVAL_S, until="stop")
        self.spawn("hints", self._listen)
        self.spawn("awaited", self.agent.run)
        self.spawn("poll", self._poll)
        self.loop("figures", self._report, INTERVAL_S, until="stop")
        if settings.extra_time_metrics:
            self.loop("metrics", self._report_partial, settings.metrics_partial_interval / 1000)

    async def on_stop(self) -> None:
        """What is being sent is finished; what waits goes back, for others to take at once."""
        await self.passes_ended()
        await self._give_back()
        await self.queue.drained()
        await self._give_back()  # what was being checked, and has to wait after all
        await self._figures.withdraw()
        await self.store.senders.withdraw()

    async def _give_back(self) -> None:
        left = [_info(task) for task in self.queue.take_all()]
        if left:
            await self.store.await_replies(left, 0, 0, "given back", tried=False)
            await self.store.hint_due()

    async def on_close(self) -> None:
        if self._senders is not None:
            self._senders.close()
        if self._outbound is not None:
            await self._outbound.close()

    # Getting replies

    def _module(self) -> int:
        """How many more may come in; none when this process is on its way out.

        In bytes it is over the limit by what one call brings, at most: a single reply that is
        larger than the whole limit has to go, too.
        """
        if not self.ready or self.queue.size_bytes + self._coming_bytes >= self._bytes_max:
            return 0
        return max(0, self._tasks_max - len(self.queue) - self._coming)

    async def _fetch_new(self) -> _Pass:
        again = False
        for partition in self.store.partitions:
            most = min(FETCH_MAX, self._module())
            if most <= 0:
                break
            infos = await self.store.pop_new(partition, most)
            if infos:
                self._enqueue(await self.manager.take(infos))
            again = again or len(infos) == most
        return _Pass(again)

    async def _fetch_waiting(self) -> _Pass:
        """What others could not send, and this process can."""
        again = False
        for partition in self.store.partitions:
            most = min(FETCH_MAX, self._module())
            if most <= 0:
                break
            infos = await self.store.pop_waiting(partition, most)
            taken = await self.manager.take(infos, WAITING)
            self._enqueue(taken)
            # Fewer were taken: together they were too large for one call, and wait again.
            again = again or len(infos) == most or len(taken) < len(infos)
        return _Pass(again)

    async def _sign_of_life(self) -> None:
        await self.store.senders.register(self._names)
        if self.manager.without_sender != self._without_sender:
            self._without_sender = self.manager.without_sender
            self.store.older_beside = await self.store.senders.older_beside()

    def _enqueue(self, taken: Sequence[TakenReply]) -> None:
        for each in taken:
            self._add(each)

    def _enqueue_own(self, accepted: AcceptResult, task: TaskItem, new: NewReply) -> None:
        reply = OutgoingReply(
            new.conversation_id,
            new.request_id,
            new.response_id,
            accepted.origin,
            task,
            accepted.request_timestamp,
            new.response_timestamp,
            corr=new.corr,
        )
        left_ms = self._settings.awaited_message_ttl
        self._add(TakenReply(accepted.info, accepted.score, left_ms, reply, len(new.task)))

    def _add(self, taken: TakenReply) -> None:
        info, reply = taken.info, taken.reply
        self.queue.add(
            QueuedTask(
                execution_task=self._send,
                validation_task=self._validate,
                error_task=self._failed,
                # Response ids are known once per partition only.
                task_id=info.key().decode(),
                task_group=info.conversation_id,
                ts_input=reply.request_timestamp,
                ts_output=reply.response_timestamp,
                time_in_queue=min(self._hold_s, taken.left_ms / 1000),
                size_bytes=taken.size_bytes,
                message_options=(info, reply),
                corr=reply.corr,
                order=taken.score,
            )
        )

    async def _listen(self) -> None:
        async with self._runtime.redis.subscribe(self.store.wake_channel) as subscription:
            while True:
                batch = await subscription.receive()
                if batch.gap:
                    self.queue.wake_all()
                    self._wake_fetching()
                    self._wake_fetching_waiting()
                for message in batch.messages:
                    self._take_hints(message.payload)

    def _take_hints(self, payload: bytes) -> None:
        try:
            hints = _read_hints(payload)
        except (msgspec.MsgspecError, RecursionError):
            return  # not from a script of ours
        if hints.new:
            self._wake_fetching()
        if hints.due:
            self.agent.wake()
        if any(name in self._names for need in hints.needs for name in acceptable_senders(need)):
            self._wake_fetching_waiting()
        for conversation_id in hints.woken:
            self.queue.wake(conversation_id)

    def _wake_fetching(self) -> None:
        if self._fetching is not None:
            self._fetching.wake()

    def _wake_fetching_waiting(self) -> None:
        if self._fetching_waiting is not None:
            self._fetching_waiting.wake()

    async def _poll(self) -> None:
        """The net under the wake-ups; it looks less often while there is nothing to look at."""
        settings = self._settings
        while True:
            busy = len(self.queue) > 0
            await self.clock.sleep(
                (settings.interval if busy else settings.check_queue_interval) / 1000
            )
            self.queue.poll()

    # Sending

    async def _validate(self, task: QueuedTask) -> Validation:
        verdict = await self.store.check_reply(_info(task), only_mine=True)
        if verdict.status == "send":
            return Validation(TaskVerdict.RUN)
        if verdict.status == "gone":
            return Validation(TaskVerdict.DROP)
        return Validation(
            TaskVerdict.WAIT, None if verdict.left_ms is None else verdict.left_ms / 1000
        )

    async def _send(self, task: QueuedTask) -> float | None:
        assert self._senders is not None
        info, reply = _info(task), _reply(task)
        left_s = self._hold_s - (self.clock.monotonic() - task.entered_s)
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                ack_id = await self._senders.send(reply)
        except TimeoutError:
            raise Recoverable(f"the sender did not end within {self._hold_s:g} s") from None
        self.sent += 1
        try:
            if ack_id is None:
                await self.store.finish(info, "unasked")
                return None
            try:
                if await self.store.report_sent(info, ack_id) == "ack_taken":
                    self.log.warning("ack_id_taken", reply=info.response_id, ack=ack_id)
            except IdRefused as error:
                self.log.warning("ack_id_refused", reply=info.response_id, error=str(error))
                await self.store.finish(info, "unasked")
                return None
        except AngariumError as error:
            # It left, but Redis does not know: it will be sent again when our claim has ended.
            self.log.error("sent_but_not_reported", reply=info.response_id, error=str(error))
            return None
        return self._settings.sent_message_ttl / 1000

    async def _failed(self, task: QueuedTask, error: Exception) -> None:
        info = _info(task)
        if isinstance(error, Fatal):
            self.cancelled += await self.manager.cancel_group(info, error_text(error))
        elif isinstance(error, RetriesEnded):
            self.awaited += 1
            await self.manager.set_awaited_when_retries_end([info])
        else:
            why = f"{type(error).__name__}: {error_text(error)}"[:WHY_CHARS_MAX]
            if not isinstance(error, Recoverable | AngariumError):
                self.log.warning("sender_failed", reply=info.response_id, error=why, exc_info=error)
            self.awaited += await self.manager.set_awaited_by_request_id(
                info.conversation_id, info.request_id, why=why
            )

    # Figures

    async def _report(self) -> None:
        figures: dict[str, float | str] = {
            "queue": len(self.queue),
            "queue_bytes": self.queue.size_bytes,
            "parked": self.queue.parked,
            "executing": self.queue.in_execution,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "awaited": self.awaited,
            "cancelled": self.cancelled,
            "turns": self.agent.turns,
        }
        for partition in self.store.partitions:
            replies, requests, new = await self.store.in_flight(partition)
            for name, value in (("replies", replies), ("requests", requests), ("new", new)):
                figures[name] = float(figures.get(name, 0)) + value
        figures |= without_sender(await view_senders(self.store))
        figures["senders"] = " ".join(self._names)
        await self._figures.report(figures)
        self.log.info("figures", **figures)

    async def _report_partial(self) -> None:
        now = MemoryQueueMetrics(**asdict(self.queue.figures))
        before, self._partial = asdict(self._partial), now
        partial = {name: value - before[name] for name, value in asdict(now).items()}
        self.log.info(
            "queue_metrics", interval_ms=self._settings.metrics_partial_interval, **partial
        )


def without_sender(shown: SendersView) -> dict[str, int]:
    """How many replies wait for a process with their sender, and for how long the first does."""
    since_ms = min((need.since_ms for need in shown.needs), default=shown.now_ms)
    return {
        "without_sender": sum(need.replies for need in shown.needs),
        "without_sender_ms": max(0, shown.now_ms - since_ms),
    }


def _info(task: QueuedTask) -> MinMessageInfo:
    info: MinMessageInfo = task.message_options[0]
    return info


def _reply(task: QueuedTask) -> OutgoingReply:
    reply: OutgoingReply = task.message_options[1]
    return reply
