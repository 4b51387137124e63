"""F35: a request id belongs to one conversation, and whoever uses it in another learns that."""

from __future__ import annotations

import pytest

from angarium.client import Client
from angarium.conversations.errors import RequestTaken
from tests.conversations.test_http import opening, running_api
from tests.kit.sample import sample_runtime

WHY = "belongs to one conversation"


async def test_the_http_api_says_why_it_refuses_a_request_id(redis_url: str) -> None:
    async with running_api(redis_url) as (api, _):
        await api.post("requests", opening("A", "c"))
        assert await api.post("requests", opening("A", "d")) == (409, "request_taken")
        _, problem = await api.ask("POST", "requests", opening("A", "d"))
        assert WHY in problem["detail"]


async def test_the_client_says_why_it_refuses_a_request_id(
    any_redis_url: str, no_settings: object
) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        client = Client(runtime=runtime)
        # Every partition has its own ids; these two conversations are in the same one.
        first = "c"
        partition = runtime.keyspace.partition_of(first)
        second = next(
            name
            for name in (f"d{number}" for number in range(10_000))
            if runtime.keyspace.partition_of(name) == partition
        )
        try:
            await client.conversations.request(first, "A")
            with pytest.raises(RequestTaken, match=WHY):
                await client.conversations.request(second, "A")
        finally:
            await client.close()
