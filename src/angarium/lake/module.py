"""The manifest of the lake: the data pipeline on Spark."""

from __future__ import annotations

from angarium.lake import keys
from angarium.runtime.module import Module, Role, reported_metrics

LAKE = Module(
    "lake",
    keys=keys.KEYS,
    settings="angarium.lake.settings:LakeSettings",
    roles=(Role("lake", "angarium.lake.service"),),
    metrics=tuple(
        reported_metrics(
            "lake",
            counters="""
                batches batches Stored in a table.
                events events Of the journal that were stored.
                rejects entries That could not be read and are in the table rejects.
                results results Of workers that were stored.
                transactions transactions That were archived.
                gaps events Removed from Redis before the lake had read them.
            """,
            gauges="""
                waiting events In the journal that the lake did not have at its start.
                freshest_s s Since the newest event that is stored.
                journal_batch_rows events In the last batch of the journal.
                journal_batch_ms ms That the last batch of the journal took.
                journal_rows_per_s events/s Of the journal in the last batch.
                results_batch_rows results In the last batch of results.
                results_batch_ms ms That the last batch of results took.
                results_rows_per_s results/s In the last batch of results.
                archive_batch_rows transactions In the last batch of the archive.
                archive_batch_ms ms That the last batch of the archive took.
                archive_rows_per_s transactions/s In the last batch of the archive.
                audit_wrong messages That the last audit found wrong.
                audited_ms ms Time of the last audit, since 1970.
                job_behind_* batches That a job of the application has not taken yet.
            """,
        )
    ),
    http="angarium.lake.http",
)
