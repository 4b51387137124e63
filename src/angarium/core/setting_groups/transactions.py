"""Settings of the transactions room."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from angarium.core.setting_groups.group import Factor, Group, Positive
from angarium.core.setting_sources import Former
from angarium.core.setting_values import refusal


class TransactionsSettings(Group):
    """Fields with a former name keep its spelling; their periods are in seconds."""

    externalid_uniqueness_period: Annotated[Positive, Former("EXTERNALID_UNIQUENESS_PERIOD")] = (
        Field(21_600, description="Seconds in which an owner's externalId is taken.")
    )
    delay_before_archiving: Annotated[int, Field(ge=0), Former("DELAY_BEFORE_ARCHIVING")] = Field(
        1_200, description="Seconds a completed transaction stays in Redis."
    )
    persisting_permission_lock1_period: Annotated[
        Positive, Former("PERSISTING_PERMISSION_LOCK1_PERIOD")
    ] = Field(60, description="Seconds in which a node with the role is given work.")
    persisting_permission_lock2_period: Annotated[
        Positive, Former("PERSISTING_PERMISSION_LOCK2_PERIOD")
    ] = Field(
        90, description="Seconds after which another node may take the role; the rest is grace."
    )
    max_webhook_retries: Annotated[Positive, Former("MAX_WEBHOOK_RETRIES")] = Field(
        8, description="Attempts to deliver a webhook before it is given up."
    )
    webhook_retry_delay_ms: Positive = Field(
        15_000, description="Milliseconds before a webhook's second attempt."
    )
    webhook_retry_factor: Annotated[Factor, Field(ge=1)] = Field(
        1.8, description="Growth of that delay with each further attempt."
    )
    webhook_fail_limit: Annotated[Positive, Former("KEYSPACE_WEBHOOK_FAIL_LIMIT")] = Field(
        10, description="Failures in a row that disable a webhook URL."
    )
    webhook_fail_period: Annotated[Positive, Former("KEYSPACE_WEBHOOK_FAIL_PERIOD")] = Field(
        120, description="Seconds in which these failures must happen."
    )
    webhook_disable_period: Annotated[Positive, Former("KEYSPACE_WEBHOOK_DISABLE_PERIOD")] = Field(
        300, description="Seconds for which a webhook URL is disabled."
    )

    @model_validator(mode="after")
    def _grace_follows_work(self) -> Self:
        if self.persisting_permission_lock2_period <= self.persisting_permission_lock1_period:
            raise refusal(
                f"{self.persisting_permission_lock2_period} s leave no grace after the "
                f"{self.persisting_permission_lock1_period} s of work",
                "make it longer than persisting_permission_lock1_period",
                at=("transactions", "persisting_permission_lock2_period"),
            )
        return self
