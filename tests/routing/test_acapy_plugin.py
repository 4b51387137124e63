"""The ACA-Py plugin without an agent: it can be imported, configured and asked about events."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from angarium.routing import acapy
from angarium.routing.acapy.config import EVENT_LISTS, PluginConfig, read_config
from angarium.routing.acapy.events import event_body
from angarium.routing.acapy.plugin_runtime import PluginRuntime
from angarium.runtime.errors import SettingInvalid
from tests.kit.eventually import eventually
from tests.kit.server import ServerProcess


def config(**section: Any) -> dict[str, Any]:
    connection = {"connection": {"connection_url": "redis://localhost"}}
    return {"plugin_config": {"redis_queue": {**connection, **section}}}


def test_the_plugin_needs_neither_an_agent_nor_our_settings() -> None:
    assert acapy.AngariumInbound.__mro__[1] is object
    blocked = "import sys; sys.modules.update(dict.fromkeys(['pydantic','pydantic_settings']))"
    code = f"{blocked}; import angarium.routing.acapy; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "angarium.settings" not in done.stdout.split()


def test_a_configuration_of_the_published_plugin_is_understood() -> None:
    found = read_config(config())
    assert (found.topic_prefix, found.layout, found.is_mediator) == ("acapy", "native", False)
    assert found.event_lists is EVENT_LISTS
    found = read_config(
        config(
            inbound={"acapy_inbound_topic": "my_inbound"},
            outbound={"acapy_outbound_topic": "my_outbound", "mediator_mode": True},
            event={"event-topic-maps": {"^a::(.*)$": "a-$wallet_id"}, "deliver-webhook": False},
            layout="acapy",
        )
    )
    assert (found.topic_prefix, found.layout, found.is_mediator) == ("my", "acapy", True)
    assert found.event_lists == {"^a::(.*)$": "a-$wallet_id"}
    assert found.deliver_webhook is False
    assert read_config(config(outbound={"is_mediator": True})).is_mediator


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, "connection_url"),
        ({"plugin_config": {"redis_queue": {}}}, "connection_url"),
        (config(layout="other"), "layout"),
        (config(inbound={"acapy_inbound_topic": "messages"}), "same prefix"),
        (config(outbound={"acapy_outbound_topic": "elsewhere"}), "same prefix"),
    ],
)
def test_a_configuration_that_can_not_be_used_is_refused(settings: Any, word: str) -> None:
    with pytest.raises(SettingInvalid, match=word):
        read_config(settings)


async def test_the_runtime_stays_open_until_the_last_transport_has_stopped(
    redis_server: ServerProcess,
) -> None:
    """An agent stops its transports at the same time; the inbound one gives messages back."""
    witness = redis_server.client(decode_responses=True)

    def connected() -> bool:
        return any(each["name"] == "angarium-acapy" for each in witness.client_list())

    plugin = PluginRuntime(PluginConfig(redis_server.url, prefix="plugin-test:"))
    await plugin.enter()  # inbound
    await plugin.enter()  # outbound
    runtime = await plugin.runtime()
    await plugin.leave()
    assert await plugin.runtime() is runtime
    assert await (await plugin.routing()).touch("a")
    await (await plugin.routing()).retire("a")
    assert connected()
    await plugin.leave()
    await eventually(lambda: not connected())


class Record:
    def serialize(self) -> dict[str, Any]:
        return {"state": "active"}


class Queued:
    enc_payload = b'{"a": 1}'
    payload = None


def test_events_of_every_kind_become_a_body() -> None:
    topic = "acapy::record::connections::active"
    assert event_body(topic, {"state": "active"}, None) == {
        "wallet_id": "base",
        "state": "active",
        "topic": topic,
        "category": "connections",
        "payload": {"state": "active"},
    }
    assert event_body("acapy::webhook::ping", '{"x": 1}', "w")["category"] == "webhook"
    assert event_body("acapy::ping::received", Record(), "w")["payload"] == {"state": "active"}
    assert event_body("acapy::forward::received", Queued(), "w")["payload"] == {"a": 1}
    assert event_body("acapy::x", object(), None)["payload"] == {}
