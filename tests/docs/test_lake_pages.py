"""What the lake's pages tell people to type, typed: on messages that went through a dispatcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block, of_page
from tests.docs.shell import Reader
from tests.kit.server import ServerProcess

SPARK_S_MAX = 300.0  # a machine with other tests on it
MODULE = """
from angarium import Angarium

app = Angarium()

@app.worker()
async def work(message):
    return message

@app.step("charge")
async def charge(step):
    return step.failed("no such card")
"""
PIPELINE = 'name = "pay"\n[[steps]]\ntype = "charge"\n'
# Ended transactions go into the lake, and at once.
ARCHIVED = {
    "ANGARIUM_LAKE__ARCHIVE": "true",
    "ANGARIUM_TRANSACTIONS__DELAY_BEFORE_ARCHIVING": "0",
}
# Another test installs the wheel; a cluster is what tests/faults/test_lake_cluster.py starts.
ELSEWHERE = ("pip install", "angarium lake run --master")


def typed_here(page: str) -> list[str]:
    lines = [line for block in of_page(page, "sh") for line in block.commands]
    return [line for line in lines if not line.startswith(ELSEWHERE)]


def python_of(page: str, words: str) -> Block:
    (found,) = [each for each in of_page(page, "python") if words in each.text]
    return found


@pytest.mark.timeout(2_400)
async def test_what_the_lake_pages_say_can_be_typed(tmp_path: Path) -> None:
    with ServerProcess(aof=True) as server:
        async with Reader(tmp_path, server, SPARK_S_MAX, beside_up=False, **ARCHIVED) as reader:
            reader.write("module.py", MODULE)
            reader.write("pay.toml", PIPELINE)
            await reader.type("angarium serve dispatcher")
            await reader.type("angarium serve worker --app module:app")
            await reader.type("angarium publish --durable --key order-17 '{\"order\": 17}'")
            await reader.type("angarium pipeline load pay.toml")
            await reader.type("angarium serve node --app module:app")
            with pytest.raises(AssertionError, match="no such card"):  # its exit code is 1
                await reader.type("angarium transactions start pay --wait-s 60")
            for _ in range(60):
                if "1" in await reader.type("redis-cli -p 6379 XLEN messages:processed"):
                    break

            run, audit, report, query = typed_here("docs/lake/index.md")
            assert "1 results and 1 transactions" in await reader.type(run)
            # F69: Spark gives its files modes of its own; nobody else gets into their folder.
            lake = tmp_path / ".angarium" / "lake"
            assert any(lake.rglob("*.parquet"))
            assert lake.stat().st_mode & 0o777 == 0o700
            assert "nothing is unexplained" in await reader.type(audit)
            await reader.type(report)
            assert "<html" in (tmp_path / "report.html").read_text()
            assert "dispatch" in await reader.type(query)

            shown, sent, again, jobs, erase, rebuild = typed_here("docs/lake/cookbook.md")
            assert "nothing was sent" in await reader.type(shown)
            await reader.type(sent)
            assert "sent 1," in await reader.type(again)
            reader.write("orders.py", python_of("docs/lake/cookbook.md", "@app.table").text)
            assert "stored " in await reader.type(f"{jobs} --once")
            assert "the lake has nothing of it" in await reader.type(erase)
            assert "messages has " in await reader.type(rebuild)

            for words in ("import duckdb", "session()"):
                await reader.python(python_of("docs/lake/cookbook.md", words).text)
