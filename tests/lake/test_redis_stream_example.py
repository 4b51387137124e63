"""The example `lake_enrich` does what its first line says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.server import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "lake_enrich" / "enrich.py"


def test_a_transformation_of_ones_own_between_two_streams(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, no_settings: Path
) -> None:
    # It asks for a session and gets the one that is there.
    with ServerProcess() as server:
        client = server.client(decode_responses=True)
        for n in range(10):
            client.xadd("messages:processed", {"message_id": n, "consumer_id": 1, "status": "ok"})
        monkeypatch.setenv("ANGARIUM_REDIS_URL", server.url)
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--once"])
        runpy.run_path(str(EXAMPLE))
        client.xadd("messages:processed", {"message_id": 10, "consumer_id": 1, "status": "late"})
        runpy.run_path(str(EXAMPLE))
        found = [fields for _, fields in client.xrange("messages:enriched")]
    assert [each["message_id"] for each in found] == [str(n) for n in range(11)]
    assert {each["status"] for each in found} == {"OK", "LATE"}
    assert all(len(each["day"]) == 10 for each in found)
