"""Settings of the conversations module."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from angarium.conversations import keys as conversations_keys
from angarium.runtime.setting_group import Factor, Group, Name, Positive
from angarium.runtime.setting_sources import FormerName
from angarium.runtime.setting_values import refusal


class ConversationsSettings(Group):
    """Fields with a former name keep its spelling; their times are in milliseconds."""

    prefix: Name = Field(
        conversations_keys.CONVERSATIONS_PREFIX,
        description="Beginning of the names of this module's keys.",
    )
    awaited_message_ttl: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_AWAITED_MESSAGE_TTL")
    ] = Field(900_000, description="Milliseconds a reply lives before it is deleted.")
    awaited_messages_by_turn: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_AWAITED_MESSAGES_BY_TURN")
    ] = Field(15, description="Awaited replies that are fetched in one turn.")
    awaited_messages_interval: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_AWAITED_MESSAGES_INTERVAL")
    ] = Field(20_000, description="Milliseconds between two turns of the awaited agent.")
    awaited_first_turn: Positive = Field(
        60_000, description="Milliseconds within which the first turn comes, at a random second."
    )
    awaited_retries_factor: Annotated[
        Factor, FormerName("AURA_QUEUE_MANAGER_AWAITED_RETRIES_FACTOR")
    ] = Field(1, description="Factor of the back-off: retries so far × `max_pending_ttl` × this.")
    awaited_time_when_retries_end: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_AWAITED_TIME_WHEN_RETRIES_END")
    ] = Field(
        5_000, description="Milliseconds a reply is awaited once its validations are used up."
    )
    check_queue_interval: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_CHECK_QUEUE_INTERVAL")
    ] = Field(1_000, description="Milliseconds between checks whether the queue has gone idle.")
    concurrent: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_CONCURRENT")] = Field(
        25, description="Replies a process works on at the same time."
    )
    concurrent_factor: Annotated[Factor, FormerName("AURA_QUEUE_MANAGER_CONCURRENT_FACTOR")] = (
        Field(2, description="Times `concurrent`, the most replies the execution queue holds.")
    )
    interval: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_INTERVAL")] = Field(
        200, description="Milliseconds between two passes over the queue when nothing wakes it."
    )
    max_pending_ttl: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_MAX_PENDING_TTL")] = Field(
        30_000, description="Milliseconds a reply may be PENDING before it is AWAITED."
    )
    max_pending_ttl_margin: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_MAX_PENDING_TTL_MARGIN")
    ] = Field(
        5_000,
        description="Milliseconds before the end of `max_pending_ttl` at which the memory queue "
        "gives a reply back.",
    )
    max_retries: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_MAX_RETRIES")] = Field(
        100, description="Checks whether a reply may go, before it is AWAITED."
    )
    message_ttl: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_MESSAGE_TTL")] = Field(
        10_000, description="Milliseconds a request lives."
    )
    sent_message_ttl: Annotated[Positive, FormerName("AURA_QUEUE_MANAGER_SENT_MESSAGE_TTL")] = (
        Field(
            5_000,
            description="Milliseconds without a client's ACK after which a reply counts as sent.",
        )
    )
    metrics_partial_interval: Annotated[
        Positive, FormerName("AURA_QUEUE_MANAGER_METRICS_PARTIAL_INTERVAL")
    ] = Field(30_000, description="Milliseconds covered by the queue's partial metrics.")
    extra_time_metrics: Annotated[bool, FormerName("AURA_LOGGING_EXTRA_TIME_METRICS")] = Field(
        False, description="Whether the queue's partial metrics are logged."
    )
    database: Annotated[Literal["REDIS"], FormerName("AURA_QUEUE_MANAGER_DATABASE")] = Field(
        "REDIS", description="Where the queue is kept; only REDIS."
    )

    @field_validator("database", mode="before")
    @classmethod
    def _only_redis(cls, value: Any) -> Any:
        if str(value).upper() == "MONGODB":
            raise refusal("MONGODB is not supported", "set it to REDIS, or leave it out")
        return str(value).upper()
