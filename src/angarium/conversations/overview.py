"""Conversations in the overview."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from angarium.conversations.service import ConversationService
from angarium.conversations.wait_reasons import SenderWait, process_with_sender
from angarium.runtime.overview import ModuleSample, Notice
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import count_of


class ConversationsSampler:
    def __init__(self, runtime: Runtime) -> None:
        self._conversations = ConversationService(runtime)

    async def sample(self, roles: Set[str], now_ms: int) -> ModuleSample:
        needs = (await self._conversations.senders()).needs
        replies, requests = await self._conversations.in_flight()
        facts = {
            "replies": replies,
            "requests": requests,
            "without_sender": sum(need.replies for need in needs),
            "dead": await self._conversations.dead.count(),
        }
        notices = [*conversations_notices(replies, facts["dead"], needs, roles)]
        return ModuleSample(replies, facts, dead=facts["dead"], notices=notices)


def conversations_notices(
    replies: int, dead: int, needs: Sequence[SenderWait], roles: Set[str]
) -> Iterator[Notice]:
    for need in needs:
        text = f"{count_of(need.replies, 'reply')} waiting for {process_with_sender(need.senders)}"
        hint = "start a process whose application has this sender, or cancel them"
        yield Notice("conversations", "trouble", text, hint)
    if replies and "conversations" not in roles:
        text = f"{count_of(replies, 'reply')} in flight and no process sends them"
        yield Notice("conversations", "trouble", text, "start one: angarium serve conversations")
    if dead:
        text = f"{count_of(dead, 'reply')} not sent: dead letters"
        yield Notice(
            "conversations", "warning", text, "look at the reasons, then retry or drop them"
        )
