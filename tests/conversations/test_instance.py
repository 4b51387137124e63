"""The role inside one process: order of sending, failures, wake-ups and metrics."""

from __future__ import annotations

import asyncio
import threading

import pytest

from angarium.conversations.errors import AckUnknown, Fatal, Recoverable
from angarium.conversations.instance import ConversationsInstance, build, check
from angarium.conversations.model import OutgoingReply
from angarium.runtime.application import Application
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.process_report import read_processes
from angarium.settings import load
from tests.conversations.harness import DEADLINE_S, Client, Harness, instance, task
from tests.conversations.receiver import receiver
from tests.kit.clock import FakeClock
from tests.kit.eventually import Signal, eventually
from tests.kit.sample import sample_runtime

QUICK = {"awaited_first_turn": 1_000, "awaited_messages_interval": 50}


async def test_replies_are_sent_in_the_order_of_their_requests(any_redis_url: str) -> None:
    client = Client()
    async with instance(any_redis_url, client.app) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.request("c", "B", "whatsapp")
        await bridge.reply("c", "B", "b1", task())
        await bridge.reply("c", "B", "b2", task())
        await bridge.reply("c", "A", "a1", task())
        await client.wait(3)
        assert client.sent == ["a1", "b1", "b2"]


async def test_the_next_reply_waits_for_the_ack_of_the_one_before(any_redis_url: str) -> None:
    client = Client(ack=True)
    async with instance(any_redis_url, client.app) as bridge:
        await bridge.request("c", "A", "whatsapp")
        for number in range(3):
            await bridge.reply("c", "A", f"a{number}", task())
        for number in range(3):
            await client.wait(number + 1)
            assert len(client.sent) == number + 1
            assert await bridge.acknowledge(f"ack-a{number}") == "delivered"
        assert client.sent == ["a0", "a1", "a2"]


async def test_a_reply_whose_ack_is_lost_counts_as_delivered_after_its_time(
    any_redis_url: str,
) -> None:
    client = Client(ack=True)
    quick = {**QUICK, "sent_message_ttl": 100}
    async with instance(any_redis_url, client.app, conversations=quick) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task())
        await bridge.reply("c", "A", "a2", task())
        await client.wait(2)
        assert client.sent == ["a1", "a2"]
        partition = bridge.store.partition_of("c")

        async def settled() -> bool:
            return (await bridge.store.in_flight(partition))[0] == 0

        await eventually(settled, DEADLINE_S)
        with pytest.raises(AckUnknown):
            await bridge.acknowledge("ack-a1")


async def test_a_reply_in_one_process_is_woken_by_the_ack_in_another(any_redis_url: str) -> None:
    """Polling is off: only the wake-up can do it."""
    first, second = Client(ack=True), Client(ack=True)
    patient = {"interval": 600_000, "check_queue_interval": 600_000}
    async with instance(any_redis_url, first.app, conversations=patient) as one:
        prefix = one.runtime.settings.prefix
        async with instance(
            any_redis_url, second.app, prefix=prefix, conversations=patient
        ) as other:
            await one.request("c", "A", "whatsapp")
            await one.reply("c", "A", "a1", task())
            await first.wait(1)
            await other.reply("c", "A", "a2", task())
            await eventually(lambda: other.queue.metrics.waits >= 1, DEADLINE_S)
            assert second.sent == []
            await one.acknowledge("ack-a1")
            await second.wait(1)


async def test_a_reply_that_no_process_holds_is_taken_by_one(any_redis_url: str) -> None:
    client = Client()
    async with instance(any_redis_url, client.app) as bridge:
        process = Harness(bridge.runtime, FakeClock())
        await bridge.request("c", "A", "whatsapp")
        await process.reply("A", "a1", held=False)
        await client.wait(1)
        assert client.sent == ["a1"]


async def test_a_fatal_error_cancels_the_group_and_unblocks_the_next_reply(
    any_redis_url: str,
) -> None:
    sent: list[str] = []
    app = Application()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> None:
        if reply.request_id == "A":
            raise Fatal("blocked by the client")
        sent.append(reply.response_id)

    async with instance(any_redis_url, app) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.request("c", "B", "whatsapp")
        await bridge.reply("c", "B", "b1", task())
        await bridge.reply("c", "A", "a1", task())
        await bridge.reply("c", "A", "a2", task())
        await eventually(lambda: sent == ["b1"], DEADLINE_S)
        process = Harness(bridge.runtime, FakeClock())
        assert await process.count("dead") in (
            1,
            2,
        )  # a2 may come after its request was closed
        events = await process.events()
        assert ("dead", "a1") in events


@pytest.mark.parametrize("error", [Recoverable("busy"), ValueError("what"), KeyError("x")])
async def test_any_other_error_makes_the_group_awaited_and_it_is_tried_again(
    redis_url: str, error: Exception
) -> None:
    sent: list[str] = []
    app = Application()

    @app.reply_sender()
    def send(reply: OutgoingReply) -> None:
        sent.append(f"{reply.response_id}.{reply.awaited_retries}")
        if len(sent) == 1:
            raise error

    async with instance(redis_url, app, conversations=QUICK) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task())
        await bridge.reply("c", "A", "a2", task())
        await eventually(lambda: len(sent) >= 3, DEADLINE_S)
        assert [each.partition(".")[0] for each in sent] == ["a1", "a1", "a2"]
        assert sent[:2] == ["a1.0", "a1.1"]


async def test_a_sender_that_hangs_does_not_block_other_conversations(redis_url: str) -> None:
    """More sends hang than may run at once; other conversations are still sent."""
    sent: list[str] = []
    app = Application()
    hanging = asyncio.Event()

    @app.reply_sender("hangs")
    async def hang(_: OutgoingReply) -> None:
        await hanging.wait()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> None:
        sent.append(reply.response_id)

    few = {"concurrent": 2, "concurrent_factor": 1.0}
    async with instance(redis_url, app, conversations=few) as bridge:
        for number in range(6):
            await bridge.request(f"h{number}", f"H{number}", "hangs")
            await bridge.reply(f"h{number}", f"H{number}", f"h{number}", task())
        for number in range(20):
            await bridge.request(f"c{number}", f"C{number}", "whatsapp")
            await bridge.reply(f"c{number}", f"C{number}", f"c{number}", task())
        await eventually(lambda: len(sent) == 20, DEADLINE_S)
        hanging.set()


async def test_a_sender_that_hangs_too_long_is_given_up_and_the_reply_awaited(
    redis_url: str,
) -> None:
    app = Application()
    entered = Signal()

    @app.reply_sender()
    async def hang(_: OutgoingReply) -> None:
        entered.fire()
        await asyncio.Event().wait()

    short = {**QUICK, "max_pending_ttl": 400, "max_pending_ttl_margin": 200}
    async with instance(redis_url, app, conversations=short) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task())
        await entered.wait(2, DEADLINE_S)
        assert bridge.awaited >= 1


async def test_a_plain_function_sends_in_a_thread(redis_url: str) -> None:
    app = Application()
    threads: list[int] = []

    @app.reply_sender("sms")
    def send(_: OutgoingReply) -> str:
        threads.append(threading.get_ident())
        return "ack"

    async with instance(redis_url, app) as bridge:
        await bridge.request("c", "A", "sms")
        await bridge.reply("c", "A", "a1", task())
        await eventually(lambda: threads, DEADLINE_S)
        assert threads[0] != threading.get_ident()
        assert await bridge.acknowledge("ack") == "delivered"


async def test_another_module_can_offer_a_sender(redis_url: str) -> None:
    delivered: list[str] = []

    async def deliver(reply: OutgoingReply) -> str | None:
        delivered.append(reply.payload)
        return None

    async with sample_runtime(redis_url) as runtime:
        bridge = build(runtime, Application(), {"pickup": deliver})
        await bridge.start()
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task("hello", sender="pickup"))
        await eventually(lambda: delivered == ["hello"], DEADLINE_S)
        await bridge.stop(10)


async def test_an_ack_may_come_before_the_report_that_it_was_sent(redis_url: str) -> None:
    app = Application()
    acks: list[asyncio.Task[str]] = []

    async with asyncio.TaskGroup() as group:

        @app.reply_sender()
        async def send(_: OutgoingReply) -> str:
            acks.append(group.create_task(bridge.acknowledge("early")))
            await asyncio.sleep(0)
            return "early"

        async with instance(redis_url, app) as bridge:
            await bridge.request("c", "A", "whatsapp")
            await bridge.reply("c", "A", "a1", task())
            await eventually(lambda: acks, DEADLINE_S)
            assert await acks[0] == "delivered"


async def test_another_process_takes_the_replies_of_a_stopping_one_at_once(redis_url: str) -> None:
    first, second = Client(ack=True), Client(ack=True)
    slow = {"awaited_messages_interval": 600_000, "awaited_first_turn": 1_000}
    async with instance(redis_url, second.app, conversations=slow) as other:
        prefix = other.runtime.settings.prefix
        await eventually(lambda: other.agent.turns >= 1, DEADLINE_S)
        async with instance(redis_url, first.app, prefix=prefix, conversations=slow) as one:
            await one.request("c", "A", "whatsapp")
            await one.reply("c", "A", "a1", task())
            await first.wait(1)
            await one.reply("c", "A", "a2", task())
            await eventually(lambda: one.queue.parked == 1, DEADLINE_S)
        await other.acknowledge("ack-a1")
        await second.wait(1)
        assert second.sent == ["a2"]


async def test_callbacks_carry_the_payload_and_their_answers_decide(redis_url: str) -> None:
    answers: dict[str, tuple[int, dict[str, object]]] = {
        "ok": (200, {}),
        "bad": (422, {}),
        "later": (503, {}),
    }

    async with (
        receiver(lambda body: answers[body["payload"]]) as client,
        instance(redis_url, Application(), allow_private_addresses=True) as bridge,
    ):
        for name in answers:
            await bridge.request(name, name, "web")
            await bridge.reply(name, name, name, task(name, callback_url=client.url))
        await client.wait(3)
        await eventually(
            lambda: (bridge.sent, bridge.cancelled, bridge.awaited) == (1, 1, 1), DEADLINE_S
        )


async def test_a_private_callback_address_cancels_the_reply(redis_url: str) -> None:
    async with instance(redis_url, Application()) as bridge:
        await bridge.request("c", "A", "web")
        await bridge.reply("c", "A", "a1", task(1, callback_url="http://127.0.0.1:9/"))
        await eventually(lambda: bridge.cancelled == 1, DEADLINE_S)


async def without_sender(bridge: ConversationsInstance) -> bool:
    return bool((await bridge.manager.senders()).needs)


async def test_a_reply_without_a_sender_waits_for_a_process_that_has_it(redis_url: str) -> None:
    elsewhere, sent = Application(), list[str]()

    @elsewhere.reply_sender("elsewhere")
    async def send(reply: OutgoingReply) -> None:
        sent.append(f"{reply.response_id} {reply.awaited_retries}")

    async with instance(redis_url, Application()) as bridge:
        await bridge.request("c", "A", "web")
        accepted = await bridge.reply("c", "A", "a1", task(1, sender="elsewhere"))
        assert not accepted.held
        await eventually(lambda: without_sender(bridge), DEADLINE_S)
        assert len(bridge.queue) == 0
        prefix = bridge.runtime.settings.prefix
        async with instance(redis_url, elsewhere, prefix=prefix):
            await eventually(lambda: sent == ["a1 0"], DEADLINE_S)
        assert bridge.awaited == 0


async def test_the_role_reports_its_metrics(redis_url: str) -> None:
    client = Client()
    async with instance(redis_url, client.app) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.report()
        (found,) = await read_processes(bridge.runtime)
        assert found.role == "conversations"
        assert found.figures["requests"] == 1


async def test_partial_metrics_are_logged_when_asked_for(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    often = {"extra_time_metrics": True, "metrics_partial_interval": 20}
    with caplog.at_level("INFO"):
        async with instance(redis_url, client.app, conversations=often) as bridge:
            await bridge.request("c", "A", "whatsapp")
            await bridge.reply("c", "A", "a1", task())
            await client.wait(1)

            def counted() -> int:
                found = [r.msg for r in caplog.records if isinstance(r.msg, dict)]
                partial = [each for each in found if each.get("event") == "queue_metrics"]
                return sum(each["executed"] for each in partial)

            await eventually(lambda: counted() == 1, DEADLINE_S)


def test_a_margin_that_leaves_no_time_is_refused() -> None:
    wrong = {"max_pending_ttl": 1_000, "max_pending_ttl_margin": 1_000}
    with pytest.raises(SettingInvalid, match="MAX_PENDING_TTL_MARGIN"):
        check(load(conversations=wrong), Application())
