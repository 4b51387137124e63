"""Settings of the dispatch module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr

from angarium.dispatch import keys as dispatch_keys
from angarium.dispatch.queues import check_queue_name
from angarium.runtime.errors import InputInvalid
from angarium.runtime.setting_group import Group, Name, Port, Positive, read_consumers


def read_queues(value: Any) -> Any:
    """Names separated by commas, or a list of them."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return value
    try:
        return tuple(check_queue_name(str(each).strip()) for each in names if str(each).strip())
    except InputInvalid as error:
        raise ValueError(str(error)) from None


class DispatchSettings(Group):
    channel: Name = Field(
        dispatch_keys.MESSAGES_PUBLISHED.name, description="Channel that publishers send to."
    )
    stream: Name = Field(
        dispatch_keys.MESSAGES_PROCESSED.name, description="Stream of the workers' results."
    )
    pending: Name = Field(
        dispatch_keys.MESSAGES_PENDING.name,
        description="Sorted set of unfinished messages, and the beginning of the names of their "
        "payloads and attempts.",
    )
    inbox: Name = Field(
        dispatch_keys.MESSAGES_INBOX.name, description="Stream of the durable intake."
    )
    dead: Name = Field(dispatch_keys.MESSAGES_DEAD.name, description="Stream of dead letters.")
    consumer_ids: Name = Field(
        dispatch_keys.CONSUMER_IDS.name, description="List of the live consumers."
    )
    lock: Name = Field(dispatch_keys.LEADER_LOCK.name, description="Lock of a partition's leader.")
    lock_ms: int = Field(
        2_000,
        ge=100,
        le=60_000,
        description="Milliseconds after the last renewal at which a leader loses its lock.",
    )
    ack_host: str = Field("127.0.0.1", description="Address for acknowledgements.")
    ack_port: Port = Field(8301, description="Port for acknowledgements; 0 takes a free one.")
    ack_timeout_ms: Positive = Field(
        2_000,
        description="Milliseconds without an acknowledgement or renewal after which another worker "
        "gets the message.",
    )
    deliveries_max: Positive = Field(
        10,
        description="Deliveries after which a message that failed, or whose worker died, becomes a "
        "dead letter. `retries` of `@app.worker` overrides it for failures.",
    )
    consumers: Annotated[tuple[str, ...], BeforeValidator(read_consumers)] = Field(
        (),
        description="Consumers to connect to in addition to those that register: a list of "
        "`host:port`, or a file with one per line.",
    )
    queues: Annotated[tuple[str, ...], BeforeValidator(read_queues)] = Field(
        (),
        description="Named queues whose channels (`channel:NAME`) a dispatcher listens to. The "
        "durable intake needs no such list.",
    )
    retry_delay_ms: Positive = Field(
        100,
        description="Milliseconds before a message that a worker refused is sent again. The delay "
        "doubles with each refusal, up to `ack_timeout_ms`.",
    )
    pending_messages_max: Positive = Field(
        5_000_000,
        description="Unfinished messages of a partition. `pending_full` says what happens to "
        "further messages.",
    )
    pending_full: Literal["spill", "refuse_new", "drop_oldest"] = Field(
        "spill",
        description="When a partition is full, `spill` moves further messages of the channel to "
        "the inbox, where they wait; `refuse_new` accepts no more from the channel; `drop_oldest` "
        "moves the oldest to the dead letters.",
    )
    inbox_messages_max: Positive = Field(
        5_000_000,
        description="Messages in the inbox of a partition. Beyond it, durable publishing is "
        "refused with `inbox_full`, and so are messages that would spill.",
    )
    stream_entries_max: Positive | None = Field(
        None,
        description="Approximate number of results in the stream; older results are removed, read "
        "or not. Without it, `results_keep_s` alone decides.",
    )
    results_keep_s: int = Field(
        7 * 86_400,
        ge=0,
        description="Seconds that a result stays in the stream. Results that a consumer group of "
        "the stream has not read and acknowledged stay longer. 0 keeps all for ever.",
    )
    worker_host: str = Field("127.0.0.1", description="Address a worker listens on.")
    worker_port: Port = Field(0, description="Port a worker listens on; 0 takes a free one.")
    worker_address: str | None = Field(
        None,
        description="`host:port` that dispatchers connect to, if it differs from the one that the "
        "worker listens on. A worker that listens on all addresses registers the address that "
        "Redis sees.",
    )
    worker_concurrency: Positive = Field(
        100, description="Messages that a worker processes at the same time."
    )
    worker_window: Positive = Field(
        1_000,
        description="Unacknowledged messages of a worker, waiting or running. A worker that does "
        "not renew them finishes them within `ack_timeout_ms`.",
    )
    heartbeat_ms: Positive = Field(
        1_000, description="Milliseconds between heartbeats on a worker's connection."
    )
    token: SecretStr | None = Field(
        None, description="Shared secret of dispatchers and workers; it is never sent."
    )
    tls_certificate: Path | None = Field(
        None, description="File with the certificate of this process for worker connections."
    )
    tls_key: Path | None = Field(None, description="File with the key of that certificate.")
    tls_authority: Path | None = Field(
        None,
        description="File with the authority that must have signed the peer's certificate. If any "
        "of these three is set, worker connections and the acknowledgement port use TLS.",
    )
