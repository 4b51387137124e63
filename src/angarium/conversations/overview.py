"""Conversations in the overview."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from angarium.conversations.queries import ConversationQueries
from angarium.conversations.views import view_senders
from angarium.conversations.wait_reasons import SenderWait, process_with_sender
from angarium.runtime.overview import ModuleSample, Notice, count_of
from angarium.runtime.runtime import Runtime


class ConversationsSampler:
    def __init__(self, runtime: Runtime) -> None:
        self._partitions = range(runtime.settings.partitions)
        self._queries = ConversationQueries(runtime)

    async def sample(self, roles: Set[str], now_ms: int) -> ModuleSample:
        needs = (await view_senders(self._queries)).needs
        found = [await self._queries.in_flight(partition) for partition in self._partitions]
        replies, requests, new = (sum(each) for each in zip(*found, strict=True))
        facts = {
            "replies": replies,
            "requests": requests,
            "new": new,
            "without_sender": sum(need.replies for need in needs),
        }
        notices = [*conversations_notices(replies, needs, roles)]
        return ModuleSample(replies, facts, notices=notices)


def conversations_notices(
    replies: int, needs: Sequence[SenderWait], roles: Set[str]
) -> Iterator[Notice]:
    for need in needs:
        text = f"{count_of(need.replies, 'reply')} waiting for {process_with_sender(need.senders)}"
        hint = "start a process whose application has this sender, or cancel them"
        yield Notice("conversations", "trouble", text, hint)
    if replies and "conversations" not in roles:
        text = f"{count_of(replies, 'reply')} in flight and no process sends them"
        yield Notice("conversations", "trouble", text, "start one: angarium serve conversations")
