"""The ACA-Py plugin's configuration: the section `redis_queue` of the agent's plugin settings.

The keys are those of the published plugin, so its files work unchanged. The new keys `layout`,
`prefix` and `partitions` must have the values of the relay and the deliverer. The new keys
`durability` and `journal_bytes_max` follow the roles unless they are set. Pure: returns the
configuration, or raises `SettingInvalid` with the name of the wrong key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from angarium.redis.errors import SettingInvalid
from angarium.redis.options import Durability

SECTION = "redis_queue"
# Pattern of an event's topic → list in Redis that gets the event.
EVENT_LISTS: Mapping[str, str] = {
    "^acapy::webhook::(.*)$": "acapy-webhook-$wallet_id",
    "^acapy::record::([^:]*)::([^:]*)$": "acapy-record-with-state-$wallet_id",
    "^acapy::record::([^:])?": "acapy-record-$wallet_id",
    "acapy::basicmessage::received": "acapy-basicmessage-received",
    "acapy::problem_report": "acapy-problem_report",
    "acapy::ping::received": "acapy-ping-received",
    "acapy::ping::response_received": "acapy-ping-response_received",
    "acapy::actionmenu::received": "acapy-actionmenu-received",
    "acapy::actionmenu::get-active-menu": "acapy-actionmenu-get-active-menu",
    "acapy::actionmenu::perform-menu-action": "acapy-actionmenu-perform-menu-action",
    "acapy::keylist::updated": "acapy-keylist-updated",
    "acapy::revocation-notification::received": "acapy-revocation-notification-received",
    "acapy::revocation-notification-v2::received": "acapy-revocation-notification-v2-received",
    "acapy::forward::received": "acapy-forward-received",
}
# Topic of an event → topic of its webhook. Other events have no webhook.
WEBHOOK_TOPICS: Mapping[str, str] = {
    "acapy::basicmessage::received": "basicmessages",
    "acapy::problem_report": "problem_report",
    "acapy::ping::received": "ping",
    "acapy::ping::response_received": "ping",
    "acapy::actionmenu::received": "actionmenu",
    "acapy::actionmenu::get-active-menu": "get-active-menu",
    "acapy::actionmenu::perform-menu-action": "perform-menu-action",
    "acapy::keylist::updated": "keylist",
}


@dataclass(frozen=True)
class PluginConfig:
    redis_url: str
    topic_prefix: str = "acapy"
    layout: str = "native"
    prefix: str = ""
    partitions: int = 1
    durability: str | None = None
    """None: as the roles recorded in Redis. The same holds for `journal_bytes_max`."""
    journal_bytes_max: int | None = None
    is_mediator: bool = False
    event_lists: Mapping[str, str] = field(default_factory=lambda: EVENT_LISTS)
    webhook_topics: Mapping[str, str] = field(default_factory=lambda: WEBHOOK_TOPICS)
    deliver_webhook: bool = True


def read_config(settings: Mapping[str, Any]) -> PluginConfig:
    """Reads the agent's settings. Keys may have dashes or underscores."""
    given = _plain((settings.get("plugin_config") or {}).get(SECTION) or {})
    connection, inbound = given.get("connection") or {}, given.get("inbound") or {}
    outbound, event = given.get("outbound") or {}, given.get("event") or {}
    url = connection.get("connection_url")
    if not isinstance(url, str):
        problem = "the key is missing"
        raise SettingInvalid(f"{SECTION}.connection.connection_url", problem, "set a redis:// URL")
    layout = given.get("layout", "native")
    if layout not in ("native", "acapy"):
        raise SettingInvalid(f"{SECTION}.layout", f"{layout!r} is unknown", "use native or acapy")
    return PluginConfig(
        redis_url=url,
        topic_prefix=_topic_prefix(inbound, outbound),
        layout=layout,
        prefix=str(given.get("prefix", "")),
        partitions=_number(given, "partitions") or 1,
        durability=_durability(given),
        journal_bytes_max=_number(given, "journal_bytes_max"),
        is_mediator=bool(outbound.get("is_mediator", outbound.get("mediator_mode", False))),
        event_lists=event.get("event_topic_maps") or EVENT_LISTS,
        webhook_topics=event.get("event_webhook_topic_maps") or WEBHOOK_TOPICS,
        deliver_webhook=bool(event.get("deliver_webhook", True)),
    )


def _number(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not str(value).isascii() or not str(value).isdecimal() or int(value) < 1:
        raise SettingInvalid(
            f"{SECTION}.{name}", f"{value!r} is not allowed", "use a whole number, 1 or more"
        )
    return int(value)


def _durability(given: Mapping[str, Any]) -> str | None:
    value = given.get("durability")
    if value is not None and value not in list(Durability):
        fix = f"use {', '.join(Durability)}"
        raise SettingInvalid(f"{SECTION}.durability", f"{value!r} is unknown", fix)
    return value


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    """Dashes to underscores, in keys but not inside the maps of topics."""
    found: dict[str, Any] = {}
    for name, value in section.items():
        plain = str(name).replace("-", "_")
        maps = plain.endswith("_maps")
        found[plain] = _plain(value) if isinstance(value, Mapping) and not maps else value
    return found


def _topic_prefix(inbound: Mapping[str, Any], outbound: Mapping[str, Any]) -> str:
    topic = str(inbound.get("acapy_inbound_topic", "acapy_inbound"))
    prefix = topic.removesuffix("_inbound")
    # In mediator mode the published plugin writes to the inbound topic.
    wanted = (f"{prefix}_outbound", topic)
    if not topic.endswith("_inbound") or outbound.get("acapy_outbound_topic", wanted[0]) not in (
        wanted
    ):
        raise SettingInvalid(
            f"{SECTION}.inbound.acapy_inbound_topic",
            "the topics do not begin with the same prefix",
            "use <prefix>_inbound and <prefix>_outbound, and set the relay's TOPIC_PREFIX to it",
        )
    return prefix
