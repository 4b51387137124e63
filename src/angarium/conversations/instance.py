"""The role `conversations`: takes replies, sends each when it is its turn, receives ACKs.

Any number of processes run the role; Redis decides which process may send which reply. The role
uses the sync manager as any other program does: it holds replies, renews the holds of those it is
sending, and gives back what it can't send. The end of the reply ahead wakes a waiting reply:
directly in the same process, over Pub/Sub in another. The awaited agent finds the replies of lost
hints and dead processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace

import msgspec

from angarium.conversations.awaited_agent import AwaitedAgent
from angarium.conversations.compat import MessageSyncManager
from angarium.conversations.errors import (
    WHY_CHARS_MAX,
    Fatal,
    IdRefused,
    Recoverable,
    RetriesEnded,
    error_text,
)
from angarium.conversations.limits import ConversationsLimits
from angarium.conversations.memory_queue import MemoryQueue, MemoryQueueLimits, MemoryQueueMetrics
from angarium.conversations.model import (
    MinMessageInfo,
    OutgoingReply,
    TaskItem,
    acceptable_senders,
    encode_task,
)
from angarium.conversations.queued_task import QueuedTask, TaskVerdict, Validation
from angarium.conversations.script_values import AcceptResult, TakenReply
from angarium.conversations.senders import ReplySender, ReplySenders, sender_names
from angarium.conversations.service import RETRY_MS_MIN, wall_clock_ms
from angarium.conversations.settings import ConversationsSettings
from angarium.conversations.store import ConversationStore
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError, SettingInvalid
from angarium.runtime.outbound import Outbound
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import CommonSettings
from angarium.runtime.trace import CURRENT_WORK, CurrentWork, read_traceparent

_Task = Callable[[], Awaitable[None]]

ROLE = "conversations"
# A hold is renewed this often in its time, so that one failed pass does not end it.
RENEWALS_PER_HOLD = 3


def check(settings: CommonSettings, app: Application) -> None:
    conversations = settings.group(ConversationsSettings)
    if conversations.max_pending_ttl_margin >= conversations.max_pending_ttl:
        raise SettingInvalid(
            "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL_MARGIN",
            f"{conversations.max_pending_ttl_margin} is not less than max_pending_ttl",
            f"choose less than {conversations.max_pending_ttl}",
        )


def build(
    runtime: Runtime, app: Application, senders: Mapping[str, ReplySender] | None = None
) -> ConversationsInstance:
    """`senders`: senders of other modules by name; the server passes them."""
    return ConversationsInstance(runtime, app, senders)


class WakeHints(msgspec.Struct, frozen=True):
    """The JSON that the scripts publish. `needs` are required senders of waiting replies."""

    due: bool = False
    woken: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


_read_hints = msgspec.json.Decoder(WakeHints).decode


class ConversationsInstance(Service):
    def __init__(
        self, runtime: Runtime, app: Application, senders: Mapping[str, ReplySender] | None = None
    ) -> None:
        super().__init__(ROLE, clock=runtime.clock)
        self._joined = dict(senders or {})
        self.runtime = runtime
        self._app = app
        settings = runtime.settings.group(ConversationsSettings)
        limits = runtime.settings.limits_of(ConversationsLimits)
        self._settings = settings
        self._tasks_max = limits.conversation_queue_replies_max
        self._bytes_max = limits.conversation_queue_bytes_max
        # Replies that Redis is accepting for this process.
        self._accepting = self._accepting_bytes = 0
        self._threads_max = settings.concurrent + limits.conversation_slow_sends_max
        # A reply that could not be sent within this time is given back.
        self._hold_s = (settings.max_pending_ttl - settings.max_pending_ttl_margin) / 1000
        self._sender_names = sender_names(app, self._joined)
        self.store = ConversationStore(runtime, self._sender_names)
        self.queue = MemoryQueue(
            MemoryQueueLimits(
                settings.concurrent,
                settings.concurrent_factor,
                settings.max_retries,
                limits.conversation_slow_sends_max,
            ),
            self.clock,
        )
        self.manager = MessageSyncManager(runtime, self.store, self.queue.wake)
        # Programs that run the role themselves open requests and acknowledge here.
        self.request = self.manager.request
        self.acknowledge = self.manager.acknowledge
        self.agent = AwaitedAgent(
            self.manager, settings, self.clock, self._free_slots, self._enqueue
        )
        self._reporter = ProcessReporter(runtime, ROLE)
        self._senders: ReplySenders | None = None
        self._outbound: Outbound | None = None
        self._sending: dict[str, MinMessageInfo] = {}
        self._beside: list[tuple[str, _Task]] = []
        self._releases: list[_Task] = []
        self._last_metrics = MemoryQueueMetrics()
        self.sent = self.cancelled = self.awaited = 0

    def run_beside(self, name: str, run: _Task) -> None:
        """Run a task of another module's sender with this role."""
        self._beside.append((name, run))

    def call_at_end(self, release: _Task) -> None:
        """Release what another module's sender has opened."""
        self._releases.append(release)

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
        if response_timestamp is None:
            response_timestamp = wall_clock_ms()
        size_bytes = len(encode_task(task_item)) if held else 0
        self._accepting += held
        self._accepting_bytes += size_bytes
        try:
            accepted = await self.manager.accept(
                conversation_id, request_id, response_id, task_item, corr=corr,
                response_timestamp=response_timestamp, hold="near" if held else "",
            )  # fmt: skip
        finally:
            self._accepting -= held
            self._accepting_bytes -= size_bytes
        if accepted.held:
            reply = OutgoingReply(
                conversation_id, request_id, response_id, accepted.origin, task_item,
                accepted.request_timestamp, response_timestamp, corr=corr,
            )  # fmt: skip
            left_ms = self._settings.awaited_message_ttl
            self._add(TakenReply(accepted.info, accepted.score, left_ms, reply, size_bytes))
        return accepted

    # Starting and stopping

    async def on_start(self) -> None:
        settings = self._settings
        self._outbound = Outbound(
            allow_private=self.runtime.settings.allow_private_addresses,
            timeout_s=self._hold_s,
            limits=self.runtime.settings.limits,
        )
        self._senders = ReplySenders(
            self._app, self._outbound, self._threads_max, self._joined, self._hold_s
        )
        await self.report()
        self.spawn("queue", self.queue.run)
        self.spawn("hints", self._listen)
        self.spawn("awaited", self.agent.run)
        self.spawn("poll", self._poll)
        renewal_s = settings.max_pending_ttl / 1000 / RENEWALS_PER_HOLD
        self.loop("holds", self._renew_holds, renewal_s, until="stop")
        self.loop("metrics", self.report, INTERVAL_S, until="stop")
        if settings.extra_time_metrics:
            self.loop(
                "partial_metrics", self._report_partial, settings.metrics_partial_interval / 1000
            )
        for name, run in self._beside:
            self.spawn(name, run)

    async def on_stop(self) -> None:
        """Finish the running sends and give the other replies back, for others to take at once."""
        await self.passes_ended()
        await self.manager.give_back([_info(task) for task in self.queue.take_all()])
        await self.queue.drained()
        # Replies that were in validation and must wait.
        await self.manager.give_back([_info(task) for task in self.queue.take_all()])
        for release in self._releases:
            await release()
        await self._reporter.withdraw()

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

    def _enqueue(self, taken: Sequence[TakenReply]) -> None:
        for each in taken:
            self._add(each)

    def _add(self, taken: TakenReply) -> None:
        info, reply = taken.info, taken.reply
        wish_ms = reply.task_item.time_in_queue
        hold_s = self._hold_s if wish_ms is None else min(self._hold_s, wish_ms / 1000)
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
                time_in_queue=min(hold_s, taken.left_ms / 1000),
                size_bytes=taken.size_bytes,
                message_options=(info, reply),
                corr=reply.corr,
                order=taken.score,
            )
        )

    async def _listen(self) -> None:
        async with self.runtime.subscribe(self.store.wake_channel) as subscription:
            while True:
                batch = await subscription.receive()
                if batch.gap:
                    self.queue.wake_all()
                    self.agent.wake()
                for message in batch.messages:
                    self._apply_hints(message.payload)

    def _apply_hints(self, payload: bytes) -> None:
        try:
            hints = _read_hints(payload)
        except (msgspec.MsgspecError, RecursionError):
            return  # another program published it
        needed = (name for need in hints.needs for name in acceptable_senders(need))
        if hints.due or any(name in self._sender_names for name in needed):
            self.agent.wake()
        for conversation_id in hints.woken:
            self.queue.wake(conversation_id)

    async def _poll(self) -> None:
        """Finds what lost wake-ups missed; ends while the queue is empty."""
        while True:
            await self.queue.filled()
            await self.clock.sleep(self._settings.interval / 1000)
            self.queue.poll()

    async def _renew_holds(self) -> None:
        """A reply that is being sent stays held, however long its sender takes."""
        infos = list(self._sending.values())
        for info, status in zip(infos, await self.manager.renew(infos), strict=True):
            if status != "renewed" and info.key().decode() in self._sending:
                self.log.warning("hold_lost", reply=info.response_id, status=status)

    # Sending

    async def _validate(self, task: QueuedTask) -> Validation:
        info = _info(task)
        found = await self.manager.can_send_conversation_message(
            info.conversation_id, info.request_id, task.corr, info.response_id
        )
        if found.hold_ms is not None:
            # What is left of the hold then lasts until the next pass of `_renew_holds`.
            return Validation(TaskVerdict.RUN, found.hold_ms / 1000 / RENEWALS_PER_HOLD)
        if found.status == "gone":
            return Validation(TaskVerdict.DROP)
        left_s = None if found.left_ms is None else found.left_ms / 1000
        return Validation(TaskVerdict.WAIT, left_s)

    async def send(self, task: QueuedTask) -> float | None:
        self._sending[task.task_id] = _info(task)
        try:
            return await self._send_traced(task)
        finally:
            del self._sending[task.task_id]

    async def _send_traced(self, task: QueuedTask) -> float | None:
        tracing = self.runtime.tracing
        trace = None if tracing is None else read_traceparent(task.corr)
        if tracing is None or trace is None:
            return await self._send(_info(task), _reply(task))
        values = {"angarium.conversation_id": task.task_group, "angarium.id": task.task_id}
        with tracing.span(
            "conversations send", trace, values, kind="producer", current=True
        ) as own:
            work = CurrentWork(b"")
            work.enter_span(own)
            token = CURRENT_WORK.set(work)
            try:
                return await self._send(_info(task), _reply(task))
            finally:
                CURRENT_WORK.reset(token)

    async def _send(self, info: MinMessageInfo, reply: OutgoingReply) -> float | None:
        assert self._senders is not None
        ack_id = await self._senders.send(reply)
        self.sent += 1
        try:
            if ack_id is None:
                await self.manager.finish(info, "unasked")
                return None
            try:
                status = await self.manager.mark_sent_conversation_register(
                    info.conversation_id, info.request_id, reply.corr, info.response_id, ack_id
                )
                if status == "ack_taken":
                    self.log.warning("ack_id_taken", reply=info.response_id, ack=ack_id)
            except IdRefused as error:
                self.log.warning("ack_id_refused", reply=info.response_id, error=str(error))
                await self.manager.finish(info, "unasked")
                return None
        except AngariumError as error:
            # Redis does not know of the send: the reply is sent again when the hold ends.
            self.log.error("sent_but_not_reported", reply=info.response_id, error=str(error))
            return None
        return self._settings.sent_message_ttl / 1000

    async def _failed(self, task: QueuedTask, error: Exception) -> None:
        info, reply = _info(task), _reply(task)
        if isinstance(error, RetriesEnded):
            self.awaited += 1
            await self.manager.await_after_retries(info)
            return
        assert self._senders is not None
        why = error_text(error)
        if not isinstance(error, Fatal):
            why = f"{type(error).__name__}: {why}"[:WHY_CHARS_MAX]
        if not isinstance(error, Recoverable | AngariumError):
            self.log.warning("sender_failed", reply=info.response_id, error=why, exc_info=error)
        wait_ms = self._senders.retry_in_ms(reply, error, self.manager.retry_ms)
        if wait_ms is None:
            self.cancelled += await self.manager.cancel_group(info, why, dead=True)
        else:
            wait_ms = max(RETRY_MS_MIN, wait_ms)
            self.awaited += await self.manager.await_group(
                info.conversation_id, info.request_id, why, wait_ms
            )

    # Metrics

    async def report(self) -> None:
        metrics: dict[str, float | str] = {
            "queue": len(self.queue),
            "queue_bytes": self.queue.size_bytes,
            "parked": self.queue.parked,
            "executing": self.queue.in_execution,
            "sent": self.sent,
            "acknowledged": self.manager.acknowledged,
            "awaited": self.awaited,
            "cancelled": self.cancelled,
            "turns": self.agent.turns,
        }
        metrics["replies"], metrics["requests"] = await self.manager.in_flight()
        metrics["dead"] = await self.manager.dead.count()
        metrics |= (await self.manager.senders()).metrics()
        metrics["senders"] = msgspec.json.encode(self._sender_names).decode()
        await self._reporter.report(metrics)
        self.log.debug("metrics", **metrics)

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
