"""F50: a conversations process takes only replies whose sender it has.

Real processes: `serve api conversations` without an application, as `angarium up` has them, beside
`serve conversations --app`. What each process took is read from the journal.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from angarium.runtime.journal import Event, Journal, decode_entry
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.conversations.test_roles import Api, environment
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess

DEADLINE_S = 60.0
APP = ["serve", "conversations", "--app", "tests.findings.reply_senders:app"]
OTHER = ["serve", "conversations", "--app", "tests.findings.reply_senders:other"]
CONVERSATIONS, REPLIES = 10, 3
# What a killed process held is due again sooner than after the 30 s of the default settings.
SOON = {
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL": "2000",
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL_MARGIN": "500",
    "ANGARIUM_CONVERSATIONS__AWAITED_FIRST_TURN": "1000",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGES_INTERVAL": "200",
}


@dataclass(frozen=True)
class Seen:
    """An event of a reply, and the process that made it."""

    actor: str
    event: Event


class Site:
    """The processes without an application, and a look at the journal."""

    def __init__(self, foreign: RoleProcess, api: Api, runtime: Runtime) -> None:
        self.foreign = foreign
        self.api = api
        self.runtime = runtime

    async def ask(self, conversation_id: str, replies: int = REPLIES, **options: Any) -> None:
        """A request with replies, which all have its number in their id."""
        await self.api.open(f"{conversation_id}-q", conversation_id)
        for number in range(replies):
            await self.reply(conversation_id, f"{conversation_id}-{number}", **options)

    async def reply(self, conversation_id: str, response_id: str, **options: Any) -> None:
        status, _ = await self.api.post(
            "replies", conversationId=conversation_id, requestId=f"{conversation_id}-q",
            responseId=response_id, payload=1, **options,
        )  # fmt: skip
        assert status == 202

    async def seen(self, *events: str) -> list[Seen]:
        found = []
        for partition in range(self.runtime.settings.partitions):
            for row in await Journal(self.runtime).read(partition, entries_max=100_000):
                entry = decode_entry(*row)
                found += [Seen(entry.actor, each) for each in entry.events if each.event in events]
        return found

    async def all_delivered(self, number: int) -> None:
        """Until they are, or one of them had to wait for another try."""

        async def ended() -> bool:
            delivered, awaited = await self.seen("delivered"), await self.seen("awaited")
            return bool(awaited) or len(delivered) == number

        await eventually(ended, DEADLINE_S)

    async def show(self, conversation_id: str) -> dict[str, Any]:
        status, shown = await self.api.get(f"/v1/conversations/{conversation_id}")
        assert status == 200
        return shown


def took(process: RoleProcess, seen: Sequence[Seen]) -> list[str]:
    return [each.event.subject for each in seen if f"-{process.pid}-" in each.actor]


@asynccontextmanager
async def site(redis_url: str, **more: str) -> AsyncIterator[tuple[Site, dict[str, str]]]:
    env = {**environment(redis_url), **more}
    settings = load(
        redis_url=redis_url,
        prefix=env["ANGARIUM_PREFIX"],
        partitions=int(env["ANGARIUM_PARTITIONS"]),
    )
    async with (
        RoleProcess(["serve", "api", "conversations"], env, ready_lines=2) as foreign,
        aiohttp.ClientSession() as session,
        Runtime.open(settings) as runtime,
    ):
        yield Site(foreign, Api(session, foreign.port_of("api", "http")), runtime), env


def sent(process: RoleProcess, sender: str) -> list[str]:
    head = f"{sender} "
    return [line.removeprefix(head) for line in process.lines() if line.startswith(head)]


async def test_ordered_replies_leave_at_once_beside_a_process_without_their_sender(
    any_redis_url: str,
) -> None:
    async with site(any_redis_url) as (it, env), RoleProcess(APP, env) as own:
        for number in range(CONVERSATIONS):
            await it.ask(f"c{number}")
        await it.all_delivered(CONVERSATIONS * REPLIES)
        assert await it.seen("awaited") == []
        taken = await it.seen("taken")
        assert took(it.foreign, taken) == []
        assert len(took(own, taken)) == CONVERSATIONS * REPLIES
        assert {each.event.attempt for each in taken} == {0}
        for number in range(CONVERSATIONS):
            mine = [each for each in sent(own, "default") if each.startswith(f"c{number}-")]
            assert mine == [f"c{number}-{reply}" for reply in range(REPLIES)]


async def test_replies_without_a_process_wait_visibly_and_leave_when_it_comes(
    redis_url: str,
) -> None:
    async with site(redis_url) as (it, env):
        await it.ask("c")

        async def waits() -> dict[str, Any]:
            shown = await it.show("c")
            assert [need["replies"] for need in shown["needs"]] == [REPLIES]
            return shown

        shown = await eventually(waits, DEADLINE_S)
        assert shown["needs"][0]["senders"] == ["web", "default"]
        assert 0 < shown["needs"][0]["sinceMs"] <= shown["nowMs"]
        first = shown["replies"][0]
        assert first["reason"]["why"] == "no_sender"
        assert "waiting for a process with sender 'web' or 'default'" in first["reason"]["text"]
        assert (first["reply"]["status"], first["reply"]["awaitedRetries"]) == ("WAITING", 0)
        with RoleProcess(["conversation", "show", "c"], env, ready_lines=0) as command:
            assert command.wait() == 0
            text = "\n".join(command.lines())
        assert "waiting for a process with sender 'web' or 'default'" in text
        assert await it.seen("taken", "awaited") == []
        async with RoleProcess(APP, env) as own:
            await it.all_delivered(REPLIES)
            assert sent(own, "default") == ["c-0", "c-1", "c-2"]
            assert await it.seen("awaited") == []
            taken = await it.seen("taken")
            assert [each.event.attempt for each in taken] == [0] * REPLIES
            assert took(it.foreign, taken) == []
        assert (await it.show("c"))["needs"] == []


async def test_replies_that_alternate_between_two_senders_keep_their_order(
    redis_url: str,
) -> None:
    async with site(redis_url) as (it, env), RoleProcess(APP, env) as own:
        await it.api.open("c-q", "c")
        for number in range(6):
            await it.reply("c", f"c-{number}", **({"sender": "other"} if number % 2 else {}))
        # The first leaves; the second has no process yet, and the third must not go before it.
        await eventually(lambda: sent(own, "default") == ["c-0"], DEADLINE_S)
        async with RoleProcess(OTHER, env) as other:
            await it.all_delivered(6)
            delivered = [each.event.subject for each in await it.seen("delivered")]
            assert delivered == [f"c-{number}" for number in range(6)]
            assert sent(own, "default") == ["c-0", "c-2", "c-4"]
            assert sent(other, "other") == ["c-1", "c-3", "c-5"]
            taken = await it.seen("taken")
            assert took(other, taken) == ["c-1", "c-3", "c-5"]
            assert took(it.foreign, taken) == []
            assert await it.seen("awaited") == []


async def test_what_a_killed_process_held_waits_for_the_next_one_with_its_sender(
    redis_url: str,
) -> None:
    async with site(redis_url, **SOON) as (it, env):
        # One that the process holds and can't send yet: an earlier request has no reply.
        await it.api.open("c-earlier", "c")
        async with RoleProcess(APP, env) as own:
            await it.ask("c", 1)
            await eventually(lambda: it.seen("taken"), DEADLINE_S)
            own.kill()
        await it.api.post(
            "replies", conversationId="c", requestId="c-earlier", responseId="c-first",
            payload=1, sender="other",
        )  # fmt: skip
        async with RoleProcess(OTHER, env) as other:
            await eventually(lambda: sent(other, "other") == ["c-first"], DEADLINE_S)

            async def waits() -> bool:
                return [need["senders"] for need in (await it.show("c"))["needs"]] == [
                    ["web", "default"]
                ]

            await eventually(waits, DEADLINE_S)
            assert took(it.foreign, await it.seen("taken")) == []
            assert took(other, await it.seen("taken")) == ["c-first"]
        async with RoleProcess(APP, env) as own:
            await eventually(lambda: sent(own, "default") == ["c-0"], DEADLINE_S)


async def test_the_overview_and_the_metrics_name_the_sender_that_is_waited_for(
    redis_url: str,
) -> None:
    async with site(redis_url) as (it, env):
        await it.ask("c", 2, sender="fax")
        base = it.api.base

        async def counted() -> bool:
            async with it.api.session.get(f"{base}/metrics") as response:
                text = await response.text()
            lines = [line for line in text.splitlines() if "without_sender{" in line]
            return bool(lines) and all(line.endswith(" 2.0") for line in lines)

        await eventually(counted, DEADLINE_S)

        async def told() -> bool:
            _, overview = await it.api.get("/v1/dashboard")
            texts = [each["text"] for each in overview["notices"]]
            return "2 replies waiting for a process with sender 'fax'" in texts

        await eventually(told, DEADLINE_S)
        _, listed = await it.api.get("/v1/conversations")
        assert [(need["senders"], need["replies"]) for need in listed["needs"]] == [(["fax"], 2)]
        senders = ["conversation", "senders", "--json"]
        with RoleProcess(senders, env, ready_lines=0) as command:
            assert command.wait() == 0
            shown = json.loads(command.lines()[-1])
        assert shown["senders"] == {"http": 1, "pickup": 1}
        assert [need["senders"] for need in shown["needs"]] == [["fax"]]
