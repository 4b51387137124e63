"""Settings of the pickup module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from angarium.runtime.setting_group import Group, HttpUrl, Port, Positive
from angarium.runtime.setting_sources import FormerName
from angarium.runtime.setting_values import read_list


class PickupSettings(Group):
    host: str = Field("127.0.0.1", description="Address the WebSocket gateway listens on.")
    port: Port = Field(3100, description="Port of the WebSocket gateway; 0 takes a free one.")
    threshold_timestamp: Annotated[Positive, FormerName("THRESHOLD_TIMESTAMP")] = Field(
        60_000, description="Milliseconds a message stays in Redis before the database has it."
    )
    grace_ms: int = Field(
        5_000,
        ge=0,
        description="Milliseconds in which the client of a replaced session may still "
        "acknowledge, before its messages are sent again.",
    )
    sending_ms: Positive = Field(
        60_000,
        description="Milliseconds after which a message that was taken and not acknowledged "
        "can be taken again.",
    )
    lease_ms: Positive = Field(
        10_000,
        description="Milliseconds after which the sessions of a gateway that died count as closed.",
    )
    ping_ms: Positive = Field(
        20_000,
        description="Milliseconds of silence before a client is pinged, and again before it is "
        "given up.",
    )
    tokens: Annotated[tuple[SecretStr, ...], BeforeValidator(read_list)] = Field(
        (), description="Bearer tokens of clients, each as `tenant:token`."
    )
    anonymous: bool = Field(
        False,
        description="Whether clients need no token where the gateway listens on more than "
        "loopback.",
    )
    tls_certificate: Path | None = Field(None, description="Certificate chain for `wss`, PEM.")
    tls_key: Path | None = Field(None, description="Private key of that certificate, PEM.")
    tls_client_ca: Path | None = Field(
        None,
        description="Who signs client certificates, PEM; the common name is the tenant.",
    )
    push_url: HttpUrl | None = Field(
        None, description="Where push notifications are posted; without it none are sent."
    )
    push_allowed: Annotated[tuple[HttpUrl, ...], BeforeValidator(read_list)] = Field(
        (), description="Notification URIs that clients may name, as a list."
    )
    push_sender: str | None = Field(
        None,
        description="What sends push notifications in place of HTTP: `module:name` of something "
        "that is called without arguments and gives an object with `async send(push)`.",
    )
    push_interval_ms: Positive = Field(
        5_000, description="Milliseconds in which a token gets at most one notification."
    )
