"""F25: a reply that waits behind others was not tried, and its back-off does not grow by waiting.

A real process holds a reply whose turn does not come, gives it up as often as its time in the
queue ends, and takes it again.
"""

from __future__ import annotations

from tests.findings.test_f50 import APP, DEADLINE_S, SOON, sent, site, took
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess

# The earlier request stays open, and a reply is given up and taken again within two seconds.
PATIENT = {
    **SOON,
    "ANGARIUM_CONVERSATIONS__MESSAGE_TTL": "600000",
    "ANGARIUM_CONVERSATIONS__AWAITED_TIME_WHEN_RETRIES_END": "100",
}
TIMES = 3


async def test_waiting_for_an_earlier_request_counts_as_no_retry(redis_url: str) -> None:
    async with site(redis_url, **PATIENT) as (it, env), RoleProcess(APP, env) as own:
        await it.api.open("earlier", "c")
        await it.ask("c", 1, sender="default")

        async def waited() -> bool:
            return len(took(own, await it.seen("taken"))) > TIMES

        await eventually(waited, DEADLINE_S)
        attempts = [each.event.attempt for each in await it.seen("taken")]
        assert attempts == [0] * len(attempts)
        status, _ = await it.api.post(
            "replies", conversation_id="c", request_id="earlier", response_id="first", payload=1,
            sender="default",
        )  # fmt: skip
        assert status == 202
        await eventually(lambda: sent(own, "default") == ["first", "c-0"], DEADLINE_S)
