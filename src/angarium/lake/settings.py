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
        500, description="Milliseconds between the beginnings of two batches, at the least."
    )
    batch_rows_max: Positive = Field(
        200_000, description="About how many events one batch takes from the journal."
    )
    archive: bool = Field(
        False,
        description="Whether ended transactions are archived in the lake; a role `archiver` that "
        "runs beside it gets a share of them.",
    )
    audit_interval_s: Positive = Field(
        300, description="Seconds between two audits of the role `lake`."
    )
    start_delay_ms: int = Field(
        10_000,
        ge=0,
        description="Milliseconds after its start before the role `lake` starts Spark, so that "
        "the roles beside it come first.",
    )
