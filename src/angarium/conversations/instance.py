"""The role `conversations`: takes replies, sends each when it is its turn, receives ACKs.

Any number of processes run the role; Redis decides which process may send which reply. The end of
the reply ahead wakes a waiting reply: directly in the same process, over Pub/Sub in another.
Polling and the awaited agent find the replies of lost hints and dead processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

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
from angarium.conversations.limits import ConversationsLimits
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
)
from angarium.conversations.operations import ConversationOperations, new_reply
from angarium.conversations.script_values import AcceptResult, NewReply, TakenReply
from angarium.conversations.senders import ReplySender, ReplySenders, sender_names
from angarium.conversations.settings import ConversationsSettings
from angarium.conversations.store import WAITING, ConversationStore
from angarium.conversations.views import view_senders
from angarium.runtime.application import Angarium
from angarium.runtime.errors import AngariumError, SettingInvalid
from angarium.runtime.outbound import Outbound
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Loop, Service
from angarium.runtime.settings import CommonSettings

ROLE = "conversations"
# Replies that one pass fetches from a partition: enough to fill the execution queue, few enough to
# leave some for the other processes.
FETCH_MAX = 100


def check(settings: CommonSettings, app: Angarium) -> None:
    conversations = settings.group(ConversationsSettings)
    if conversations.max_pending_ttl_margin >= conversations.max_pending_ttl:
        raise SettingInvalid(
            "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL_MARGIN",
            f"{conversations.max_pending_ttl_margin} is not less than max_pending_ttl",
            f"choose less than {conversations.max_pending_ttl}",
        )


def build(
    runtime: Runtime, app: Angarium, senders: Mapping[str, ReplySender] | None = None
) -> ConversationsInstance:
    """`senders`: senders of other modules by name; the server passes them."""
    return ConversationsInstance(runtime, app, senders)


class WakeHints(msgspec.Struct, frozen=True):
    """The JSON that the scripts publish. `needs` are required senders of waiting replies."""

    new: bool = False
    due: bool = False
    woken: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


_read_hints = msgspec.json.Decoder(WakeHints).decode


@dataclass(frozen=True)
class FetchPass:
    again: bool


class ConversationsInstance(Service):
    def __init__(
        self, runtime: Runtime, app: Angarium, senders: Mapping[str, ReplySender] | None = None
    ) -> None:
        super().__init__(ROLE, clock=runtime.clock)
        self._joined = dict(senders or {})
        self.runtime = runtime
        self._app = app
        settings, limits = (
            runtime.settings.group(ConversationsSettings),
            runtime.settings.limits_of(ConversationsLimits),
        )
        self._settings = settings
        self._tasks_max = limits.conversation_queue_replies_max
        self._bytes_max = limits.conversation_queue_bytes_max
        # Replies that Redis is accepting for this process.
        self._accepting = self._accepting_bytes = 0
        self._threads_max = settings.concurrent + limits.conversation_slow_sends_max
        # A send must end while this process certainly holds the reply.
        self._hold_s = (settings.max_pending_ttl - settings.max_pending_ttl_margin) / 1000
        self._sender_names = sender_names(app, self._joined)
        self.store = ConversationStore(runtime, self._sender_names)
        # `operations.without_sender` when the registry was last asked for old processes.
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
        self.operations = ConversationOperations(self.store, settings, self.queue.wake)
        self.agent = AwaitedAgent(
            self.operations, self.store, settings, self.clock, self._free_slots, self._enqueue
        )
        self._reporter = ProcessReporter(runtime, ROLE)
        self._senders: ReplySenders | None = None
        self._outbound: Outbound | None = None
        self._fetching: Loop | None = None
        self._fetching_waiting: Loop | None = None
        self._last_metrics = MemoryQueueMetrics()
        self.sent = self.acknowledged = self.cancelled = self.awaited = 0

    # Operations for programs that run the role themselves

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
        return await self.operations.open_request(
            conversation_id, request_id, origin, corr=corr, request_timestamp=request_timestamp
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
        """Accept a reply; this process sends it when it is its turn.

        If the memory queue is full or lacks the reply's sender, another process sends it.
        """
        held = self._free_slots() > 0
        new = new_reply(
            conversation_id, request_id, response_id, task_item, corr=corr,
            response_timestamp=response_timestamp,
        )  # fmt: skip
        self._accepting += held
        self._accepting_bytes += held * len(new.task)
        try:
            accepted = await self.store.accept_reply(replace(new, held=held))
        finally:
            self._accepting -= held
            self._accepting_bytes -= held * len(new.task)
        if accepted.held:
            self._enqueue_accepted(accepted, task_item, new)
        return accepted

    async def acknowledge(self, ack_id: str, conversation_id: str | None = None) -> str:
        """'delivered' or 'gone'; raises `AckUnknown`."""
        status = await self.operations.acknowledge(ack_id, conversation_id)
        self.acknowledged += status == "delivered"
        return status

    # Starting and stopping

    async def on_start(self) -> None:
        settings = self._settings
        self._outbound = Outbound(
            allow_private=self.runtime.settings.allow_private_addresses, timeout_s=self._hold_s
        )
        self._senders = ReplySenders(self._app, self._outbound, self._threads_max, self._joined)
        await self.store.senders.register(self._sender_names)
        self.store.old_version_runs = await self.store.senders.old_version_runs()
        self.spawn("queue", self.queue.run)
        self._fetching = self.loop("new", self._fetch_new, settings.interval / 1000)
        self._fetching_waiting = self.loop(
            "waiting", self._fetch_waiting, settings.check_queue_interval / 1000
        )
        self.loop("senders", self._register_senders, INTERVAL_S, until="stop")
        self.spawn("hints", self._listen)
        self.spawn("awaited", self.agent.run)
        self.spawn("poll", self._poll)
        self.loop("metrics", self.report, INTERVAL_S, until="stop")
        if settings.extra_time_metrics:
            self.loop(
                "partial_metrics", self._report_partial, settings.metrics_partial_interval / 1000
            )

    async def on_stop(self) -> None:
        """Finish the running sends and give the other replies back, for others to take at once."""
        await self.passes_ended()
        await self._give_back()
        await self.queue.drained()
        await self._give_back()  # replies that were in validation and must wait
        await self._reporter.withdraw()
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

    # Fetching replies

    def _free_slots(self) -> int:
        """How many more replies the memory queue takes; 0 while this process stops.

        The bytes may exceed their limit by what one call fetches, so that a reply larger than the
        whole limit is also sent.
        """
        if not self.ready or self.queue.size_bytes + self._accepting_bytes >= self._bytes_max:
            return 0
        return max(0, self._tasks_max - len(self.queue) - self._accepting)

    async def _fetch_new(self) -> FetchPass:
        again = False
        for partition in self.store.partitions:
            most = min(FETCH_MAX, self._free_slots())
            if most <= 0:
                break
            infos = await self.store.pop_new(partition, most)
            if infos:
                self._enqueue(await self.operations.take(infos))
            again = again or len(infos) == most
        return FetchPass(again)

    async def _fetch_waiting(self) -> FetchPass:
        """Replies whose sender another process lacked and this process has."""
        again = False
        for partition in self.store.partitions:
            most = min(FETCH_MAX, self._free_slots())
            if most <= 0:
                break
            infos = await self.store.pop_waiting(partition, most)
            taken = await self.operations.take(infos, WAITING)
            self._enqueue(taken)
            # Fewer were taken if together they were too large for one call; the rest waits again.
            again = again or len(infos) == most or len(taken) < len(infos)
        return FetchPass(again)

    async def _register_senders(self) -> None:
        await self.store.senders.register(self._sender_names)
        if self.operations.without_sender != self._without_sender:
            self._without_sender = self.operations.without_sender
            self.store.old_version_runs = await self.store.senders.old_version_runs()

    def _enqueue(self, taken: Sequence[TakenReply]) -> None:
        for each in taken:
            self._add(each)

    def _enqueue_accepted(self, accepted: AcceptResult, task: TaskItem, new: NewReply) -> None:
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
                execution_task=self.send,
                validation_task=self._validate,
                error_task=self._failed,
                # A response id is unique in its partition only.
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
        async with self.runtime.redis.subscribe(self.store.wake_channel) as subscription:
            while True:
                batch = await subscription.receive()
                if batch.gap:
                    self.queue.wake_all()
                    self._wake_fetching()
                    self._wake_fetching_waiting()
                for message in batch.messages:
                    self._apply_hints(message.payload)

    def _apply_hints(self, payload: bytes) -> None:
        try:
            hints = _read_hints(payload)
        except (msgspec.MsgspecError, RecursionError):
            return  # another program published it
        if hints.new:
            self._wake_fetching()
        if hints.due:
            self.agent.wake()
        if any(
            name in self._sender_names for need in hints.needs for name in acceptable_senders(need)
        ):
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
        """Finds what lost wake-ups missed; polls less often while the queue is empty."""
        settings = self._settings
        while True:
            busy = len(self.queue) > 0
            await self.clock.sleep(
                (settings.interval if busy else settings.check_queue_interval) / 1000
            )
            self.queue.poll()

    # Sending

    async def _validate(self, task: QueuedTask) -> Validation:
        found = await self.store.check_reply(_info(task), only_mine=True)
        if found.status == "send":
            return Validation(TaskVerdict.RUN)
        if found.status == "gone":
            return Validation(TaskVerdict.DROP)
        left_s = None if found.left_ms is None else found.left_ms / 1000
        return Validation(TaskVerdict.WAIT, left_s)

    async def send(self, task: QueuedTask) -> float | None:
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
            # Redis does not know of the send: the reply is sent again when the claim expires.
            self.log.error("sent_but_not_reported", reply=info.response_id, error=str(error))
            return None
        return self._settings.sent_message_ttl / 1000

    async def _failed(self, task: QueuedTask, error: Exception) -> None:
        info = _info(task)
        if isinstance(error, Fatal):
            self.cancelled += await self.operations.cancel_group(info, error_text(error))
        elif isinstance(error, RetriesEnded):
            self.awaited += 1
            await self.operations.await_after_retries(info)
        else:
            why = f"{type(error).__name__}: {error_text(error)}"[:WHY_CHARS_MAX]
            if not isinstance(error, Recoverable | AngariumError):
                self.log.warning("sender_failed", reply=info.response_id, error=why, exc_info=error)
            self.awaited += await self.operations.await_group(
                info.conversation_id, info.request_id, why
            )

    # Metrics

    async def report(self) -> None:
        metrics: dict[str, float | str] = {
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
                metrics[name] = float(metrics.get(name, 0)) + value
        metrics |= (await view_senders(self.store)).metrics()
        metrics["senders"] = " ".join(self._sender_names)
        await self._reporter.report(metrics)
        self.log.info("metrics", **metrics)

    async def _report_partial(self) -> None:
        before, self._last_metrics = asdict(self._last_metrics), replace(self.queue.metrics)
        now = asdict(self._last_metrics)
        partial = {name: value - before[name] for name, value in now.items()}
        self.log.info(
            "queue_metrics", interval_ms=self._settings.metrics_partial_interval, **partial
        )


def _info(task: QueuedTask) -> MinMessageInfo:
    info: MinMessageInfo = task.message_options[0]
    return info


def _reply(task: QueuedTask) -> OutgoingReply:
    reply: OutgoingReply = task.message_options[1]
    return reply
