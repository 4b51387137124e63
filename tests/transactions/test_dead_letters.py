"""Dead letters of transactions: pages, choice by reason, pipeline and owner, retry, drop."""

from __future__ import annotations

from typing import Any

import pytest

from angarium.runtime.dead_letters import DeadLetterUnknown, DeadLetterUnusable
from angarium.runtime.errors import InputInvalid
from angarium.transactions import keys as transactions_keys
from angarium.transactions.dead_letters import TransactionDeadLetters
from angarium.transactions.model import TransactionStatus
from tests.kit.clock import FakeClock
from tests.transactions.api_client import ApiClient, api
from tests.transactions.harness import Harness, harness

HTTP: dict[str, Any] = {"http": {"port": 0}}
DEAD = "/v1/transactions/dead"


async def die(here: Harness, *reasons: str, **start: Any) -> list[str]:
    """Transactions that ended for these reasons; their ids."""
    ids = []
    for reason in reasons:
        id = await here.start(**start)
        (taken,) = await here.take()
        assert taken.id == id
        await here.store.complete(taken, "failed", b"", f"step 1 failed: {reason}", reason)
        ids.append(id)
    return ids


async def listed(letters: TransactionDeadLetters, reason: str = "") -> set[str]:
    page = await letters.page(500, reason=reason)
    assert page.next is None
    return {each.id for each in page.letters}


async def test_all_dead_letters_of_a_reason_are_retried(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        ids = [await here.start() for _ in range(9)]
        for number, taken in enumerate(await here.take()):
            reason = "ValueError" if number % 3 else "KeyError"
            await here.store.complete(taken, "failed", b"", "no", reason)
        letters = here.client.dead_letters()
        assert await letters.retry_all("ValueError") == {"retried": 6}
        assert await letters.retry_all("ValueError") == {}
        left = (await letters.page(50)).letters
        assert {each.reason for each in left} == {"KeyError"}
        assert len(await here.listed(TransactionStatus.QUEUED)) == 6
        assert len(ids) == 9


async def test_all_dead_letters_of_a_reason_are_dropped(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        dropped = await die(here, "ValueError", "ValueError")
        kept = await die(here, "KeyError")
        letters = here.client.dead_letters()
        assert await letters.drop_all("ValueError") == 2
        assert await letters.drop_all("ValueError") == 0
        assert await listed(letters) == {*kept}
        for id in dropped:
            assert (await here.event_names(id))[-1] == "discarded"
            assert await here.score(transactions_keys.TO_ARCHIVE, id) is not None
        assert await letters.drop_all() == 1
        assert await listed(letters) == set()


async def test_a_reason_is_a_part_of_the_last_reason(redis_url: str) -> None:
    async with harness(redis_url) as here:
        value, key, crashed = await die(here, "ValueError", "KeyError", "crashed")
        letters = here.client.dead_letters()
        assert await listed(letters, "Error") == {value, key}
        assert await listed(letters, "yErr") == {key}
        assert await listed(letters, "Value.*") == set(), "it is no pattern"
        assert await letters.drop_all("ash") == 1
        assert await letters.retry_all("Err") == {"retried": 2}
        assert (await here.state(crashed)).reason is None


async def test_dead_letters_are_listed_in_pages_and_by_owner(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        for number in range(12):
            await here.start(owner="ann" if number % 2 else "bob")
        for taken in await here.take(count=12):
            await here.store.complete(taken, "failed", b"", "no", "ValueError")
        found: list[str] = []
        after, pages = None, 0
        while pages == 0 or after is not None:
            page = await here.client.dead_letters(owner="ann").page(2, after)
            found += [each.id for each in page.letters]
            assert {each.owner for each in page.letters} <= {"ann"}
            after, pages = page.next, pages + 1
        assert len(found) == len(set(found)) == 6


async def test_a_cursor_of_another_list_is_refused(redis_url: str) -> None:
    async with harness(redis_url) as here:
        for cursor in ("archive:1:~", "nonsense"):
            with pytest.raises(InputInvalid):
                await here.client.dead_letters().page(10, cursor)


async def test_dead_letters_of_one_pipeline_or_owner_include_no_others(redis_url: str) -> None:
    async with harness(redis_url) as here:
        (ann,) = await die(here, "ValueError", owner="ann")
        (bob,) = await die(here, "ValueError", owner="bob")
        (two,) = await die(here, "ValueError", pipeline="two", owner="ann")
        of_ann = here.client.dead_letters(owner="ann")
        assert await listed(of_ann) == {ann, two}
        assert await listed(here.client.dead_letters("two", "ann")) == {two}
        for call in (of_ann.find, of_ann.retry, of_ann.drop):
            with pytest.raises(DeadLetterUnknown):
                await call(bob)
        assert await here.client.dead_letters("two", "ann").drop_all() == 1
        assert await of_ann.retry_all() == {"retried": 1}
        assert await listed(here.client.dead_letters()) == {bob}


async def test_one_is_shown_with_its_data_and_lists_leave_it_out(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        (id,) = await die(here, "ValueError", pipeline="two", data={"sum": 10**30}, owner="ann")
        letters = here.client.dead_letters()
        (short,) = (await letters.page()).letters
        assert (short.id, short.at_ms, short.data) == (id, clock.now_ms(), None)
        whole = await letters.find(id)
        assert (whole.pipeline, whole.owner, whole.step) == ("two", "ann", 1)
        assert (whole.reason, whole.note) == ("ValueError", "step 1 failed: ValueError")
        assert whole.data == {"sum": 10**30}


async def test_only_dead_letters_are_found_retried_and_dropped(redis_url: str) -> None:
    async with harness(redis_url) as here:
        (ended,) = await here.completed()
        (retried, dropped) = await die(here, "ValueError", "ValueError")
        queued = await here.start()
        letters = here.client.dead_letters()
        await letters.retry(retried)
        await letters.drop(dropped)
        for call in (letters.find, letters.retry, letters.drop):
            for id in (queued, ended, retried, dropped):
                with pytest.raises(DeadLetterUnknown, match="is not a dead letter"):
                    await call(id)
            for id in ("ghost", "", "no id", "x/y"):
                with pytest.raises(DeadLetterUnknown, match="there is no dead letter"):
                    await call(id)


async def test_without_its_version_of_the_pipeline_it_can_only_be_dropped(redis_url: str) -> None:
    async with harness(redis_url) as here:
        (id,) = await die(here, "ValueError")
        (usable,) = await die(here, "ValueError", pipeline="two")
        name = here.runtime.keyspace.name(transactions_keys.PIPELINE, 0, "one")
        await here.runtime.redis.call("DEL", name, key=name)
        letters = here.client.dead_letters()
        with pytest.raises(DeadLetterUnusable, match="has lost this version"):
            await letters.retry(id)
        assert await letters.retry_all() == {"retried": 1, "unusable": 1}
        assert await listed(letters) == {id}
        assert (await here.state(usable)).status == "queued"
        await letters.drop(id)
        assert await listed(letters) == set()


# HTTP


async def test_dead_letters_over_http(redis_url: str) -> None:
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        one, two, three = await die(here, "ValueError", "KeyError", "crashed", data={"n": 1})
        (other,) = await die(here, "ValueError", pipeline="two", owner="ann")
        status, page = await http.request("GET", f"{DEAD}?reason=Error&pipeline=one&limit=1")
        assert (status, [each["id"] for each in page["letters"]]) == (200, [two])
        assert page["letters"][0]["data"] is None
        rest = f"{DEAD}?reason=Error&pipeline=one&after={page['next']}"
        _, page = await http.request("GET", rest)
        assert ([each["id"] for each in page["letters"]], page["next"]) == ([one], None)
        status, shown = await http.request("GET", f"{DEAD}/{three}")
        assert (status, shown["reason"], shown["data"]) == (200, "crashed", {"n": 1})
        retried = await http.request("POST", f"{DEAD}/{three}/retry")
        assert retried == (200, {"id": three, "status": "retried"})
        status, problem = await http.request("POST", f"{DEAD}/{three}/retry")
        assert (status, problem["code"]) == (404, "dead_letter_unknown")
        assert problem["detail"] == f"transaction '{three}' is not a dead letter"
        assert await http.request("DELETE", f"{DEAD}/{two}") == (204, None)
        assert (await http.request("DELETE", f"{DEAD}/{two}"))[0] == 404
        retried = await http.request("POST", f"{DEAD}/retry?reason=Value&owner=ann")
        assert retried == (200, {"retried": 1, "unusable": 0})
        assert (await here.state(other)).status == "queued"
        assert await http.request("DELETE", f"{DEAD}?reason=Value") == (200, {"dropped": 1})
        assert await http.request("GET", DEAD) == (200, {"letters": [], "next": None})


async def test_a_filter_without_a_name_and_a_wrong_cursor_are_refused(redis_url: str) -> None:
    """An empty name would choose the dead letters of all."""
    async with harness(redis_url, **HTTP) as here, api(here.runtime) as http:
        (id,) = await die(here, "ValueError")
        for query in ("?owner=", "?pipeline=", "?owner=a%20b"):
            for method, path in (("GET", ""), ("POST", "/retry"), ("DELETE", "")):
                status, problem = await http.request(method, f"{DEAD}{path}{query}")
                assert (status, problem["code"]) == (400, "name_invalid")
        assert (await http.request("GET", f"{DEAD}?after=archive:1:~"))[0] == 400
        assert await listed(here.client.dead_letters()) == {id}


async def _refused(http: ApiClient, method: str, path: str) -> tuple[int, str]:
    status, problem = await http.request(method, f"{DEAD}{path}", token="acme")
    return status, problem["code"]


async def test_a_tenant_reaches_its_own_dead_letters_only(redis_url: str) -> None:
    http_settings = {"port": 0, "tokens": ["admin@acme:acme", "write@acme:writer"]}
    async with harness(redis_url, http=http_settings) as here, api(here.runtime) as http:
        own = await die(here, *["ValueError"] * 4, owner="acme")
        (foreign,) = await die(here, "ValueError", owner="other")
        for method, path in (("GET", ""), ("POST", "/retry"), ("DELETE", "")):
            for query in ("", "?owner=other", "?owner="):
                refusal = await _refused(http, method, path + query)
                assert refusal == (403, "tenant_foreign"), (method, path, query)
        for method, path in (("GET", ""), ("POST", "/retry"), ("DELETE", "")):
            for query in ("", "?owner=acme", "?owner=other"):
                refusal = await _refused(http, method, f"/{foreign}{path}{query}")
                assert refusal == (404, "transaction_unknown"), (method, path, query)
        _, page = await http.request("GET", f"{DEAD}?owner=acme", token="acme")
        assert {each["id"] for each in page["letters"]} == {*own}
        first, second, third, _ = own
        status, shown = await http.request("GET", f"{DEAD}/{first}", token="acme")
        assert (status, shown["owner"]) == (200, "acme")
        assert (await http.request("POST", f"{DEAD}/{first}/retry", token="writer"))[0] == 200
        status, problem = await http.request("DELETE", f"{DEAD}/{second}", token="writer")
        assert (status, problem["code"]) == (403, "forbidden"), "dropping needs admin"
        assert (await http.request("DELETE", f"{DEAD}/{second}", token="acme"))[0] == 204
        retried = await http.request("POST", f"{DEAD}/retry?owner=acme&reason=Val", token="acme")
        assert retried == (200, {"retried": 2, "unusable": 0})
        (taken, *_) = [each for each in await here.take() if each.id == third]
        await here.store.complete(taken, "failed", b"", "no", "ValueError")
        dropped = await http.request("DELETE", f"{DEAD}?owner=acme", token="acme")
        assert dropped == (200, {"dropped": 1})
        assert await listed(here.client.dead_letters()) == {foreign}
