"""Settings of the lake."""

from __future__ import annotations

from pydantic import Field

from angarium.runtime.setting_group import Group, Positive


class LakeSettings(Group):
    master: str = Field(
        "local[*]",
        min_length=1,
        description="Where Spark runs: `local[*]`, `spark://host:7077`, `k8s://…` or `yarn`.",
    )
    interval_ms: Positive = Field(
        500, description="Minimum of milliseconds between the starts of two batches."
    )
    batch_rows_max: Positive = Field(
        200_000, description="Approximate number of events that one batch reads from the journal."
    )
    archive: bool = Field(
        False,
        description="Whether the lake archives ended transactions. If the role `archiver` runs "
        "too, it archives some of them.",
    )
    audit_interval_s: Positive = Field(
        300, description="Seconds between two audits of the role `lake`."
    )
    start_delay_ms: int = Field(
        10_000,
        ge=0,
        description="Milliseconds that the role `lake` waits before it starts Spark, so that other "
        "roles start first.",
    )
