"""The synchronisation of messages between processes: every operation on requests and replies.

Each method that writes is one script, except where a group has more replies than one call may
touch. The names of the system this replaces are aliases at the end of the class.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from angarium.conversations.errors import AckUnknown, ReplyUnknown
from angarium.conversations.model import (
    CanSend,
    ConversationMessage,
    MinMessageInfo,
    RequestStatus,
    ResponsesIdByRequestId,
    SyncMessageOptions,
    TaskItem,
    encode_task,
    required_sender_of,
)
from angarium.conversations.script_values import (
    AcceptResult,
    CancelOptions,
    FinishReason,
    NewReply,
    TakenReply,
)
from angarium.conversations.store import GROUP_PART, WAITING, ConversationStore
from angarium.conversations.wait_reasons import group_backoff_ms
from angarium.runtime.setting_groups.conversations import ConversationsSettings
from angarium.runtime.text import check_text

# Of one group, set AWAITED by one call of a method: those far behind are AWAITED already.
AWAIT_MAX = 10_000
# Replies whose time is over can stand before the one that leaves next.
FIRST_LOOKS = 50
# A client can be faster than our report that its reply was sent: an ACK that is not known yet is
# looked for again, for a quarter of a second.
ACK_LOOKS = 12
ACK_PAUSE_S = 0.02


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MessageSyncManager:
    """`wake` hears of conversations whose next reply is held here and may be able to go."""

    def __init__(
        self,
        store: ConversationStore,
        settings: ConversationsSettings,
        wake: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._wake = wake
        self._backoff_ms = group_backoff_ms(
            settings.max_pending_ttl, settings.awaited_retries_factor
        )
        self._first_partition = 0
        self.without_sender = 0
        """Replies that were found here, and wait for a process with their sender."""

    # Coming in

    def get_init_default_values(
        self, origin: str, conversation_id: str, request_id: str, request_timestamp: int
    ) -> ConversationMessage:
        """A request as it is before anything happened to it."""
        return ConversationMessage(
            conversation_id=conversation_id,
            origin=origin,
            request_id=request_id,
            request_timestamp=request_timestamp,
            status=RequestStatus.WAITING,
            response_id_counter=0,
            awaited_retries=0,
        )

    async def create_conversation_register(
        self,
        origin: str,
        conversation_id: str,
        request_id: str,
        corr: str = "",
        request_timestamp: int | None = None,
    ) -> tuple[str, ConversationMessage]:
        """Open a request: ('created' | 'duplicate', the request)."""
        requested = wall_clock_ms() if request_timestamp is None else request_timestamp
        info = MinMessageInfo(request_id, "", conversation_id)
        status, position = await self._store.create_request(info, origin, requested, corr)
        message = self.get_init_default_values(origin, conversation_id, request_id, requested)
        return status, msgspec.structs.replace(message, position=position, corr=corr)

    async def mark_pending_conversation_register(
        self,
        origin: str,
        conversation_id: str,
        request_id: str,
        task_item: TaskItem,
        corr: str,
        response_id: str,
        *,
        response_timestamp: int | None = None,
    ) -> AcceptResult:
        """Accept a reply to an open request; without an origin ('') it has the request's.

        The next process that asks for replies gets it.
        """
        responded = wall_clock_ms() if response_timestamp is None else response_timestamp
        task = encode_task(task_item)
        new = NewReply(
            conversation_id,
            request_id,
            response_id,
            responded,
            task,
            corr,
            origin=origin,
            need=required_sender_of(task_item.message_options),
        )
        return await self._store.accept_reply(new)

    # Leaving

    async def can_send_conversation_message(
        self, conversation_id: str, request_id: str, corr: str = "", response_id: str | None = None
    ) -> CanSend:
        """May this reply leave now? Without a response id: the request's first reply."""
        info = MinMessageInfo(request_id, response_id or "", conversation_id)
        if response_id is None:
            first = await self._store.siblings(info, 1)
            if not first:
                return CanSend("gone")
            info = first[0]
        return await self._store.check_reply(info)

    async def mark_sent_conversation_register(
        self,
        conversation_id: str,
        request_id: str,
        corr: str,
        response_id: str,
        async_response_id: str | None = None,
    ) -> str:
        """'sent' | 'ack_taken' | 'repeated' | 'gone'.

        It counts as delivered with its ACK or after its time. 'ack_taken': another reply waits
        for an ACK of this id, so that only its time can end this one.
        """
        info = MinMessageInfo(request_id, response_id, conversation_id)
        return await self._store.report_sent(info, async_response_id)

    async def delete_conversation_message(self, options: SyncMessageOptions) -> str:
        """Remove one reply: 'delivered' if it was SENT, else 'cancelled', or 'gone'."""
        info = await self.find(options)
        how: FinishReason = "deleted" if options.async_response_id is None else "acknowledged"
        status, following = await self._store.finish(info, how, options.async_response_id)
        self._wake_next(following)
        return status

    async def acknowledge(self, ack_id: str, conversation_id: str | None = None) -> str:
        """A client's ACK, given a moment to become known: 'delivered' | 'gone'."""
        options = SyncMessageOptions(async_response_id=ack_id, conversation_id=conversation_id)
        for _ in range(ACK_LOOKS):
            try:
                return await self.delete_conversation_message(options)
            except AckUnknown:
                await asyncio.sleep(ACK_PAUSE_S)
        return await self.delete_conversation_message(options)

    # Looking

    async def find(self, options: SyncMessageOptions) -> MinMessageInfo:
        if options.async_response_id is not None:
            info = await self._store.find_ack(options.async_response_id, options.conversation_id)
            if info is None:
                raise AckUnknown(f"nobody waits for the ACK {options.async_response_id!r}")
            return info
        return _info(await self._message(options))

    async def get_conversation_message(
        self, options: SyncMessageOptions, projection: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The stored fields, or those the projection names: `{"status": 1}`."""
        if options.async_response_id is not None:
            info = await self.find(options)
            options = SyncMessageOptions(
                response_id=info.response_id, conversation_id=info.conversation_id
            )
        fields: dict[str, Any] = msgspec.to_builtins(await self._message(options))
        if projection is None:
            return fields
        return {name: fields[name] for name, on in projection.items() if on and name in fields}

    async def get_first_conversation_message(
        self, conversation_id: str
    ) -> ConversationMessage | None:
        """The reply that leaves next."""
        snapshot = await self._store.snapshot(conversation_id, FIRST_LOOKS)
        for each in snapshot.replies:
            if each.until_ms > snapshot.now_ms:
                return await self._store.read_reply(each.response_id, conversation_id)
        return None

    async def get_all_siblings(
        self, response_id_key: str, corr: str = ""
    ) -> ResponsesIdByRequestId:
        """Of the reply whose hash has this name in Redis."""
        message = await self._store.read_named(response_id_key)
        if message is None:
            raise ReplyUnknown(f"no reply {response_id_key!r} is in flight")
        return await self._siblings(_info(message))

    @staticmethod
    def generate_unique_min_info_key(info: MinMessageInfo) -> str:
        return info.key().decode()

    # Waiting

    async def set_awaited_by_request_id(
        self, conversation_id: str, request_id: str, corr: str = "", why: str = ""
    ) -> int:
        """The whole group is AWAITED, with the back-off of each; how many are."""
        group = await self._store.siblings(
            MinMessageInfo(request_id, "", conversation_id), AWAIT_MAX
        )
        statuses = await self._store.await_replies(group, 0, self._backoff_ms, why)
        return statuses.count("awaited")

    async def set_awaited_by_response_id(self, options: SyncMessageOptions, why: str = "") -> str:
        """'awaited' | 'sent' | 'held' by another process | 'gone'."""
        info = await self.find(options)
        (status,) = await self._store.await_replies([info], 0, self._backoff_ms, why)
        return status

    async def set_awaited_when_retries_end(self, infos: Sequence[MinMessageInfo]) -> None:
        wait_ms = self._settings.awaited_time_when_retries_end
        await self._store.await_replies(infos, wait_ms, 0, "retries ended", tried=False)

    async def get_awaited_messages(self, n_messages: int, corr: str = "") -> list[TakenReply]:
        """Claim that many due replies at most; they are PENDING in this process now."""
        return (await self.claim_awaited_messages(n_messages))[1]

    async def claim_awaited_messages(self, n_messages: int) -> tuple[int, list[TakenReply]]:
        """How many were due, and those of them that are to be sent: some ended by being seen."""
        taken: list[TakenReply] = []
        partitions = len(self._store.partitions)
        claimed = 0
        for number in range(partitions):
            partition = (self._first_partition + number) % partitions
            most = n_messages - claimed
            if most <= 0:
                break
            claim, infos = await self._store.claim_awaited(partition, most)
            taken += await self.take(infos, claim)
            claimed += len(infos)
            if len(infos) < most:
                waited = await self._store.pop_waiting(partition, most - len(infos))
                taken += await self.take(waited, WAITING)
                claimed += len(waited)
        # The next turn begins elsewhere, so that no partition waits for ever.
        self._first_partition = (self._first_partition + 1) % partitions
        return claimed, taken

    async def take(self, infos: Sequence[MinMessageInfo], claim: str = "") -> list[TakenReply]:
        taken = []
        outcomes = await self._store.take(infos, claim)
        for info, outcome in zip(infos, outcomes, strict=True):
            self._wake_next(outcome.next)
            if outcome.taken is not None:
                taken.append(outcome.taken)
            elif outcome.status == "no_sender":
                self.without_sender += 1
            elif outcome.status == "unreadable":
                await self.cancel_group(info, "its task can't be read")
        return taken

    async def update_awaited_expires(
        self, response_id: str, corr: str = "", conversation_id: str | None = None
    ) -> str:
        """A new time for its next try, by its back-off: 'postponed' | 'sent' | 'gone'."""
        info = await self.find(
            SyncMessageOptions(response_id=response_id, conversation_id=conversation_id)
        )
        return await self._store.postpone(info, 0, self._backoff_ms)

    # Giving up

    async def set_error_by_id(self, options: SyncMessageOptions, why: str = "") -> int:
        """Cancel a reply and its siblings, and close their request; how many went."""
        return await self.cancel_group(await self.find(options), why)

    async def cancel_group(self, info: MinMessageInfo, why: str) -> int:
        return await self._cancel_all(info, CancelOptions(why=why))

    async def delete_conversation_register(
        self, all_origin_except: str | None, status: str | None, request_info: MinMessageInfo
    ) -> int:
        """Remove the replies of a request, or those of a status or not of an origin."""
        info = MinMessageInfo(request_info.request_id, "", request_info.conversation_id)
        for name, text in (("status", status), ("origin", all_origin_except)):
            if text is not None:
                check_text(text, name)
        what = CancelOptions(
            close=status is None and all_origin_except is None,
            status=status or "",
            except_origin=all_origin_except or "",
            why="deleted",
        )
        if what.close:
            return await self._cancel_all(info, what)
        group = await self._store.siblings(info, AWAIT_MAX, last_first=True)
        return await self._cancel(info, group, what)

    async def remove_request_message(
        self,
        options: SyncMessageOptions,
        remove_owner: bool,
        corr: str = "",
    ) -> int:
        """Remove a reply's siblings, and with `remove_owner` itself and its request."""
        info = await self.find(options)
        if remove_owner:
            return await self._cancel_all(info, CancelOptions(why="removed"))
        return await self.remove_all_siblings(await self._siblings(info))

    async def remove_all_siblings(self, group: ResponsesIdByRequestId, corr: str = "") -> int:
        """Remove those that were listed, but not the reply they were listed for."""
        others = [each for each in reversed(group.siblings) if each != group.info]
        return await self._cancel(group.info, others, CancelOptions(close=False, why="removed"))

    async def remove_all_references_at_time(
        self, options: SyncMessageOptions, delay_s: float, corr: str = ""
    ) -> str:
        """The reply ends by itself after the delay: 'retiring' | 'gone'."""
        info = await self.find(options)
        return await self._store.retire(info, max(0, round(delay_s * 1000)))

    # Plumbing

    async def _message(self, options: SyncMessageOptions) -> ConversationMessage:
        response_id = options.response_id or ""
        message = await self._store.read_reply(response_id, options.conversation_id)
        if message is None:
            raise ReplyUnknown(f"no reply {response_id!r} is in flight")
        return message

    async def _siblings(self, info: MinMessageInfo) -> ResponsesIdByRequestId:
        return ResponsesIdByRequestId(info, await self._store.siblings(info, AWAIT_MAX))

    async def _cancel_all(self, info: MinMessageInfo, what: CancelOptions) -> int:
        """The last part first: the head of the group stands in the way until all have gone."""
        request = MinMessageInfo(info.request_id, "", info.conversation_id)
        first = await self._store.siblings(info, 1) or await self._store.siblings(request, 1)
        anchor = first[0] if first else request
        total = 0
        while True:
            part = await self._store.siblings(anchor, GROUP_PART, last_first=True)
            whole_group = len(part) < GROUP_PART
            done = await self._store.cancel(request, part, what, whole_group=whole_group)
            if done is None:
                continue
            total += done[0]
            if whole_group:
                self._wake_next(done[1])
                return total

    async def _cancel(
        self, info: MinMessageInfo, replies: Sequence[MinMessageInfo], what: CancelOptions
    ) -> int:
        request = MinMessageInfo(info.request_id, "", info.conversation_id)
        total = 0
        for start in range(0, len(replies), GROUP_PART):
            part = replies[start : start + GROUP_PART]
            done = await self._store.cancel(request, part, what, whole_group=False)
            assert done is not None
            total += done[0]
            self._wake_next(done[1])
        return total

    def _wake_next(self, following: MinMessageInfo | None) -> None:
        if following is not None:
            self._wake(following.conversation_id)

    createConversationRegister = create_conversation_register  # noqa: N815
    getInitDefaultValues = get_init_default_values  # noqa: N815
    markPendingConversationRegister = mark_pending_conversation_register  # noqa: N815
    markSentConversationRegister = mark_sent_conversation_register  # noqa: N815
    canSendConversationMessage = can_send_conversation_message  # noqa: N815
    getFirstConversationMessage = get_first_conversation_message  # noqa: N815
    deleteConversationMessage = delete_conversation_message  # noqa: N815
    deleteConversationRegister = delete_conversation_register  # noqa: N815
    getConversationMessage = get_conversation_message  # noqa: N815
    setAwaitedByRequestId = set_awaited_by_request_id  # noqa: N815
    setAwaitedByResponseId = set_awaited_by_response_id  # noqa: N815
    getAwaitedMessages = get_awaited_messages  # noqa: N815
    setErrorById = set_error_by_id  # noqa: N815
    updateAwaitedExpires = update_awaited_expires  # noqa: N815
    removeRequestMessage = remove_request_message  # noqa: N815
    getAllSiblings = get_all_siblings  # noqa: N815
    removeAllSiblings = remove_all_siblings  # noqa: N815
    generateUniqueMinInfoKey = generate_unique_min_info_key  # noqa: N815
    removeAllReferencesAtTime = remove_all_references_at_time  # noqa: N815


def _info(message: ConversationMessage) -> MinMessageInfo:
    return MinMessageInfo(message.request_id, message.response_id or "", message.conversation_id)
