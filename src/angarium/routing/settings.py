"""Settings of the routing module."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr

from angarium.routing import keys as routing_keys
from angarium.runtime.setting_group import Group, Name, Port, Positive, read_inbound
from angarium.runtime.setting_sources import FormerName


class Layout(StrEnum):
    NATIVE = "native"
    ACAPY = "acapy"


class RoutingSettings(Group):
    layout: Layout = Field(
        Layout.NATIVE,
        description="`native`, or `acapy` to share Redis with instances of the ACA-Py plugin.",
    )
    inbound: Annotated[
        tuple[tuple[Literal["http", "ws"], str, Port], ...],
        BeforeValidator(read_inbound),
        FormerName("INBOUND_TRANSPORT_CONFIG"),
    ] = Field(
        (("http", "127.0.0.1", 8071), ("ws", "127.0.0.1", 8081)),
        description="Listeners of the relay: a JSON list of transport, host and port.",
    )
    tls_certificate: Path | None = Field(
        None,
        description="File with the relay's certificate chain, PEM. If it is set, all listeners use "
        "TLS.",
    )
    tls_key: Path | None = Field(None, description="File with the key of that certificate, PEM.")
    topic_prefix: Annotated[Name, FormerName("TOPIC_PREFIX")] = Field(
        routing_keys.TOPIC_PREFIX,
        description="Beginning of the names of the inbound and outbound lists.",
    )
    status_host: Annotated[str | None, FormerName("STATUS_ENDPOINT_HOST")] = Field(
        None, description="Address of the status endpoints; without it they are not served."
    )
    status_port: Annotated[Port | None, FormerName("STATUS_ENDPOINT_PORT")] = Field(
        None, description="Port of the status endpoints; 0 takes a free one."
    )
    status_api_key: Annotated[SecretStr | None, FormerName("STATUS_ENDPOINT_API_KEY")] = Field(
        None, description="Key that callers of the status endpoints must send."
    )
    stale_after_ms: Positive = Field(
        15_000,
        description="Milliseconds of silence after which an instance with messages loses its keys.",
    )
    direct_response_timeout_ms: Positive = Field(
        15_000, description="Milliseconds a caller at the relay waits for a direct response."
    )
    inbox_handlers: int = Field(
        64,
        ge=1,
        le=10_000,
        description="Messages of different keys that one inbox handles at the same time.",
    )
    inbox_uid: Annotated[str, Field(pattern="^[^_,]{1,200}$")] | None = Field(
        None,
        description="Name of this instance, so that a restart is the same instance. Each process "
        "needs its own; without it every start is a new instance.",
    )
    instance_retention_ms: Positive = Field(
        3_600_000,
        description="Milliseconds of silence after which an instance without messages is removed.",
    )
    recip_key_retention_ms: Positive = Field(
        7 * 86_400_000,
        description="Milliseconds without a message after which a recipient key is forgotten; it "
        "may take twice as long. The next message gives the key an owner again.",
    )
    inbox_attempts: Positive = Field(
        5, description="Times an inbox tries a message before it becomes a dead letter."
    )
    delivery_timeout_ms: Positive = Field(
        10_000, description="Milliseconds a receiver has to answer the deliverer."
    )
