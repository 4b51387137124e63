"""Operations on requests and replies that need more than one script call, or wake the next reply.

`compat.MessageSyncManager` adds the operations of aura-bridge under their own names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from angarium.conversations.errors import AckUnknown, ReplyUnknown
from angarium.conversations.model import (
    ConversationMessage,
    MinMessageInfo,
    RequestStatus,
    TaskItem,
    encode_task,
    required_sender_of,
)
from angarium.conversations.script_values import CancelOptions, FinishReason, NewReply, TakenReply
from angarium.conversations.settings import ConversationsSettings
from angarium.conversations.store import WAITING, ConversationStore

# Replies of one group that one call sets AWAITED; replies further behind are AWAITED already.
AWAIT_MAX = 10_000
# Replies that one script call cancels; it blocks Redis for as long as it runs.
CANCEL_BATCH = 500
# A client can acknowledge before the report that its reply was sent has reached Redis: an unknown
# ACK is looked up again for a quarter of a second.
ACK_LOOKUPS = 12
ACK_PAUSE_S = 0.02


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def new_reply(
    conversation_id: str,
    request_id: str,
    response_id: str,
    task_item: TaskItem,
    *,
    origin: str = "",
    corr: str = "",
    response_timestamp: int | None = None,
) -> NewReply:
    """Without an origin the reply has its request's origin; without a timestamp it has now."""
    return NewReply(
        conversation_id,
        request_id,
        response_id,
        wall_clock_ms() if response_timestamp is None else response_timestamp,
        encode_task(task_item),
        corr,
        origin=origin,
        required_sender=required_sender_of(task_item.message_options),
    )


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


class ConversationOperations:
    """`wake` is called with a conversation whose next reply is held here and may be sendable."""

    def __init__(
        self,
        store: ConversationStore,
        settings: ConversationsSettings,
        wake: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._wake = wake
        # The back-off of an awaited reply is this times its retries.
        self._retry_ms = round(settings.max_pending_ttl * settings.awaited_retries_factor)
        self._first_partition = 0
        self.without_sender = 0
        """Counts the replies that this process found and has no sender for."""

    async def open_request(
        self,
        conversation_id: str,
        request_id: str,
        origin: str,
        *,
        corr: str = "",
        request_timestamp: int | None = None,
    ) -> tuple[str, ConversationMessage]:
        """('created' | 'duplicate', the request)."""
        requested = wall_clock_ms() if request_timestamp is None else request_timestamp
        info = MinMessageInfo(request_id, "", conversation_id)
        status, position = await self._store.create_request(info, origin, requested, corr)
        message = new_request(conversation_id, request_id, origin, requested)
        return status, msgspec.structs.replace(message, position=position, corr=corr)

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
        return await self.finish(info, "acknowledged", ack_id)

    async def finish(
        self, info: MinMessageInfo, reason: FinishReason, ack_id: str | None = None
    ) -> str:
        """'delivered' | 'cancelled' (deleted before it was sent) | 'gone'."""
        status, following = await self._store.finish(info, reason, ack_id)
        self._wake_next(following)
        return status

    async def find_ack(self, ack_id: str, conversation_id: str | None = None) -> MinMessageInfo:
        info = await self._store.find_ack(ack_id, conversation_id)
        if info is None:
            raise AckUnknown(f"no reply waits for the ACK {ack_id!r}")
        return info

    async def read_reply(
        self, response_id: str, conversation_id: str | None = None
    ) -> ConversationMessage:
        message = await self._store.read_reply(response_id, conversation_id)
        if message is None:
            raise ReplyUnknown(f"no reply {response_id!r} is in flight")
        return message

    # Waiting

    async def await_group(self, conversation_id: str, request_id: str, why: str = "") -> int:
        """Set all replies of a request AWAITED, each with its back-off; the number of them."""
        request = MinMessageInfo(request_id, "", conversation_id)
        group = await self._store.siblings(request, AWAIT_MAX)
        statuses = await self._store.await_replies(group, 0, self._retry_ms, why)
        return statuses.count("awaited")

    async def await_after_retries(self, info: MinMessageInfo) -> None:
        """Set a reply AWAITED that was checked too often; that was no attempt to send it."""
        wait_ms = self._settings.awaited_time_when_retries_end
        await self._store.await_replies([info], wait_ms, 0, "retries ended", tried=False)

    async def claim_awaited(self, most: int) -> tuple[int, list[TakenReply]]:
        """How many replies were due, and which of them to send; the others ended."""
        taken: list[TakenReply] = []
        partitions = len(self._store.partitions)
        claimed = 0
        for number in range(partitions):
            partition = (self._first_partition + number) % partitions
            left = most - claimed
            if left <= 0:
                break
            claim, infos = await self._store.claim_awaited(partition, left)
            taken += await self.take(infos, claim)
            claimed += len(infos)
            if len(infos) < left:
                waiting = await self._store.pop_waiting(partition, left - len(infos))
                taken += await self.take(waiting, WAITING)
                claimed += len(waiting)
        # The next turn starts with another partition, so that every partition gets its turn.
        self._first_partition = (self._first_partition + 1) % partitions
        return claimed, taken

    async def take(self, infos: Sequence[MinMessageInfo], claim: str = "") -> list[TakenReply]:
        taken = []
        results = await self._store.take(infos, claim)
        for info, result in zip(infos, results, strict=True):
            self._wake_next(result.next)
            if result.taken is not None:
                taken.append(result.taken)
            elif result.status == "no_sender":
                self.without_sender += 1
            elif result.status == "unreadable":
                await self.cancel_group(info, "its task can't be read")
        return taken

    # Cancelling

    async def cancel_group(self, info: MinMessageInfo, why: str) -> int:
        """Cancel all replies of the reply's request and close the request; the number of them."""
        return await self.cancel_all(info, CancelOptions(why=why))

    async def cancel_all(self, info: MinMessageInfo, options: CancelOptions) -> int:
        """The last replies first: the group's first reply blocks the others until all are gone."""
        request = info.of_request()
        first = await self._store.siblings(info, 1) or await self._store.siblings(request, 1)
        anchor = first[0] if first else request
        total = 0
        while True:
            batch = await self._store.siblings(anchor, CANCEL_BATCH, last_first=True)
            whole_group = len(batch) < CANCEL_BATCH
            done = await self._store.cancel(request, batch, options, whole_group=whole_group)
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
            done = await self._store.cancel(info.of_request(), batch, options, whole_group=False)
            assert done is not None
            total += done[0]
            self._wake_next(done[1])
        return total

    def _wake_next(self, following: MinMessageInfo | None) -> None:
        if following is not None:
            self._wake(following.conversation_id)
