"""Text of user code that is not valid Unicode: escaped where people read it, refused in ids.

`os.listdir` makes such text from file names that are not UTF-8, and exceptions repeat it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from angarium.conversations.compat import (
    MessageSyncManager,
    ResponsesIdByRequestId,
    SyncMessageOptions,
)
from angarium.conversations.errors import Fatal, Recoverable, error_text
from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import (
    MessageOptions,
    MinMessageInfo,
    OutgoingReply,
    TaskItem,
)
from angarium.runtime.application import Application
from angarium.runtime.errors import InputInvalid
from angarium.runtime.journal import Journal, decode_entry
from tests.conversations.harness import DEADLINE_S, harness, info, instance, task
from tests.kit.eventually import eventually

BAD = "caf\udce9"
CLEAN = r"caf\udce9"


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError(BAD)


async def reasons(bridge: ConversationsInstance) -> list[str]:
    found = []
    for entry in await Journal(bridge.runtime).read(0, entries_max=1_000):
        found += [event.detail for event in decode_entry(*entry).events if event.detail]
    return [text for text in found if text != "A"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Recoverable(BAD), f"Recoverable: {CLEAN}"),
        (FileNotFoundError(BAD), f"FileNotFoundError: {CLEAN}"),
        (Unreadable(), "Unreadable: its text can't be read: ValueError"),
        (SystemExit(BAD), f"HandlerExit: the function raised {SystemExit(BAD)!r}"),
        (Fatal(BAD), CLEAN),
        (Fatal(BAD * 100), (CLEAN * 100)[:200]),
    ],
)
async def test_the_text_of_a_senders_error_is_stored_as_valid_unicode_and_others_go_on(
    redis_url: str, error: BaseException, text: str
) -> None:
    app, sent = Application(), list[str]()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> None:
        if reply.conversation_id == "c":
            raise error
        sent.append(reply.response_id)

    async with instance(redis_url, app) as bridge:
        await bridge.request("c", "A", "web")
        await bridge.reply("c", "A", "a1", task(1))

        async def stored() -> bool:
            return text in await reasons(bridge)

        await eventually(stored, DEADLINE_S)
        await bridge.request("d", "B", "web")
        await bridge.reply("d", "B", "b1", task(1))
        await eventually(lambda: sent == ["b1"], DEADLINE_S)


async def test_an_ack_id_that_is_not_valid_counts_as_delivered(redis_url: str) -> None:
    app = Application()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> str:
        return BAD

    async with instance(redis_url, app) as bridge:
        await bridge.request("c", "A", "web")
        await bridge.reply("c", "A", "a1", task(1))

        async def gone() -> bool:
            return await bridge.store.read_reply("a1", "c") is None

        await eventually(gone, DEADLINE_S)


async def test_a_sender_with_an_odd_name_is_refused_at_the_start(redis_url: str) -> None:
    app = Application()
    app.reply_sender(BAD)(lambda reply: None)
    with pytest.raises(InputInvalid, match="not valid Unicode"):
        async with instance(redis_url, app):
            pass


def info_of(**named: str) -> MinMessageInfo:
    return MinMessageInfo(
        **{"request_id": "A", "response_id": "a", "conversation_id": "c", **named}
    )


Call = Callable[[MessageSyncManager], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "request": lambda m: m.create_conversation_register("o", "c", BAD),
    "conversation": lambda m: m.create_conversation_register("o", BAD, "B"),
    "origin": lambda m: m.create_conversation_register(BAD, "c", "B"),
    "correlator": lambda m: m.create_conversation_register("o", "c", "B", BAD),
    "payload": lambda m: m.mark_pending_conversation_register(
        "", "c", "A", TaskItem(MessageOptions(BAD)), "", "a"
    ),
    "task group": lambda m: m.mark_pending_conversation_register(
        "", "c", "A", TaskItem(task_group=BAD), "", "a"
    ),
    "sender": lambda m: m.mark_pending_conversation_register(
        "", "c", "A", TaskItem(MessageOptions(1, sender=BAD)), "", "a"
    ),
    "address": lambda m: m.mark_pending_conversation_register(
        "", "c", "A", TaskItem(MessageOptions(1, address={"x": BAD})), "", "a"
    ),
    "origin of a reply": lambda m: m.mark_pending_conversation_register(
        BAD, "c", "A", TaskItem(), "", "a"
    ),
    "reply": lambda m: m.mark_pending_conversation_register("", "c", "A", TaskItem(), "", BAD),
    "can send": lambda m: m.can_send_conversation_message("c", "A", "", BAD),
    "can send request": lambda m: m.can_send_conversation_message("c", BAD),
    "sent": lambda m: m.mark_sent_conversation_register("c", "A", "", BAD),
    "sent request": lambda m: m.mark_sent_conversation_register("c", BAD, "", "a"),
    "sent ack": lambda m: m.mark_sent_conversation_register("c", "A", "", "a", BAD),
    "delete": lambda m: m.delete_conversation_message(SyncMessageOptions(response_id=BAD)),
    "acknowledge": lambda m: m.acknowledge(BAD),
    "siblings": lambda m: m.get_all_siblings(BAD),
    "first": lambda m: m.get_first_conversation_message(BAD),
    "await": lambda m: m.set_awaited_by_request_id("c", BAD),
    "cancel request": lambda m: m.cancel_group(info_of(request_id=BAD), "why"),
    "cancel reply": lambda m: m.cancel_group(info_of(response_id=BAD), "why"),
    "delete by origin": lambda m: m.delete_conversation_register(BAD, None, info_of()),
    "delete by status": lambda m: m.delete_conversation_register(None, BAD, info_of()),
    "remove siblings": lambda m: m.remove_all_siblings(
        ResponsesIdByRequestId(info_of(), [info_of(response_id=BAD)])
    ),
    "postpone": lambda m: m.update_awaited_expires(BAD),
    "a number": lambda m: m.create_conversation_register("o", "c", 5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", CALLS)
async def test_an_id_that_is_not_valid_is_refused_and_nothing_else_is(
    redis_url: str, what: str
) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        with pytest.raises(InputInvalid) as refused:
            await CALLS[what](it.manager)
        str(refused.value).encode()
        await it.reply("A", "a1")
        assert await it.verdict(info("A", "a1")) == "send"


async def test_a_reason_that_is_not_valid_unicode_is_stored_escaped(redis_url: str) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.reply("A", "a1")
        assert await it.manager.set_awaited_by_request_id("c", "A", why=BAD) == 1
        assert await it.manager.cancel_group(info("A", "a1"), BAD) == 1
        assert await it.count("cancelled") == 1


def test_an_error_without_a_text_gives_its_class() -> None:
    assert error_text(TimeoutError()) == "TimeoutError"
