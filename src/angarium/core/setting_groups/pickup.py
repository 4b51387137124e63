"""Settings of the pickup room."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from angarium.core.setting_groups.group import Group, HttpUrl, Port, Positive
from angarium.core.setting_sources import Former
from angarium.core.setting_values import read_list


class PickupSettings(Group):
    port: Port = Field(3100, description="Port of the WebSocket gateway; 0 takes a free one.")
    threshold_timestamp: Annotated[Positive, Former("THRESHOLD_TIMESTAMP")] = Field(
        60_000, description="Milliseconds a message stays in Redis before the database has it."
    )
    grace_ms: int = Field(
        5_000,
        ge=0,
        description="Milliseconds in which the client of a replaced session may still "
        "acknowledge, before its messages are sent again.",
    )
    push_url: HttpUrl | None = Field(
        None, description="Where push notifications are posted; without it none are sent."
    )
    push_allowed: Annotated[tuple[HttpUrl, ...], BeforeValidator(read_list)] = Field(
        (), description="Notification URIs that clients may name, as a list."
    )
    push_interval_ms: Positive = Field(
        5_000, description="Milliseconds in which a token gets at most one notification."
    )
