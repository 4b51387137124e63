"""Settings of the lake."""

from __future__ import annotations

import shlex
from typing import Annotated

from pydantic import AfterValidator, Field

from angarium.runtime.setting_group import Group, Port, Positive, check


def _pairs_problem(text: str) -> str | None:
    try:
        words = shlex.split(text)
    except ValueError as error:
        return f"its quotes do not match ({error})"
    wrong = next((word for word in words if not word.partition("=")[1]), None)
    return None if wrong is None else f"'{wrong}' has no value"


def _days_problem(text: str) -> str | None:
    for word in text.split():
        name, _, days = word.rpartition("=")
        if not days.isdecimal() or int(days) < 1 or (not name and "=" in word):
            return f"'{word}' is no number of days"
    return None


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
        1_000_000, description="Approximate number of events that one batch reads from the journal."
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
    driver_host: str = Field(
        "",
        description="Address of this process for Spark's executors; unless set, the loopback "
        "address with a master `local`, else the one from which the master is reached.",
    )
    ui_port: Port = Field(
        0, description="Port of Spark's own web pages, on the address of the driver; 0 is none."
    )
    spark: Annotated[
        str, AfterValidator(check(_pairs_problem, "use name=value, separated by spaces"))
    ] = Field(
        "",
        description="Any settings of Spark, as `name=value`, separated by spaces and quoted as in "
        "a shell; they win over ours.",
    )
    retention_days: Annotated[
        str, AfterValidator(check(_days_problem, "use days, or table=days, separated by spaces"))
    ] = Field(
        "",
        description="Days that rows stay in the lake: one number for all tables, or `table=days` "
        "for some, separated by spaces; for ever unless set.",
    )

    def spark_settings(self) -> dict[str, str]:
        pairs = (word.partition("=") for word in shlex.split(self.spark))
        return {name: value for name, _, value in pairs}

    def days_of(self, table: str) -> int | None:
        """Days that the table's rows stay; None: for ever."""
        found = {name: int(days) for name, _, days in (
            word.rpartition("=") for word in self.retention_days.split()
        )}  # fmt: skip
        return found.get(table, found.get(""))
