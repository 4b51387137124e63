"""Settings of the dispatch room."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from angarium.core import keyspace
from angarium.core.setting_groups.group import Group, Name, Port, Positive
from angarium.core.setting_values import read_consumers


class DispatchSettings(Group):
    channel: Name = Field(
        keyspace.MESSAGES_PUBLISHED.name, description="Channel that publishers send to."
    )
    stream: Name = Field(
        keyspace.MESSAGES_PROCESSED.name, description="Stream of the workers' results."
    )
    pending: Name = Field(
        keyspace.MESSAGES_PENDING.name,
        description="Sorted set of unfinished messages; payloads and attempts stand beside it.",
    )
    dead: Name = Field(keyspace.MESSAGES_DEAD.name, description="Stream of messages given up.")
    consumer_ids: Name = Field(
        keyspace.CONSUMER_IDS.name, description="List of the live consumers."
    )
    lock: Name = Field(keyspace.LEADER_LOCK.name, description="Lock of a partition's leader.")
    lock_ms: int = Field(
        2_000,
        ge=100,
        le=60_000,
        description="Milliseconds after which a silent leader loses its lock.",
    )
    ack_port: Port = Field(8301, description="Port for acknowledgements; 0 takes a free one.")
    ack_timeout_ms: Positive = Field(
        2_000,
        description="Milliseconds without acknowledgement after which another worker gets the "
        "message.",
    )
    deliveries_max: Positive = Field(
        10, description="Deliveries after which an unacknowledged message is dead."
    )
    consumers: Annotated[tuple[str, ...], BeforeValidator(read_consumers)] = Field(
        (),
        description="Consumers to dial besides those that register: a list of `host:port`, or a "
        "file with one on each line.",
    )
