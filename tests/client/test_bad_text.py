"""A client refuses a string that is not valid Unicode; other calls are not affected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from angarium.client import Client
from angarium.runtime.errors import InputInvalid
from tests.kit.sample import sample_settings

BAD = "caf\udce9"
URL = f"https://example.com/{BAD}"
STEPS = [{"type": "x"}]

Call = Callable[[Client], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "publish": lambda c: c.publish({"a": BAD}),
    "publish under a name": lambda c: c.publish({BAD: 1}),
    "publish with a trace": lambda c: c.publish({"a": 1}, traceparent=BAD),
    "publish all": lambda c: c.dispatch.publish_all([{"a": 1}, {"a": BAD}]),
    "enqueue": lambda c: c.dispatch.enqueue({"a": BAD}),
    "enqueue under a key": lambda c: c.dispatch.enqueue({"a": 1}, idempotency_key=BAD),
    "route": lambda c: c.routing.send(BAD, b"x"),
    "show a key": lambda c: c.routing.show(BAD),
    "start": lambda c: c.transactions.start(BAD),
    "start with data": lambda c: c.transactions.start("p", {"a": BAD}),
    "start for an owner": lambda c: c.transactions.start("p", owner=BAD),
    "start under an id": lambda c: c.transactions.start("p", external_id=BAD),
    "start with a webhook": lambda c: c.transactions.start("p", webhook=URL),
    "status": lambda c: c.transactions.status(BAD),
    "by external id": lambda c: c.transactions.by_external_id(BAD),
    "by owner": lambda c: c.transactions.by_external_id("x", BAD),
    "wait": lambda c: c.transactions.wait(BAD, 1.0),
    "switch": lambda c: c.transactions.switch(BAD, "n"),
    "switch by name": lambda c: c.transactions.switch("x", BAD),
    "switch to a value": lambda c: c.transactions.switch("x", "n", BAD),
    "cancel": lambda c: c.transactions.cancel(BAD),
    "load": lambda c: c.transactions.load({"name": BAD, "version": 1, "steps": STEPS}),
    "request in": lambda c: c.conversations.request(BAD, "B"),
    "request": lambda c: c.conversations.request("c", BAD),
    "request from": lambda c: c.conversations.request("c", "B", BAD),
    "request under": lambda c: c.conversations.request("c", "B", corr=BAD),
    "reply in": lambda c: c.conversations.reply(BAD, "A", "a", 1),
    "reply to": lambda c: c.conversations.reply("c", BAD, "a", 1),
    "reply": lambda c: c.conversations.reply("c", "A", BAD, 1),
    "reply with": lambda c: c.conversations.reply("c", "A", "a", {"a": BAD}),
    "reply by": lambda c: c.conversations.reply("c", "A", "a", 1, sender=BAD),
    "call back": lambda c: c.conversations.reply("c", "A", "a", 1, callback_url=URL),
    "address": lambda c: c.conversations.reply("c", "A", "a", 1, address={"a": BAD}),
    "reply under": lambda c: c.conversations.reply("c", "A", "a", 1, corr=BAD),
    "acknowledge": lambda c: c.conversations.acknowledge(BAD),
    "acknowledge in": lambda c: c.conversations.acknowledge("x", BAD),
    "show": lambda c: c.conversations.show(BAD),
    "a number for an id": lambda c: c.conversations.request("c", 5),  # type: ignore[arg-type]
    "add": lambda c: c.pickup.add(BAD, 1),
    "add a payload": lambda c: c.pickup.add("c", {"a": BAD}),
    "add for": lambda c: c.pickup.add("c", 1, recipients=[BAD]),
    "add under a key": lambda c: c.pickup.add("c", 1, key=BAD),
    "add in": lambda c: c.pickup.add("c", 1, tenant=BAD),
    "add with a token": lambda c: c.pickup.add("c", 1, push_token=BAD),
    "take": lambda c: c.pickup.take(BAD),
    "take for": lambda c: c.pickup.take("c", recipient=BAD),
    "take in": lambda c: c.pickup.take("c", tenant=BAD),
    "remove from": lambda c: c.pickup.remove(BAD, ["x"]),
    "remove": lambda c: c.pickup.remove("c", [BAD]),
    "remove in": lambda c: c.pickup.remove("c", ["x"], tenant=BAD),
    "count": lambda c: c.pickup.count(BAD),
    "count in": lambda c: c.pickup.count("c", tenant=BAD),
    "show a queue": lambda c: c.pickup.show(BAD),
    "show a queue in": lambda c: c.pickup.show("c", tenant=BAD),
}


@pytest.mark.parametrize("partitions", [1, 3])
async def test_invalid_text_is_refused_for_that_call_only(
    redis_url: str, tmp_path: Path, partitions: int
) -> None:
    settings = sample_settings(
        redis_url, partitions=partitions, database_url=f"sqlite:///{tmp_path}/a.db"
    )
    async with Client(settings) as client:
        assert await client.conversations.request("c", "A") == "created"
        for name, call in CALLS.items():
            print(name)  # shown if it fails
            with pytest.raises(InputInvalid) as refused:
                await call(client)
            str(refused.value).encode()
            shown = await client.conversations.show("c")
            assert (shown.conversation_id, shown.requests_total) == ("c", 1), name
