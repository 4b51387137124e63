"""Writes the agent's events to lists in Redis and queues their webhooks for the deliverer."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from string import Template
from typing import Any

from angarium.routing.acapy.agent import agent_class
from angarium.routing.acapy.config import read_config
from angarium.routing.acapy.plugin_runtime import PluginRuntime
from angarium.runtime.errors import AngariumError

LOGGER = logging.getLogger(__name__)
_RECORD = re.compile(r"acapy::record::([^:]*)(?:::.*)?")


async def setup(context: Any) -> None:
    """ACA-Py calls it for `--plugin`; from then on the agent's events also go to Redis."""
    bus = context.inject(agent_class("core.event_bus", "EventBus"))
    config = read_config(context.settings)
    for pattern in config.event_lists:
        bus.subscribe(re.compile(pattern), _on_event)


async def _on_event(profile: Any, event: Any) -> None:
    plugin = PluginRuntime.of(profile)
    wallet_id = profile.settings.get("wallet.id")
    body = event_body(event.topic, event.payload, wallet_id)
    try:
        name = plugin.config.event_lists[event.metadata.pattern.pattern]
        name = Template(name).safe_substitute(wallet_id=body["wallet_id"])
        runtime = await plugin.runtime()
        metadata = {"time_ns": time.time_ns()}
        origin = profile.settings.get("default_label")
        extra = {"x-wallet-id": wallet_id, "origin": origin}
        metadata.update({key: value for key, value in extra.items() if value})
        item = json.dumps({"payload": body, "metadata": metadata})
        # The list belongs to the controllers, not to our keyspace. A lost reply is not repeated:
        # controllers would get the event twice.
        await runtime.redis.execute([("RPUSH", name, item)], key=name, repeatable=False)
        await _queue_webhooks(plugin, profile, event.topic, body)
    except AngariumError as error:
        LOGGER.error("event %s did not reach Redis: %s", event.topic, error)


def event_body(topic: str, payload: Any, wallet_id: str | None) -> dict[str, Any]:
    """The event in the form that controllers read."""
    found = _as_mapping(payload)
    record = _RECORD.match(topic)
    category = record[1] if record else "webhook" if "::webhook::" in topic else None
    return {
        "wallet_id": wallet_id or "base",
        "state": found.get("state"),
        "topic": topic,
        "category": category,
        "payload": found,
    }


def _as_mapping(payload: Any) -> dict[str, Any]:
    """A payload may be a mapping, JSON, a record with `serialize`, or a message."""
    for form in (payload, *(getattr(payload, name, None) for name in ("payload", "enc_payload"))):
        if isinstance(form, Mapping):
            return dict(form)
        if hasattr(form, "serialize"):
            return dict(form.serialize())
        if isinstance(form, str | bytes):
            try:
                value = json.loads(form)
            except ValueError:
                continue
            return value if isinstance(value, dict) else {"value": value}
    return {}


async def _queue_webhooks(
    plugin: PluginRuntime, profile: Any, topic: str, body: dict[str, Any]
) -> None:
    webhook = plugin.config.webhook_topics.get(topic)
    if not plugin.config.deliver_webhook or webhook is None:
        return
    store = await plugin.outbound()
    for target in profile.settings.get("admin.webhook_urls") or ():
        url, _, api_key = str(target).partition("#")
        headers = {"Content-Type": "application/json"}
        if profile.settings.get("wallet.id"):
            headers["x-wallet-id"] = str(profile.settings.get("wallet.id"))
        if api_key:
            headers["x-api-key"] = api_key
        data = json.dumps(body).encode()
        if await store.push(f"{url}/topic/{webhook}/", data, headers) == "full":
            raise store.queue_full()
