"""Settings of the pickup module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from angarium.runtime.setting_group import Group, HttpUrl, Port, Positive, read_list
from angarium.runtime.setting_sources import FormerName


class PickupSettings(Group):
    host: str = Field("127.0.0.1", description="Address the WebSocket gateway listens on.")
    port: Port = Field(3100, description="Port of the WebSocket gateway; 0 takes a free one.")
    threshold_timestamp: Annotated[Positive, FormerName("THRESHOLD_TIMESTAMP")] = Field(
        60_000, description="Milliseconds a message stays in Redis before it moves to the database."
    )
    retention_s: int = Field(
        0,
        ge=0,
        description="Seconds after which a message in the database expires; 0 keeps it until it is "
        "removed.",
    )
    first_call_ms: Positive = Field(
        60_000,
        description="Milliseconds in which a new client has to make its first call.",
    )
    idle_ms: Positive = Field(
        3_600_000,
        description="Milliseconds after which a client without calls and without a live session is "
        "disconnected.",
    )
    grace_ms: int = Field(
        5_000,
        ge=0,
        description="Milliseconds in which the client of a replaced session may still "
        "acknowledge messages before they are sent again.",
    )
    sending_ms: Positive = Field(
        60_000,
        description="Milliseconds after which a message that was taken and not acknowledged "
        "waits again.",
    )
    lease_ms: Positive = Field(
        10_000,
        description="Milliseconds after which the sessions of a dead gateway count as closed.",
    )
    ping_ms: Positive = Field(
        20_000,
        description="Milliseconds of silence before a client is pinged, and again before its "
        "connection is closed.",
    )
    tokens: Annotated[tuple[SecretStr, ...], BeforeValidator(read_list)] = Field(
        (), description="Bearer tokens of clients, each as `tenant:token`."
    )
    anonymous: bool = Field(
        False,
        description="Whether clients need no token if the gateway listens on more than loopback.",
    )
    tls_certificate: Path | None = Field(None, description="Certificate chain for `wss`, PEM.")
    tls_key: Path | None = Field(None, description="Private key of that certificate, PEM.")
    tls_client_ca: Path | None = Field(
        None,
        description="Authority that signs client certificates, PEM. The certificate's common name "
        "is the tenant.",
    )
    push_url: HttpUrl | None = Field(
        None, description="URL that push notifications are posted to; without it none are sent."
    )
    push_allowed: Annotated[tuple[HttpUrl, ...], BeforeValidator(read_list)] = Field(
        (), description="List of the notification URIs that clients may use."
    )
    push_sender: str | None = Field(
        None,
        description="Sender of push notifications instead of HTTP: `module:name` of a callable "
        "without arguments that returns an object with `async send(push)`.",
    )
    push_gather_ms: int = Field(
        500,
        ge=0,
        description="Milliseconds between a message for an absent recipient and its notification. "
        "Messages that arrive meanwhile share it.",
    )
    push_uncollected_ms: Positive = Field(
        10_000,
        description="Milliseconds after which a recipient with a live session is notified of a "
        "message that it did not acknowledge.",
    )
    push_interval_ms: Positive = Field(
        5_000, description="Milliseconds in which a token gets at most one notification."
    )
