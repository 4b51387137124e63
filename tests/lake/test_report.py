"""The report: every section drawn from a real lake, and opened in a real browser."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from angarium.lake.audit import audit
from angarium.lake.plots import Scale, line_chart, nice_ticks, row_bars, shortened, stacked_bars
from angarium.lake.report import report, step_of
from angarium.lake.steps import follow, steps_of
from angarium.lake.tables import Lake, LakeEmpty
from tests.dashboard.browser import browser, opened
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled
from tests.lake.test_steps import Bench, event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECTIONS = (
    "Balance", "Throughput", "Latency", "Retries", "Slowest conversations", "Busiest keys",
    "Failing webhooks and deliveries",
)  # fmt: skip


async def test_the_report_has_every_section_and_needs_nothing_else(
    filled: Filled, spark: SparkSession
) -> None:
    # Later than whoever audited this lake before: the newest balance is the one that is shown.
    async with filled.runtime(after_s=10**9) as runtime:
        await audit(runtime, spark, filled.tables)
    page = report(filled.lake)
    assert re.findall(r"<h2>(.*?)</h2>", page) == list(SECTIONS)
    assert page.count("<svg") == 6
    assert "nothing is unexplained" in page
    assert not re.search(r"<script|<link|https?://(?!example\.org)|@import|url\(", page)
    for drawing in re.findall(r"<svg.*?</svg>", page):
        ElementTree.fromstring(drawing)
    for told in ("talk", "dispatch · ", "https://example.org"):
        assert told in page


def test_the_report_opens_in_a_browser_in_light_and_dark(filled: Filled, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report(filled.lake))
    with browser() as found:
        for theme, size in (("light", "desktop"), ("dark", "desktop"), ("light", "phone")):
            with opened(found, file.as_uri(), theme=theme, size=size) as page:  # type: ignore[arg-type]
                assert page.locator("svg").count() == 6
                assert page.locator("section").count() == len(SECTIONS)
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0
                dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert (dark == "rgb(18, 22, 28)") == (theme == "dark")


def test_a_lake_that_never_ran_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(LakeEmpty, match="angarium lake run --once"):
        report(Lake(str(tmp_path / "none")))


def test_a_lake_in_which_nothing_was_accepted_says_so_and_shows_what_there_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(spark, tmp_path)
    bench.add([event(n, "transactions", "pipeline_put", "one", n) for n in range(1, 4)])
    for step in steps_of(spark, bench.tables):
        follow(step, lambda: bench.batch)
    page = report(bench.tables.lake)
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Balance", "Events"]
    assert "No message, reply or transaction was accepted" in page
    assert "transactions · pipeline_put" in page


def test_a_single_bar_stands_in_the_time_of_the_whole_page() -> None:
    drawn = stacked_bars({"dispatch": [(30_000.0, 7.0)]}, "x", str, (0, 60_000), 1_000)
    (width,) = re.findall(r'<rect class="bar c0" .*?width="([\d.]+)"', drawn)
    assert float(width) < 20
    times = ["00:00:00", "00:00:15", "00:00:30", "00:00:45", "00:01:00"]
    assert re.findall(r">(00:0\d:\d\d)<", drawn) == times


def test_a_plot_of_two_seconds_does_not_say_a_time_twice() -> None:
    drawn = line_chart({"dispatch": [(0.0, 7.0), (1_000.0, 8.0)]}, "x", str, (0, 2_000))
    assert re.findall(r">(00:00:0\d)<", drawn) == ["00:00:00", "00:00:01", "00:00:02"]


def test_a_plot_of_nothing_says_so() -> None:
    span = (0.0, 1.0)
    for drawn in (
        line_chart({}, "x", str, span), stacked_bars({}, "x", str, span, 1), row_bars([], "x", str),
    ):  # fmt: skip
        assert "Nothing of this kind" in drawn


def test_names_in_plots_can_not_become_markup() -> None:
    drawn = row_bars([("<script>x</script>", 1.0)], "<b>", str)
    assert "<script" not in drawn
    assert "<b>" not in drawn


@pytest.mark.parametrize("most", [0.003, 1, 7, 99, 1_234_567])
def test_ticks_reach_the_top_and_are_few(most: float) -> None:
    ticks = nice_ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most
    assert 2 <= len(ticks) <= 7
    assert all(math.isfinite(each) for each in ticks)


def test_scales_end_where_they_should() -> None:
    assert Scale(0, 10, 100, 0).at(10) == 0
    assert Scale(1, 1_000, 0, 30, logarithmic=True).at(10) == pytest.approx(10)
    assert Scale(5, 5, 1, 2).at(5) == 1
    assert len(shortened("x" * 100)) <= 24
    assert step_of(0, 90 * 60_000) == 60_000
