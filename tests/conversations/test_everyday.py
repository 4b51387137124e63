"""What users' senders do on a working day: slow, blocking, failing, giving up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from angarium.conversations.model import OutgoingReply
from angarium.runtime.application import Application
from angarium.runtime.retry_policy import DoNotRetry
from tests.conversations.harness import DEADLINE_S, harness, instance, task
from tests.kit.eventually import eventually

# A hold that is short against the sends of these tests.
SHORT: dict[str, Any] = {"conversations": {"max_pending_ttl": 600, "max_pending_ttl_margin": 100}}


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_a_plain_function_slower_than_the_hold_sends_its_reply_once(
    redis_url: str, gate: threading.Event
) -> None:
    """A thread can't be interrupted: no other process may take the reply while it runs."""
    app, started = Application(), list[str]()

    @app.reply_sender()
    def send(reply: OutgoingReply) -> None:
        started.append(reply.response_id)
        gate.wait(DEADLINE_S)

    async with instance(redis_url, app, **SHORT) as first:
        prefix = first.runtime.settings.prefix
        async with instance(redis_url, app, prefix=prefix, **SHORT) as second:
            await first.request("c", "A", "web")
            for number in range(2):
                await first.reply("c", "A", f"a{number}", task(number))
            await eventually(lambda: started == ["a0"], DEADLINE_S)
            renewed_until = await hold_end(first, "a0")

            async def renewed_twice() -> bool:
                return await hold_end(first, "a0") > renewed_until + 1_200

            await eventually(renewed_twice, DEADLINE_S)  # twice the time of a hold
            assert started == ["a0"]
            gate.set()
            await eventually(lambda: started == ["a0", "a1"], DEADLINE_S)
            await eventually(lambda: first.sent + second.sent == 2, DEADLINE_S)


async def test_a_reply_that_waits_for_a_free_slot_longer_than_its_hold_is_sent_once(
    redis_url: str, gate: threading.Event
) -> None:
    """Clients hang in the only slot of the first process; the second one takes the reply."""
    sent, busy, free = list[str](), Application(), Application()

    @busy.reply_sender()
    def hang_or_send(reply: OutgoingReply) -> None:
        sent.append(f"busy {reply.response_id}")
        if reply.response_id.startswith("h"):
            gate.wait(DEADLINE_S)

    @free.reply_sender()
    async def send(reply: OutgoingReply) -> None:
        sent.append(f"free {reply.response_id}")

    few: dict[str, Any] = {
        "conversations": SHORT["conversations"] | {"concurrent": 1},
        "limits": {"conversation_slow_sends_max": 1},
    }
    async with instance(redis_url, busy, **few) as first:
        for number, name in enumerate(("h1", "h2"), 1):
            await first.request(name, name, "web")
            await first.reply(name, name, name, task(1))
            await eventually(partial(at_least, sent, number), DEADLINE_S)
        await first.request("c", "A", "web")
        await first.reply("c", "A", "a1", task(1))
        await eventually(lambda: first.queue.metrics.validations == 3, DEADLINE_S)
        async with instance(redis_url, free, prefix=first.runtime.settings.prefix, **SHORT):
            await eventually(lambda: "free a1" in sent, DEADLINE_S)
            gate.set()
            await eventually(lambda: len(first.queue) == 0, DEADLINE_S)
    assert sorted(sent) == ["busy h1", "busy h2", "free a1"]


def at_least(found: list[str], number: int) -> bool:
    return len(found) >= number


async def hold_end(role: Any, response_id: str) -> int:
    message = await role.manager.read_reply(response_id)
    return round((message.awaited_to_date_ts or 0) * 1000)


async def test_an_async_sender_is_ended_by_its_own_timeout_and_the_reply_tried_again(
    redis_url: str,
) -> None:
    app, tries = Application(), list[int]()

    @app.reply_sender(timeout_s=0.05)
    async def send(reply: OutgoingReply) -> None:
        tries.append(reply.awaited_retries)
        if len(tries) == 1:
            await asyncio.Event().wait()

    async with instance(redis_url, app) as role:
        await role.request("c", "A", "web")
        await role.reply("c", "A", "a1", task(1))
        await eventually(lambda: role.sent == 1, DEADLINE_S)
        assert tries == [0, 1]


async def test_f25_a_conversation_whose_first_reply_failed_once_goes_on_soon(
    redis_url: str,
) -> None:
    """With every setting at its default: the awaited agent's interval is 20 s."""
    app, sent = Application(), list[str]()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> None:
        if reply.response_id == "a0" and reply.awaited_retries == 0:
            raise ConnectionError("503")
        sent.append(f"{reply.response_id} {reply.awaited_retries}")

    async with instance(redis_url, app) as role:
        await role.request("c", "A", "web")
        for number in range(5):
            await role.reply("c", "A", f"a{number}", task(number))
        began_s = time.monotonic()
        await eventually(lambda: len(sent) == 5, DEADLINE_S)
        print(f"five replies in {time.monotonic() - began_s:.2f} s")
        assert sent == ["a0 1", "a1 0", "a2 0", "a3 0", "a4 0"]


@pytest.mark.parametrize(
    ("options", "error", "tries"),
    [
        ({"retries": 2, "backoff": "fixed"}, ValueError("no"), 3),
        ({"retry_on": ConnectionError}, ValueError("no"), 1),
        ({}, DoNotRetry("no"), 1),
    ],
)
async def test_a_sender_declares_how_often_and_for_which_errors_it_is_tried_again(
    redis_url: str, options: dict[str, Any], error: Exception, tries: int
) -> None:
    app, calls = Application(), list[int]()

    @app.reply_sender(**options)
    async def send(reply: OutgoingReply) -> None:
        calls.append(reply.awaited_retries)
        raise error

    async with instance(redis_url, app) as role:
        await role.request("c", "A", "web")
        await role.reply("c", "A", "a1", task(1))
        await eventually(lambda: role.cancelled == 1, DEADLINE_S)
        assert calls == list(range(tries))


async def test_the_first_reply_is_named_while_an_earlier_request_is_waited_for(
    redis_url: str,
) -> None:
    async with harness(redis_url) as it:
        await it.request("A")
        await it.request("B")
        await it.reply("B", "b1")
        found = await it.manager.can_send_conversation_message("c", "B")
        assert (found.status, found.first_response_id) == ("wait_request", "b1")
