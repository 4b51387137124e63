"""The names of aura-bridge: its sync manager, mapped to our operations.

`MessageSyncManager` is for programs that bring their own queue. Each of its nineteen methods has
a Python name and, at the end of the class, its original one; parameters keep their order. `corr`
is accepted everywhere and used where a request or reply is created. A method that writes is one
script call, except for groups with more replies than one call may change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from angarium.conversations.errors import ReplyUnknown
from angarium.conversations.model import CanSend, ConversationMessage, MinMessageInfo, TaskItem
from angarium.conversations.operations import (
    AWAIT_MAX,
    ConversationOperations,
    new_reply,
    new_request,
)
from angarium.conversations.script_values import AcceptResult, CancelOptions, TakenReply
from angarium.runtime.text import check_text

# Expired replies can be ahead of the next reply to send.
FIRST_REPLY_LOOKUPS = 50


class SyncMessageOptions(msgspec.Struct, frozen=True, rename="camel"):
    """Names a reply by its own id or by the id of its ACK.

    Without the conversation id, every partition is asked.
    """

    response_id: str | None = None
    async_response_id: str | None = None
    corr: str = ""
    conversation_id: str | None = None


class ResponsesIdByRequestId(msgspec.Struct, frozen=True):
    """A reply and all replies in flight to the same request, itself included."""

    info: MinMessageInfo
    siblings: Sequence[MinMessageInfo]


class MessageSyncManager(ConversationOperations):
    async def find(self, options: SyncMessageOptions) -> MinMessageInfo:
        if options.async_response_id is not None:
            return await self.find_ack(options.async_response_id, options.conversation_id)
        return (await self._read(options)).info()

    # Creating

    def get_init_default_values(
        self, origin: str, conversation_id: str, request_id: str, request_timestamp: int
    ) -> ConversationMessage:
        return new_request(conversation_id, request_id, origin, request_timestamp)

    async def create_conversation_register(
        self,
        origin: str,
        conversation_id: str,
        request_id: str,
        corr: str = "",
        request_timestamp: int | None = None,
    ) -> tuple[str, ConversationMessage]:
        """Open a request: ('created' | 'duplicate', the request)."""
        return await self.open_request(
            conversation_id, request_id, origin, corr=corr, request_timestamp=request_timestamp
        )

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
        """Accept a reply to an open request; with the origin '' it has its request's origin."""
        new = new_reply(
            conversation_id,
            request_id,
            response_id,
            task_item,
            origin=origin,
            corr=corr,
            response_timestamp=response_timestamp,
        )
        return await self._store.accept_reply(new)

    # Sending

    async def can_send_conversation_message(
        self, conversation_id: str, request_id: str, corr: str = "", response_id: str | None = None
    ) -> CanSend:
        """Without a response id, the request's first reply is checked."""
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

        The reply is delivered when its ACK comes or `sent_message_ttl` ends. 'ack_taken': another
        reply waits for an ACK of this id, so only the time ends this one.
        """
        info = MinMessageInfo(request_id, response_id, conversation_id)
        return await self._store.report_sent(info, async_response_id)

    async def delete_conversation_message(self, options: SyncMessageOptions) -> str:
        """Remove one reply: 'delivered' if it was SENT, else 'cancelled', or 'gone'."""
        if options.async_response_id is not None:
            return await self.acknowledge_now(options.async_response_id, options.conversation_id)
        return await self.finish(await self.find(options), "deleted")

    # Reading

    async def get_conversation_message(
        self, options: SyncMessageOptions, projection: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The stored fields, or those that the projection names: `{"status": 1}`."""
        if options.async_response_id is not None:
            info = await self.find(options)
            options = SyncMessageOptions(
                response_id=info.response_id, conversation_id=info.conversation_id
            )
        fields: dict[str, Any] = msgspec.to_builtins(await self._read(options))
        if projection is None:
            return fields
        return {name: fields[name] for name, on in projection.items() if on and name in fields}

    async def get_first_conversation_message(
        self, conversation_id: str
    ) -> ConversationMessage | None:
        """The next reply to send."""
        snapshot = await self._store.snapshot(conversation_id, FIRST_REPLY_LOOKUPS)
        for each in snapshot.replies:
            if each.until_ms > snapshot.now_ms:
                return await self._store.read_reply(each.response_id, conversation_id)
        return None

    async def get_all_siblings(
        self, response_id_key: str, corr: str = ""
    ) -> ResponsesIdByRequestId:
        """`response_id_key` is the Redis key of the reply's hash."""
        message = await self._store.read_by_key(response_id_key)
        if message is None:
            raise ReplyUnknown(f"no reply {response_id_key!r} is in flight")
        return await self._siblings(message.info())

    @staticmethod
    def generate_unique_min_info_key(info: MinMessageInfo) -> str:
        return info.key().decode()

    # Waiting

    async def set_awaited_by_request_id(
        self, conversation_id: str, request_id: str, corr: str = "", why: str = ""
    ) -> int:
        """Set all replies of the request AWAITED, each with its back-off; the number of them."""
        return await self.await_group(conversation_id, request_id, why)

    async def set_awaited_by_response_id(self, options: SyncMessageOptions, why: str = "") -> str:
        """'awaited' | 'sent' | 'held' (by another process) | 'gone'."""
        info = await self.find(options)
        (status,) = await self._store.await_replies([info], 0, self._retry_ms, why)
        return status

    async def get_awaited_messages(self, n_messages: int, corr: str = "") -> list[TakenReply]:
        """Claim at most this many due replies; they are PENDING in this process now."""
        return (await self.claim_awaited(n_messages))[1]

    async def update_awaited_expires(
        self, response_id: str, corr: str = "", conversation_id: str | None = None
    ) -> str:
        """Set the time of the next try by the back-off: 'postponed' | 'sent' | 'gone'."""
        info = (await self.read_reply(response_id, conversation_id)).info()
        return await self._store.postpone(info, 0, self._retry_ms)

    # Cancelling

    async def set_error_by_id(self, options: SyncMessageOptions, why: str = "") -> int:
        """Cancel a reply and its siblings and close their request; the number cancelled."""
        return await self.cancel_group(await self.find(options), why)

    async def delete_conversation_register(
        self, all_origin_except: str | None, status: str | None, request_info: MinMessageInfo
    ) -> int:
        """Remove a request's replies: all, those of a status, or those of other origins."""
        for name, text in (("status", status), ("origin", all_origin_except)):
            if text is not None:
                check_text(text, name)
        options = CancelOptions(
            close=status is None and all_origin_except is None,
            status=status or "",
            except_origin=all_origin_except or "",
            why="deleted",
        )
        info = request_info.of_request()
        if options.close:
            return await self.cancel_all(info, options)
        group = await self._store.siblings(info, AWAIT_MAX, last_first=True)
        return await self.cancel_some(info, group, options)

    async def remove_request_message(
        self, options: SyncMessageOptions, remove_owner: bool, corr: str = ""
    ) -> int:
        """Remove a reply's siblings; with `remove_owner` also the reply and its request."""
        info = await self.find(options)
        if remove_owner:
            return await self.cancel_all(info, CancelOptions(why="removed"))
        return await self.remove_all_siblings(await self._siblings(info))

    async def remove_all_siblings(self, group: ResponsesIdByRequestId, corr: str = "") -> int:
        """Remove the listed replies except `group.info`."""
        others = [each for each in reversed(group.siblings) if each != group.info]
        options = CancelOptions(close=False, why="removed")
        return await self.cancel_some(group.info, others, options)

    async def remove_all_references_at_time(
        self, options: SyncMessageOptions, delay_s: float, corr: str = ""
    ) -> str:
        """End the reply after the delay: 'retiring' | 'gone'."""
        info = await self.find(options)
        return await self._store.retire(info, max(0, round(delay_s * 1000)))

    async def _read(self, options: SyncMessageOptions) -> ConversationMessage:
        return await self.read_reply(options.response_id or "", options.conversation_id)

    async def _siblings(self, info: MinMessageInfo) -> ResponsesIdByRequestId:
        return ResponsesIdByRequestId(info, await self._store.siblings(info, AWAIT_MAX))

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
