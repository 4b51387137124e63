"""The search finds any id in modules, journal and lake."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from angarium.client import Client
from angarium.client.application import Angarium
from angarium.conversations.store import ConversationStore
from angarium.lake.lookup import LakeEvent
from angarium.runtime.errors import InputInvalid, NotFound
from angarium.runtime.runtime import Runtime
from angarium.runtime.trace import CURRENT_WORK, CurrentWork
from angarium.server.reply_to_pickup import build, reply_message_id
from angarium.server.search import Search, SearchAnswer
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime

PATIENCE_S = 30.0
MESSAGE = "11111111-1111-4111-8111-111111110000"
PATIENT: dict[str, Any] = {
    "conversations": {"sent_message_ttl": 600_000, "pickup_delivered": "removed"}
}


async def play(runtime: Runtime, client: Client) -> str:
    """Send a message through all modules to pickup. Returns the transaction's id."""
    await client.transactions.load({"name": "p", "steps": [{"type": "s"}]})
    started = await client.transactions.start("p", {}, external_id=MESSAGE)
    await client.conversations.request("anna", MESSAGE)
    await client.conversations.reply("anna", MESSAGE, "r1", {"text": "hello"})
    instance = build(runtime, Angarium())
    await instance.start()

    async def sent() -> bool:
        return (
            await ConversationStore(runtime).find_ack(
                reply_message_id(runtime.settings.prefix, "anna", "r1"), None
            )
            is not None
        )

    await eventually(sent, PATIENCE_S)
    await instance.stop(5)
    return started.transaction_id


def kinds(answer: SearchAnswer) -> set[tuple[str, str]]:
    return {(each.module, each.kind) for each in answer.found}


def events(answer: SearchAnswer) -> set[tuple[str, str]]:
    return {(each.module, each.event) for each in answer.history}


async def test_a_message_is_found_by_any_of_its_related_ids(
    any_redis_url: str, no_settings: object
) -> None:
    async with sample_runtime(any_redis_url, **PATIENT) as runtime:
        client, search = Client(runtime=runtime), Search(runtime)
        transaction_id = await play(runtime, client)
        pickup_id = reply_message_id(runtime.settings.prefix, "anna", "r1")
        by_message = await search.search(MESSAGE)
        assert ("transactions", "transaction of this externalId") in kinds(by_message)
        assert ("conversations", "request") in kinds(by_message)
        whole = {
            ("transactions", "started"),
            ("conversations", "requested"),
            ("conversations", "accepted"),
            ("conversations", "sent"),
            ("pickup", "accepted"),
        }
        assert whole <= events(by_message)
        assert {transaction_id, "r1", pickup_id} <= {each.id for each in by_message.related}
        assert by_message.complete
        assert [each.at_ms for each in by_message.history] == sorted(
            each.at_ms for each in by_message.history
        )
        by_transaction = await search.search(transaction_id)
        assert ("transactions", "started") in events(by_transaction)
        assert MESSAGE in {each.id for each in by_transaction.related}
        by_reply = await search.search("r1")
        assert ("conversations", "reply") in kinds(by_reply)
        assert ("pickup", "accepted") in events(by_reply)
        by_pickup_id = await search.search(pickup_id)
        assert ("conversations", "sent") in events(by_pickup_id)
        by_conversation = await search.search("anna")
        assert {("conversations", "conversation"), ("pickup", "connection")} <= kinds(
            by_conversation
        )
        assert ("pickup", "accepted") in events(by_conversation)
        await search.close()
        await client.close()


async def test_a_recipient_key_and_a_dead_letter_are_found(
    redis_url: str, no_settings: object
) -> None:
    async with sample_runtime(redis_url) as runtime:
        client, search = Client(runtime=runtime), Search(runtime)
        await client.routing.send("did:key:anna", b"{}")
        found = await search.search("did:key:anna")
        assert ("routing", "recipient key") in kinds(found)
        assert ("routing", "accepted") in events(found)
        await search.close()


async def test_events_that_the_journal_no_longer_has_come_from_the_lake(
    redis_url: str, no_settings: object
) -> None:
    asked: list[str] = []

    async def lake(id: str) -> Iterable[LakeEvent]:
        asked.append(id)
        return [LakeEvent(0, "1-1", 1, "dispatch", 5, "a", "accepted", id)]

    async with sample_runtime(redis_url) as runtime:
        search = Search(runtime, lake)
        answer = await search.search(MESSAGE)
        assert asked == [MESSAGE]
        assert answer.lake == "joined"
        assert [(each.event, each.source) for each in answer.history] == [("accepted", "lake")]
        await search.close()


async def test_an_unknown_id_is_not_found(redis_url: str, no_settings: object) -> None:
    async def never_ran(_: str) -> None:
        return None

    async with sample_runtime(redis_url) as runtime:
        search = Search(runtime, never_ran)
        with pytest.raises(NotFound):
            await search.search("nobody")
        for id in ("", "x" * 600, "a\0b"):
            with pytest.raises(InputInvalid):
                await search.search(id)
        client = Client(runtime=runtime)
        await client.conversations.request("anna", "q")
        assert (await search.search("q")).lake == "never ran"
        await search.close()


@pytest.mark.limit("search_entries_max")
async def test_a_search_reads_a_limited_number_of_entries_and_says_so(
    redis_url: str, no_settings: object
) -> None:
    async with sample_runtime(redis_url, limits={"search_entries_max": 1}) as runtime:
        client, search = Client(runtime=runtime), Search(runtime)
        await client.conversations.request("anna", "q")
        for number in range(600):
            await client.conversations.request("other", str(number))
        assert not (await search.search("q")).complete
        await search.close()


@pytest.mark.limit("search_bytes_max", "search_events_max", "search_related_ids_max")
async def test_a_search_has_limits_in_bytes_events_and_related_ids(
    redis_url: str, no_settings: object
) -> None:
    limits = {"search_bytes_max": 1_000, "search_events_max": 3, "search_related_ids_max": 2}
    async with sample_runtime(redis_url, limits=limits) as runtime:
        client, search = Client(runtime=runtime), Search(runtime)
        for number in range(600):
            await client.conversations.request("anna", str(number))
            if number > 590:
                await client.conversations.reply("anna", str(number), f"r{number}", {})
        found = await search.search("anna")
        assert not found.complete
        assert len(found.history) == 3
        assert len(found.related) == 1, "with the id itself two"
        await search.close()


async def test_events_of_one_millisecond_are_in_the_order_in_which_they_happened(
    redis_url: str, no_settings: object
) -> None:
    async with sample_runtime(redis_url, clock=FakeClock()) as runtime:
        client, search = Client(runtime=runtime), Search(runtime)
        await client.conversations.request("anna", "q")
        await client.conversations.reply("anna", "q", "r1", {"text": "hello"})
        history = (await search.search("q")).history
        assert len({each.at_ms for each in history}) == 1
        assert [each.event for each in history][:2] == ["requested", "answered"]
        await search.close()


TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_the_trace_is_found_by_any_related_id(redis_url: str, no_settings: object) -> None:
    async with sample_runtime(redis_url, **PATIENT) as runtime:
        client, search = Client(runtime=runtime), Search(runtime)
        carried = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        token = CURRENT_WORK.set(CurrentWork(MESSAGE.encode(), carried, is_message=True))
        try:
            transaction_id = await play(runtime, client)
        finally:
            CURRENT_WORK.reset(token)
        pickup_id = reply_message_id(runtime.settings.prefix, "anna", "r1")
        for id in (MESSAGE, transaction_id, "r1", pickup_id):
            assert (await search.search(id)).trace_id == TRACE, id
        # A conversation is more than one message.
        await client.conversations.request("anna", MESSAGE.replace("1", "2"))
        await client.conversations.reply("anna", MESSAGE.replace("1", "2"), "r2", {})
        assert (await search.search("anna")).trace_id is None
        await search.close()


async def test_an_id_without_a_trace_is_its_own_trace(redis_url: str, no_settings: object) -> None:
    async with sample_runtime(redis_url) as runtime:
        client, search = Client(runtime=runtime), Search(runtime)
        await client.transactions.load({"name": "p", "steps": [{"type": "s"}]})
        alone = (await client.transactions.start("p")).transaction_id
        assert (await search.search(alone)).trace_id == alone[:32]
        await client.conversations.request("anna", MESSAGE)
        assert (await search.search(MESSAGE)).trace_id == MESSAGE.replace("-", "")
        await client.conversations.request("anna", "a-request-of-another-make")
        assert (await search.search("a-request-of-another-make")).trace_id is None
        await search.close()
