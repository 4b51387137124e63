"""F30: a message was not notified if a dead session still counted as live. A push means that the
message was not collected, whatever the gateway believed of the session."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from angarium.pickup import keys
from tests.findings.pickup_wire import DID, Wire, connected, environment, opened_store, url_of
from tests.kit.eventually import eventually
from tests.kit.proxy import ThreadedFaultProxy
from tests.kit.roles import RoleProcess
from tests.pickup.test_push import receiver

DEADLINE_S = 60


async def add(wire: Wire, connection: str) -> str:
    params = {
        "connectionId": connection,
        "recipientDids": [DID],
        "payload": 1,
        "pushNotificationToken": {"type": "fcm", "token": f"token of {connection}"},
    }
    return str((await wire.ask("addMessage", params))["result"]["messageId"])


async def open_session(wire: Wire, connection: str) -> None:
    params = {"connectionId": connection, "sessionId": f"s-{connection}"}
    assert (await wire.ask("addLiveSession", params))["result"] is True


# A dead gateway and a dead socket count as live for all of the test.
DEAD_COUNT_AS_LIVE = {
    "ANGARIUM_PICKUP__PUSH_UNCOLLECTED_MS": "1500",
    "ANGARIUM_PICKUP__LEASE_MS": "600000",
    "ANGARIUM_PICKUP__PING_MS": "600000",
}


@pytest.mark.parametrize(
    "rules", [DEAD_COUNT_AS_LIVE, {}], ids=["the dead count as live", "default settings"]
)
async def test_a_recipient_that_can_not_be_reached_is_notified_once_in_each_of_five_ways(
    redis_url: str, tmp_path: Path, rules: dict[str, str]
) -> None:
    async with receiver() as phone:
        env = environment(redis_url, tmp_path, ANGARIUM_PICKUP__PUSH_URL=phone.url) | rules
        async with (
            RoleProcess(["serve", "gateway"], env) as one,
            RoleProcess(["serve", "gateway"], env) as two,
            opened_store(env) as store,
            connected(url_of(two)) as sender,
            connected(url_of(two)) as silent,
            connected(url_of(one)) as at_dead_gateway,
        ):
            port = urlsplit(url_of(two)).port
            assert port is not None
            with ThreadedFaultProxy("127.0.0.1", port) as line:
                path = f"ws://127.0.0.1:{line.port}/"
                async with connected(path) as cut_off:
                    await open_session(cut_off, "dead-socket")
                    await open_session(silent, "silent")
                    await open_session(at_dead_gateway, "dead-gateway")
                    line.do(lambda proxy: proxy.half_open())
                    one.kill()
                    began_s = time.monotonic()
                    wanted = {
                        connection: await add(sender, connection)
                        for connection in (
                            "absent",
                            "dead-socket",
                            "dead-gateway",
                            "silent",
                            "taker",
                        )
                    }
                    taken = await sender.ask("takeFromQueue", {"connectionId": "taker"})
                    assert [each["id"] for each in taken["result"]] == [wanted["taker"]]
                    # One that is there and acknowledges gets none.
                    await open_session(sender, "present")
                    there = await add(sender, "present")
                    params = {"connectionId": "present", "messageIds": [there]}
                    assert (await sender.ask("removeMessages", params))["result"] is True

                    due = store.runtime.keyspace.name(keys.PICKUP_PUSHES_DUE)

                    async def settled() -> bool:
                        return bool(await store.runtime.redis.call("EXISTS", due, key=due) == 0)

                    await eventually(settled, DEADLINE_S)
                    assert {each["token"]: each["messageId"] for each in phone.got} == {
                        f"token of {connection}": message for connection, message in wanted.items()
                    }
                    assert set(Counter(each["token"] for each in phone.got).values()) == {1}
                    for each, at_s in zip(phone.got, phone.got_s, strict=True):
                        print(f"{each['token']}: notified after {at_s - began_s:.1f} s")
                    line.do(lambda proxy: proxy.heal())
