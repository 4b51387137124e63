"""Settings of the transactions module."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from angarium.runtime.setting_group import (
    Factor,
    Group,
    HttpUrl,
    Name,
    Positive,
    read_list,
    refusal,
)
from angarium.runtime.setting_sources import FormerName

_QUOTA = re.compile(r"([A-Za-z0-9_.@:+-]{1,128})=(\d{1,15})/(\d{1,15})", re.ASCII)


class TransactionsSettings(Group):
    """Fields with a former name keep that name; their periods are in seconds."""

    externalid_uniqueness_period: Annotated[
        Positive, FormerName("EXTERNALID_UNIQUENESS_PERIOD")
    ] = Field(21_600, description="Seconds for which an owner's externalId is unique.")
    delay_before_archiving: Annotated[int, Field(ge=0), FormerName("DELAY_BEFORE_ARCHIVING")] = (
        Field(1_200, description="Seconds a completed transaction stays in Redis.")
    )
    archive_retention: Annotated[int, Field(ge=0)] = Field(
        0, description="Seconds the SQL archive keeps a transaction; 0 keeps it for ever."
    )
    persisting_permission_lock1_period: Annotated[
        Positive, FormerName("PERSISTING_PERMISSION_LOCK1_PERIOD")
    ] = Field(60, description="Seconds in which the process with the role leases work.")
    persisting_permission_lock2_period: Annotated[
        Positive, FormerName("PERSISTING_PERMISSION_LOCK2_PERIOD")
    ] = Field(90, description="Seconds after which another process may take the role.")
    max_webhook_retries: Annotated[Positive, FormerName("MAX_WEBHOOK_RETRIES")] = Field(
        8, description="Attempts to deliver a webhook."
    )
    webhook_retry_delay_ms: Positive = Field(
        15_000, description="Milliseconds before a webhook's second attempt."
    )
    webhook_retry_factor: Annotated[Factor, Field(ge=1)] = Field(
        1.8, description="Factor of that delay for each further attempt."
    )
    webhook_fail_limit: Annotated[Positive, FormerName("KEYSPACE_WEBHOOK_FAIL_LIMIT")] = Field(
        10, description="Failures in a row that disable a webhook URL."
    )
    webhook_fail_period: Annotated[Positive, FormerName("KEYSPACE_WEBHOOK_FAIL_PERIOD")] = Field(
        120, description="Seconds in which these failures must happen."
    )
    webhook_disable_period: Annotated[Positive, FormerName("KEYSPACE_WEBHOOK_DISABLE_PERIOD")] = (
        Field(300, description="Seconds for which a webhook URL is disabled.")
    )
    webhook_timeout_ms: Positive = Field(
        10_000, description="Milliseconds in which a webhook's receiver must respond."
    )
    webhook_concurrency: Positive = Field(
        64, description="Webhooks that are sent at the same time."
    )
    webhook_secret: SecretStr | None = Field(
        None, description="Key that signs webhooks with HMAC-SHA256, as `whsec_` and base64."
    )
    webhook_secrets: Annotated[tuple[SecretStr, ...], BeforeValidator(read_list)] = Field(
        (),
        description="Keys of single owners, as a list of `owner=whsec_…`; others use "
        "`webhook_secret`.",
    )
    webhook_receiver_concurrency: Positive = Field(
        16, description="Webhooks that are sent to one host at the same time."
    )
    webhook_private_key: SecretStr | None = Field(
        None, description="Key that signs webhooks with Ed25519, as `whsk_` and base64."
    )
    webhook_admin_url: HttpUrl | None = Field(
        None,
        description="URL that is notified of webhooks without further attempts and of disabled "
        "URLs.",
    )
    quota_starts_per_s: Annotated[int, Field(ge=0)] = Field(
        0, description="Transactions that one owner may start in a second; 0 sets no quota."
    )
    quota_stored_bytes: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Bytes of data that the transactions of one owner may have in Redis, until "
        "they are archived; 0 sets no quota.",
    )
    quotas: Annotated[tuple[str, ...], BeforeValidator(read_list)] = Field(
        (),
        description="Quotas of single owners, as a list of `owner=starts per second/stored bytes`, "
        "such as `acme=500/100000000`; 0 sets none.",
    )
    node_groups: Annotated[tuple[Name, ...], BeforeValidator(read_list)] = Field(
        ("default",), description="Node groups whose transactions the role `node` runs, as a list."
    )
    node_fair_owners: bool = Field(
        False,
        description="Owners of queued transactions take turns, so that many of one owner do not "
        "hold up those of another. Without it, transactions of a node group run in their order.",
    )
    node_concurrency: Positive = Field(
        500, description="Transactions a node runs at the same time."
    )
    node_threads: Positive = Field(
        16, description="Threads of a node for steps that are plain functions."
    )
    node_timeout_ms: Annotated[int, Field(ge=500, le=2**53)] = Field(
        8_000,
        description="Milliseconds of silence after which other nodes take a node's transactions.",
    )
    max_runs: Positive = Field(
        5,
        description="Runs of a step, failed tries and crashes of nodes included, before its "
        "transaction is a dead letter. `retries` of a step overrides it for failed tries.",
    )
    dead_letter_retention: Positive = Field(
        1_209_600, description="Seconds a dead letter stays in Redis and can be rerun."
    )
    node_grace_ms: Annotated[int, Field(ge=0)] = Field(
        3_000, description="Milliseconds a stopping node waits before it gives its work back."
    )
    step_timeout_ms: Positive = Field(
        60_000, description="Milliseconds a step may take, unless its definition says otherwise."
    )
    transaction_timeout_ms: Positive = Field(
        86_400_000,
        description="Milliseconds a transaction may take, unless its pipeline says otherwise.",
    )
    longpoll_timeout_ms: Positive = Field(
        30_000, description="Milliseconds after which a long poll returns the current state."
    )
    pipeline_versions_max: Positive = Field(
        100,
        description="Versions of a pipeline that are kept. Older ones are removed when no open "
        "transaction can have them any more.",
    )
    pipelines: str | None = Field(
        None, description="File or folder of pipeline definitions that a node loads at its start."
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

    @model_validator(mode="after")
    def _quotas_can_be_read(self) -> Self:
        for each in self.quotas:
            if not _QUOTA.fullmatch(each):
                fix = "use owner=starts per second/stored bytes for each"
                raise refusal(f"{each!r} is no quota", fix, at=("transactions", "quotas"))
        return self

    def quota_of(self, owner: str) -> tuple[int, int]:
        """Starts in a second and stored bytes; 0 means no quota."""
        for each in self.quotas:
            found = _QUOTA.fullmatch(each)
            if found is not None and found[1] == owner:
                return int(found[2]), int(found[3])
        return self.quota_starts_per_s, self.quota_stored_bytes
