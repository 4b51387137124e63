"""What a waiting reply takes of Redis' memory, on a server with the embedded server's limits."""

from __future__ import annotations

import asyncio

import pytest

from angarium.conversations.model import MinMessageInfo
from angarium.conversations.script_values import NewReply
from angarium.conversations.store import ConversationStore
from angarium.redis.embedded.supervisor import COMPACT
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess

REPLIES = 4_000
TASK = b'{"messageOptions":{"payload":{"text":"an answer of an ordinary size"}}}'


@pytest.mark.parametrize(("each", "bytes_max"), [(1, 1_500), (10, 1_000)])
async def test_a_waiting_reply_takes_at_most_so_many_bytes(each: int, bytes_max: int) -> None:
    with ServerProcess(config=COMPACT) as server:
        witness = server.client(decode_responses=True)
        async with sample_runtime(server.url, prefix="", journal={"enabled": False}) as runtime:
            store = ConversationStore(runtime)

            async def converse(number: int) -> None:
                info = MinMessageInfo(f"request-{number}", "", f"conversation-{number}")
                await store.create_request(info, "web", 1, "")
                for reply in range(each):
                    response_id = f"reply-{number}-{reply}"
                    new = NewReply(info.conversation_id, info.request_id, response_id, 1, TASK)
                    assert not (await store.accept_reply(new)).duplicate

            await converse(REPLIES)  # what the first call loads is not counted
            before = int(witness.info("memory")["used_memory_dataset"])
            await asyncio.gather(*(converse(number) for number in range(REPLIES // each)))
            used = int(witness.info("memory")["used_memory_dataset"]) - before
    assert used / REPLIES <= bytes_max
