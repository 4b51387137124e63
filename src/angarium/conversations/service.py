"""What can be done with conversations. HTTP, client, command line and dashboard call this.

`compat.MessageSyncManager` adds the operations of aura-bridge under their own names; the role
`conversations` and programs with their own queue use that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from angarium.conversations.dead_replies import DeadReplies
from angarium.conversations.errors import AckUnknown, ReplyUnknown
from angarium.conversations.model import (
    ConversationMessage,
    MessageOptions,
    MinMessageInfo,
    RequestStatus,
    TaskItem,
    encode_task,
    required_sender_of,
)
from angarium.conversations.script_values import (
    AcceptResult,
    CancelOptions,
    FinishReason,
    HoldWish,
    NewReply,
    TakenReply,
)
from angarium.conversations.settings import ConversationsSettings
from angarium.conversations.store import WAITING, ConversationStore
from angarium.conversations.views import (
    VIEW_ITEMS_MAX,
    ConversationView,
    SendersView,
    view_conversation,
    view_senders,
)
from angarium.runtime.outbound import check_url
from angarium.runtime.runtime import Runtime

# Replies of one group that one call sets AWAITED; replies further behind wait in Redis already.
AWAIT_MAX = 10_000
# Replies that one script call cancels; it blocks Redis for as long as it runs.
CANCEL_BATCH = 500
# A client can acknowledge before the report that its reply was sent has reached Redis: an unknown
# ACK is looked up again for a quarter of a second.
ACK_LOOKUPS = 12
ACK_PAUSE_S = 0.02
# The back-off before the first retry is 0 by the formula; a client that just refused gets a second.
RETRY_MS_MIN = 1_000


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def new_request(
    conversation_id: str, request_id: str, origin: str, request_timestamp: int
) -> ConversationMessage:
    return ConversationMessage(
        conversation_id=conversation_id,
        origin=origin,
        request_id=request_id,
        request_timestamp=request_timestamp,
        status=RequestStatus.WAITING,
        response_id_counter=0,
        awaited_retries=0,
    )


class ConversationService:
    """`wake` is called with a conversation whose next reply is held here and may be sendable."""

    def __init__(
        self,
        runtime: Runtime,
        store: ConversationStore | None = None,
        wake: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Without a store of its own it shares the runtime's, and holds no replies."""
        self.store = runtime.store(ConversationStore) if store is None else store
        self.dead = DeadReplies(runtime, self.store)
        self._settings = settings = runtime.settings.group(ConversationsSettings)
        self._allow_private = runtime.settings.allow_private_addresses
        self._wake = wake
        # The back-off of an awaited reply is this times its retries.
        self.retry_ms = round(settings.max_pending_ttl * settings.awaited_retries_factor)
        self._first_partition = 0
        self.acknowledged = 0

    # Requests and replies

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
        requested = wall_clock_ms() if request_timestamp is None else request_timestamp
        info = MinMessageInfo(request_id, "", conversation_id)
        status, position = await self.store.create_request(info, origin, requested, corr)
        message = new_request(conversation_id, request_id, origin, requested)
        return status, msgspec.structs.replace(message, position=position, corr=corr)

    async def post_reply(
        self,
        conversation_id: str,
        request_id: str,
        response_id: str,
        options: MessageOptions,
        *,
        corr: str = "",
        response_timestamp: int | None = None,
    ) -> str:
        """'accepted' | 'duplicate'. A process of the role sends the reply when it is its turn."""
        if options.callback_url is not None:
            check_url(options.callback_url, allow_private=self._allow_private)
        task = TaskItem(options, response_id, conversation_id, corr=corr)
        accepted = await self.accept(
            conversation_id, request_id, response_id, task, corr=corr,
            response_timestamp=response_timestamp,
        )  # fmt: skip
        return "duplicate" if accepted.duplicate else "accepted"

    async def accept(
        self,
        conversation_id: str,
        request_id: str,
        response_id: str,
        task_item: TaskItem,
        *,
        origin: str = "",
        corr: str = "",
        response_timestamp: int | None = None,
        hold: HoldWish = "",
    ) -> AcceptResult:
        """Without an origin the reply has its request's origin; without a timestamp it has now."""
        new = NewReply(
            conversation_id,
            request_id,
            response_id,
            wall_clock_ms() if response_timestamp is None else response_timestamp,
            encode_task(task_item),
            corr,
            hold=hold,
            origin=origin,
            required_sender=required_sender_of(task_item.message_options),
        )
        return await self.store.accept_reply(new)

    # Finishing

    async def acknowledge(self, ack_id: str, conversation_id: str | None = None) -> str:
        """'delivered' | 'gone'. Looks an unknown ACK up again before it raises `AckUnknown`."""
        for _ in range(ACK_LOOKUPS):
            try:
                return await self.acknowledge_now(ack_id, conversation_id)
            except AckUnknown:
                await asyncio.sleep(ACK_PAUSE_S)
        return await self.acknowledge_now(ack_id, conversation_id)

    async def acknowledge_now(self, ack_id: str, conversation_id: str | None = None) -> str:
        info = await self.find_ack(ack_id, conversation_id)
        status = await self.finish(info, "acknowledged", ack_id)
        self.acknowledged += status == "delivered"
        return status

    async def finish(
        self, info: MinMessageInfo, reason: FinishReason, ack_id: str | None = None
    ) -> str:
        """'delivered' | 'cancelled' (deleted before it was sent) | 'gone'."""
        status, following = await self.store.finish(info, reason, ack_id)
        self._wake_next(following)
        return status

    async def find_ack(self, ack_id: str, conversation_id: str | None = None) -> MinMessageInfo:
        info = await self.store.find_ack(ack_id, conversation_id)
        if info is None:
            raise AckUnknown(f"no reply waits for the ACK {ack_id!r}")
        return info

    async def read_reply(
        self, response_id: str, conversation_id: str | None = None
    ) -> ConversationMessage:
        message = await self.store.read_reply(response_id, conversation_id)
        if message is None:
            raise ReplyUnknown(f"no reply {response_id!r} is in flight")
        return message

    # Looking

    async def show(self, conversation_id: str, most: int = VIEW_ITEMS_MAX) -> ConversationView:
        """The conversation's queue, with the reason each reply waits."""
        return await view_conversation(self.store, conversation_id, most)

    async def senders(self) -> SendersView:
        """The senders of the running processes, and the replies for whose sender none runs."""
        return await view_senders(self.store)

    async def in_flight(self) -> tuple[int, int]:
        """Counts over all partitions: replies in flight, requests without a reply."""
        found = [await self.store.in_flight(partition) for partition in self.store.partitions]
        return sum(replies for replies, _ in found), sum(requests for _, requests in found)

    # Waiting

    async def await_group(
        self, conversation_id: str, request_id: str, why: str = "", wait_ms: int | None = None
    ) -> int:
        """Set all replies of a request AWAITED; the number of them. The conversation's first reply
        counts as tried. Each waits for `wait_ms`, or by its own back-off."""
        request = MinMessageInfo(request_id, "", conversation_id)
        group = await self.store.siblings(request, AWAIT_MAX)
        wait = (0, self.retry_ms) if wait_ms is None else (wait_ms, 0)
        statuses = await self.store.await_replies(group, *wait, why)
        return statuses.count("awaited")

    async def await_after_retries(self, info: MinMessageInfo) -> None:
        """Set a reply AWAITED that was checked too often; that was no attempt to send it."""
        wait_ms = self._settings.awaited_time_when_retries_end
        await self.store.await_replies([info], wait_ms, 0, "retries ended", tried=False)

    async def renew(self, infos: Sequence[MinMessageInfo]) -> list[str]:
        """Hold these replies longer: 'renewed', or why this process does not hold the reply."""
        return await self.store.renew(infos)

    async def give_back(self, infos: Sequence[MinMessageInfo]) -> None:
        """Let others take these replies at once; nothing was tried."""
        if infos:
            await self.store.await_replies(infos, 0, 0, "given back", tried=False)

    async def claim_awaited(self, most: int) -> tuple[int, list[TakenReply], int | None]:
        """How many replies were due, which of them to send (the others ended), and in how many ms
        the next is due."""
        taken: list[TakenReply] = []
        partitions = len(self.store.partitions)
        claimed, next_ms = 0, list[int]()
        for number in range(partitions):
            partition = (self._first_partition + number) % partitions
            left = most - claimed
            if left <= 0:
                break
            claim = await self.store.claim_awaited(partition, left)
            taken += await self.take(claim.infos, claim.claim)
            claimed += len(claim.infos)
            if claim.due_in_ms is not None:
                next_ms.append(claim.due_in_ms)
            if len(claim.infos) < left:
                waiting = await self.store.pop_waiting(partition, left - len(claim.infos))
                taken += await self.take(waiting, WAITING)
                claimed += len(waiting)
        # The next turn starts with another partition, so that every partition gets its turn.
        self._first_partition = (self._first_partition + 1) % partitions
        return claimed, taken, min(next_ms, default=None)

    async def take(self, infos: Sequence[MinMessageInfo], claim: str) -> list[TakenReply]:
        taken = []
        results = await self.store.take(infos, claim)
        for info, result in zip(infos, results, strict=True):
            self._wake_next(result.next)
            if result.taken is not None:
                taken.append(result.taken)
            elif result.status == "unreadable":
                await self.cancel_group(info, "its task can't be read", dead=True)
        return taken

    # Cancelling

    async def cancel_group(self, info: MinMessageInfo, why: str, *, dead: bool = False) -> int:
        """Cancel all replies of the reply's request and close the request; the number of them.

        `dead`: a send failed for good, and the replies are kept as dead ones.
        """
        return await self.cancel_all(info, CancelOptions(why=why, dead=dead))

    async def cancel_all(self, info: MinMessageInfo, options: CancelOptions) -> int:
        """The last replies first: the group's first reply blocks the others until all are gone."""
        request = info.of_request()
        first = await self.store.siblings(info, 1) or await self.store.siblings(request, 1)
        anchor = first[0] if first else request
        total = 0
        while True:
            batch = await self.store.siblings(anchor, CANCEL_BATCH, last_first=True)
            whole_group = len(batch) < CANCEL_BATCH
            done = await self.store.cancel(request, batch, options, whole_group=whole_group)
            if done is None:
                continue
            total += done[0]
            if whole_group:
                self._wake_next(done[1])
                return total

    async def cancel_some(
        self, info: MinMessageInfo, replies: Sequence[MinMessageInfo], options: CancelOptions
    ) -> int:
        """Cancel the given replies of the request, the last of which stands first."""
        total = 0
        for start in range(0, len(replies), CANCEL_BATCH):
            batch = replies[start : start + CANCEL_BATCH]
            done = await self.store.cancel(info.of_request(), batch, options, whole_group=False)
            assert done is not None
            total += done[0]
            self._wake_next(done[1])
        return total

    def _wake_next(self, following: MinMessageInfo | None) -> None:
        if following is not None:
            self._wake(following.conversation_id)
