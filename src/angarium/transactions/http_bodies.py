"""Bodies and answers of `/v1/transactions…` and `/v1/pipelines…`, for the routes and OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from angarium.runtime.http_api import Problem
from angarium.runtime.trace import TRACEPARENT
from angarium.transactions.model import OWNER_DEFAULT, TransactionStart
from angarium.transactions.pipeline import PipelineDefinition
from angarium.transactions.statistics import StatisticsInterval

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.@:+-]{1,128}$")]


class TransactionStartBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`webhook` gets the end, and each progress report if `progress_reports` is set."""

    pipeline: Name
    data: Any = None
    owner: Name = OWNER_DEFAULT
    external_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    version: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    webhook: Annotated[str, msgspec.Meta(min_length=1, max_length=2000)] | None = None
    progress_reports: bool = False
    poll_cancels_webhook: bool = False

    def start(self, trace: str = "") -> TransactionStart:
        return TransactionStart(
            pipeline=self.pipeline,
            data=msgspec.json.encode({} if self.data is None else self.data),
            owner=self.owner,
            external_id=self.external_id,
            version=self.version,
            webhook=self.webhook,
            progress_reports=self.progress_reports,
            poll_cancels_webhook=self.poll_cancels_webhook,
            metadata=msgspec.json.encode({TRACEPARENT: trace}) if trace else b"",
        )


class TransactionStartedBody(msgspec.Struct, frozen=True):
    """`duplicate`: the externalId was in use, and `id` is its first transaction."""

    id: str
    duplicate: bool


class TransactionBatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    transactions: Annotated[list[TransactionStartBody], msgspec.Meta(min_length=1)]


class OwnedStart(msgspec.Struct):
    """Only what the rule of tenants reads."""

    owner: str = OWNER_DEFAULT


class OwnedBatch(msgspec.Struct):
    transactions: list[OwnedStart] = []


class TransactionBatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The id, or the problem with this start."""

    id: str | None = None
    duplicate: bool = False
    problem: Problem | None = None


class TransactionBatchAnswer(msgspec.Struct, frozen=True):
    transactions: list[TransactionBatchItem]


class TransactionChangeAnswer(msgspec.Struct, frozen=True):
    status: str


class RerunBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`data` replaces the data of the step that failed."""

    data: Any = msgspec.UNSET


class SwitchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: Annotated[str, msgspec.Meta(max_length=10_000)] = ""


class PipelineStoredAnswer(msgspec.Struct, frozen=True):
    name: str
    version: int


class PipelinesAnswer(msgspec.Struct, frozen=True):
    pipelines: list[PipelineDefinition]


class TransactionStatisticsAnswer(msgspec.Struct, frozen=True):
    interval_s: int
    intervals: list[StatisticsInterval]
