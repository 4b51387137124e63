"""Settings of the dispatch module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr

from angarium.dispatch import keys as dispatch_keys
from angarium.runtime.setting_group import Group, Name, Port, Positive
from angarium.runtime.setting_values import read_consumers


class DispatchSettings(Group):
    channel: Name = Field(
        dispatch_keys.MESSAGES_PUBLISHED.name, description="Channel that publishers send to."
    )
    stream: Name = Field(
        dispatch_keys.MESSAGES_PROCESSED.name, description="Stream of the workers' results."
    )
    pending: Name = Field(
        dispatch_keys.MESSAGES_PENDING.name,
        description="Sorted set of unfinished messages; payloads and attempts stand beside it.",
    )
    inbox: Name = Field(
        dispatch_keys.MESSAGES_INBOX.name, description="Stream of the durable intake."
    )
    dead: Name = Field(dispatch_keys.MESSAGES_DEAD.name, description="Stream of messages given up.")
    consumer_ids: Name = Field(
        dispatch_keys.CONSUMER_IDS.name, description="List of the live consumers."
    )
    lock: Name = Field(dispatch_keys.LEADER_LOCK.name, description="Lock of a partition's leader.")
    lock_ms: int = Field(
        2_000,
        ge=100,
        le=60_000,
        description="Milliseconds after which a silent leader loses its lock.",
    )
    ack_host: str = Field("127.0.0.1", description="Address for acknowledgements.")
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
    retry_delay_ms: Positive = Field(
        100,
        description="Milliseconds before a message that a worker refused is sent again; doubles "
        "with each refusal, up to `ack_timeout_ms`.",
    )
    pending_messages_max: Positive = Field(
        5_000_000,
        description="Unfinished messages a partition may hold; `pending_full` says what happens "
        "to more.",
    )
    pending_full: Literal["refuse_new", "drop_oldest"] = Field(
        "refuse_new",
        description="When a partition is full: `refuse_new` takes no more from the channel and "
        "leaves the inbox where it is, `drop_oldest` moves the oldest to the dead letters.",
    )
    stream_entries_max: Positive | None = Field(
        None,
        description="Results kept in the stream, about; the oldest go. Without it all are kept.",
    )
    worker_host: str = Field("127.0.0.1", description="Address a worker listens on.")
    worker_port: Port = Field(0, description="Port a worker listens on; 0 takes a free one.")
    worker_address: str | None = Field(
        None,
        description="`host:port` under which dispatchers reach this worker, when it is not the "
        "one it listens on; a worker on all addresses tells the one that Redis sees.",
    )
    worker_concurrency: Positive = Field(
        100, description="Messages a worker works on at the same time."
    )
    worker_window: Positive = Field(
        1_000,
        description="Messages a worker may hold unacknowledged. They must be done within "
        "`ack_timeout_ms`, or others get them too.",
    )
    heartbeat_ms: Positive = Field(
        1_000, description="Milliseconds between signs of life on a worker's connection."
    )
    token: SecretStr | None = Field(
        None, description="Secret that dispatchers and workers prove to know; it is never sent."
    )
    tls_certificate: Path | None = Field(
        None, description="File with the certificate this side shows on worker connections."
    )
    tls_key: Path | None = Field(None, description="File with the key of that certificate.")
    tls_authority: Path | None = Field(
        None,
        description="File with the authority the other side's certificate must come from. With "
        "any of these three set, worker connections and the acknowledgement port use TLS.",
    )
