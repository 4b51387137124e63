"""Settings of the conversations module."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from angarium.conversations import keys as conversations_keys
from angarium.runtime.setting_group import Factor, Group, Name, Positive, refusal
from angarium.runtime.setting_sources import FormerName


class ConversationsSettings(Group):
    """Fields with a former name keep that name; their times are in milliseconds."""

    prefix: Name = Field(
        conversations_keys.CONVERSATIONS_PREFIX,
        description="Beginning of the names of this module's keys.",
    )
    awaited_message_ttl: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_AWAITED_MESSAGE_TTL")
    ] = Field(900_000, description="Milliseconds a reply is stored.")
    awaited_messages_by_turn: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_AWAITED_MESSAGES_BY_TURN")
    ] = Field(15, description="Awaited replies that one pass fetches.")
    awaited_messages_interval: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_AWAITED_MESSAGES_INTERVAL")
    ] = Field(20_000, description="Milliseconds between two passes of the awaited agent.")
    awaited_first_turn: Positive = Field(
        60_000, description="The first pass comes at a random time within these milliseconds."
    )
    awaited_retries_factor: Annotated[
        Factor, FormerName("AURA_QUEUE_MANAGER_AWAITED_RETRIES_FACTOR")
    ] = Field(1, description="Factor of the back-off: retries so far × `max_pending_ttl` × this.")
    awaited_time_when_retries_end: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_AWAITED_TIME_WHEN_RETRIES_END")
    ] = Field(
        5_000, description="Milliseconds a reply is awaited after its last allowed validation."
    )
    check_queue_interval: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_CHECK_QUEUE_INTERVAL")
    ] = Field(
        1_000,
        description="Without effect, accepted for aura-bridge: an idle queue makes no passes.",
    )
    concurrent: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_CONCURRENT")] = Field(
        25, description="Replies that a process sends at the same time."
    )
    concurrent_factor: Annotated[Factor, FormerName("AURA_QUEUE_MANAGER_CONCURRENT_FACTOR")] = (
        Field(2, description="The execution queue holds at most `concurrent` × this many replies.")
    )
    interval: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_INTERVAL")] = Field(
        200, description="Milliseconds between two passes over the queue without a notification."
    )
    max_pending_ttl: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_MAX_PENDING_TTL")] = Field(
        30_000, description="Milliseconds a reply stays PENDING before it becomes AWAITED."
    )
    max_pending_ttl_margin: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_MAX_PENDING_TTL_MARGIN")
    ] = Field(
        5_000,
        description="The memory queue gives a reply back this many milliseconds before the end of "
        "`max_pending_ttl`.",
    )
    max_retries: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_MAX_RETRIES")] = Field(
        100, description="Validations of a reply before it becomes AWAITED."
    )
    message_ttl: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_MESSAGE_TTL")] = Field(
        10_000, description="Milliseconds a request is stored."
    )
    sent_message_ttl: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_SENT_MESSAGE_TTL")] = (
        Field(
            5_000,
            description="Milliseconds after which a reply without a client's ACK counts as sent.",
        )
    )
    dead_reply_ttl: Positive = Field(
        86_400_000, description="Milliseconds a reply is kept that was cancelled after a failure."
    )
    pickup_delivered: Literal["stored", "removed"] = Field(
        "stored",
        description="When a reply that is sent to pickup counts as delivered and the next one is "
        "sent: once pickup has `stored` it, or when the recipient has `removed` it.",
    )
    metrics_partial_interval: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_METRICS_PARTIAL_INTERVAL")
    ] = Field(30_000, description="Milliseconds that the queue's partial metrics cover.")
    extra_time_metrics: Annotated[bool, FormerName("AURA_LOGGING_EXTRA_TIME_METRICS")] = Field(
        False, description="Whether the queue's partial metrics are logged."
    )
    database: Annotated[Literal["REDIS"], FormerName("AURA_QUEUE_MANAGER_DATABASE")] = Field(
        "REDIS", description="Where the queue is stored; REDIS is the only value."
    )

    @field_validator("database", mode="before")
    @classmethod
    def _only_redis(cls, value: Any) -> Any:
        if str(value).upper() == "MONGODB":
            raise refusal("MONGODB is not supported", "set it to REDIS, or leave it out")
        return str(value).upper()
