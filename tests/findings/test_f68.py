"""F68: one payload that a client can't read broke the whole page, and the client's connection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from angarium.pickup.client import Delivery, PickupClient
from angarium.runtime.scripts import status_of
from tests.findings.pickup_wire import DID, connected, environment, opened_store, url_of
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess

UNREADABLE = {
    "a number beyond a double": b"1e999999",
    "deep inside": b'{"a":[1,{"b":-1e400}]}',
    "a whole number beyond a double": b"9" * 400,
    "half of a surrogate pair": b'"\\ud800"',
    "a key that is half of a pair": b'{"\\udc00":1}',
    "nested without end": b"[" * 400 + b"]" * 400,
}
READABLE = {
    "a large number": b"1.7e308",
    "a small number": b"1e-999999",
    "a whole number beyond 64 bits": b"18446744073709551616",
    "a whole number just in range": b"1" + b"0" * 308,
    "digits in a text": b'"%b"' % (b"9" * 400),
    "brackets in a text": b'"%b"' % (b"[" * 400),
    "a pair": b'"\\ud83d\\ude00"',
    "the same key twice": b'{"a":1,"a":2}',
    "a hundred levels": b"[" * 100 + b"]" * 100,
}
# 0.1.0 accepted and stored these.
STORED = [b'"first"', b"1e999999", b'{"n":2}', b"[" * 900 + b"]" * 900, b'"last"']


async def add(wire: Any, payload: bytes) -> Any:
    params = b'{"connectionId":"c1","recipientDids":["%b"],"payload":%b}' % (DID.encode(), payload)
    return await wire.ask_raw("addMessage", params)


async def store_all(env: dict[str, str]) -> list[str]:
    ids = [f"0a{number:030d}" for number in range(len(STORED))]
    async with opened_store(env) as store:
        for message_id, payload in zip(ids, STORED, strict=True):
            status = status_of(await store.add("default:c1", message_id, DID, payload))
            assert status == "offline"
    return ids


async def test_a_payload_that_not_every_client_can_read_is_refused(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(redis_url, tmp_path)
    async with RoleProcess(["serve", "gateway"], env) as role, connected(url_of(role)) as wire:
        for name, payload in UNREADABLE.items():
            answer = await add(wire, payload)
            assert answer.get("error", {}).get("code") == -32602, name
        for name, payload in READABLE.items():
            assert "result" in await add(wire, payload), name
        async with PickupClient(url_of(role)) as client:
            taken = await client.take_from_queue("c1")
            assert len(taken) == len(READABLE)


async def test_an_unreadable_message_of_a_page_is_one_error_and_the_others_are_read(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(redis_url, tmp_path)
    async with RoleProcess(["serve", "gateway"], env) as role:
        ids = await store_all(env)
        async with PickupClient(url_of(role)) as client:
            taken = await client.take_from_queue("c1")
            assert [each.id for each in taken] == ids
            assert [each.encrypted_message for each in taken][::2] == ["first", {"n": 2}, "last"]
            assert [each.error is None for each in taken] == [True, False, True, True, True]
            assert taken[1].encrypted_message is None
            assert [each.raw for each in taken] == STORED
            await client.remove_messages("c1", ids)
            assert await client.get_available_message_count("c1") == 0
            assert client.connections == 1


async def test_an_unreadable_message_of_a_live_delivery_leaves_the_connection_open(
    redis_url: str, tmp_path: Path
) -> None:
    env = environment(redis_url, tmp_path)
    found: list[Any] = []

    def take(delivery: Delivery) -> None:
        found.extend(delivery.messages)
        raise LookupError("the application's own mistake")

    async with RoleProcess(["serve", "gateway"], env) as role:
        ids = await store_all(env)
        async with PickupClient(url_of(role), on_messages=take) as client:
            await client.add_live_session("c1", "s1")
            await eventually(lambda: [each.id for each in found] == ids, 15)
            assert [each.error is None for each in found] == [True, False, True, True, True]
            await client.remove_messages("c1", ids)
            assert await client.ping() == "pong"
            assert client.connections == 1


@pytest.mark.parametrize("nonsense", [b"not json", b"\xff", b'"a","b":"c'])
async def test_a_stored_payload_that_is_no_json_does_not_break_the_page(
    redis_url: str, tmp_path: Path, nonsense: bytes
) -> None:
    """In 0.1.0 programs could store any bytes under a derived id."""
    env = environment(redis_url, tmp_path)
    async with RoleProcess(["serve", "gateway"], env) as role:
        async with opened_store(env) as store:
            await store.add("default:c1", "r" + "0" * 39, DID, nonsense)
            await store.add("default:c1", "r" + "1" * 39, DID, b'"after"')
        async with PickupClient(url_of(role), call_timeout_s=5) as client:
            before, after = await asyncio.wait_for(client.take_from_queue("c1"), 15)
            assert (before.encrypted_message, after.encrypted_message) == (None, "after")
            assert before.error is not None
            assert after.error is None
            await client.remove_messages("c1", [before.id, after.id])
            assert client.connections == 1
