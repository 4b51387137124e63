"""`angarium lake …`: fill the lake, audit it, ask it, report, replay, tidy up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from angarium.cli.installation import keep_private
from angarium.cli.lake_run import progress, spark_aside, stopped_by_signals
from angarium.cli.lake_upkeep import erase, rebuild, shell
from angarium.cli.output import print_json, print_line, print_table
from angarium.lake.errors import LakeEmpty

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from angarium.lake.audit import Audit
    from angarium.lake.replay import Plan, Planned, Send
    from angarium.lake.steps import LakeTables
    from angarium.runtime.runtime import Runtime
    from angarium.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value.")]
ALWAYS_SHOWN = ("accepted", "delivered", "in_flight", "unexplained")
NAMED_MAX = 20  # findings shown to a person; --json has all


def lake_commands() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, help="The lake: history, audit, statistics on Spark.")
    app.command("run")(run)
    app.command("audit")(audit)
    app.command("report")(report)
    app.command("replay")(replay)
    app.command("query")(query)
    app.command("compact")(compact)
    app.command("shell")(shell)
    app.command("erase")(erase)
    app.command("rebuild")(rebuild)
    return app


def run(
    context: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", help="Store what is there now, then end.")
    ] = False,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs; else as ANGARIUM_LAKE__MASTER says.")
    ] = None,
    app: Annotated[
        str | None, typer.Option("--app", help="Jobs to run beside the lake's own, as module:app.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Read the journal, the results and the archive into the lake's tables."""
    from angarium.lake.runner import run_lake
    from angarium.settings import load

    settings = load(**({"app": app} if app else {}))
    keep_private(settings.home)
    with (
        stopped_by_signals() as stop,
        spark_aside(settings, context.obj.debug),
        progress(quiet=as_json) as tell,
    ):
        done = run_lake(settings, once=once, stop=stop, tell=tell, master=master)
    if as_json:
        print_json(done)
    elif done["state"] == "elsewhere":
        print_line(f"{done['holder']} fills this lake now; there is nothing to do here")
    else:
        print_line(
            f"stored {done.get('events', 0)} events, {done.get('results', 0)} results and "
            f"{done.get('transactions', 0)} transactions; {done.get('rejects', 0)} entries could "
            "not be read"
        )
    return 0


def audit(
    context: typer.Context,
    now: Annotated[
        bool, typer.Option("--now", help="Run one now, instead of showing the newest.")
    ] = False,
    reconcile: Annotated[
        bool, typer.Option("--reconcile", help="Also compare with the statistics in Redis.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Account for every message. Exits 1 when something is unexplained, and names it."""
    import msgspec

    from angarium.cli.installation import load_installation
    from angarium.lake import audit as audits
    from angarium.lake import reconcile as statistics
    from angarium.lake.tables import Lake

    settings = load_installation("lake_url")
    lake = Lake.of(settings)
    lake.need("events")
    found, compared = None if now else audits.last_audit(lake), None
    if found is None and not now:
        raise LakeEmpty("no audit has run yet; run `angarium lake audit --now`")
    if now or reconcile:
        with (
            progress(quiet=as_json, counts=False) as tell,
            _spark(context, settings) as (spark, tables),
        ):
            tell({"state": "accounting for every message"})

            async def look(runtime: Runtime) -> tuple[Audit | None, Any]:
                audited = await audits.audit(runtime, spark, tables) if now else found
                if not reconcile:
                    return audited, None
                return audited, await statistics.reconcile(runtime, spark, tables)

            found, compared = _with_runtime(look, settings)
    assert found is not None
    differences = compared.differences if compared is not None else []
    if as_json:
        value = msgspec.to_builtins(found)
        if compared is not None:
            value["reconciliation"] = msgspec.to_builtins(compared)
        print_json(value)
    else:
        _show_audit(found)
        if compared is not None:
            windows = sum(compared.windows.values())
            print_line(
                f"statistics: {compared.counters} counters in {windows} closed windows compared, "
                f"{len(differences)} differ"
            )
            for each in differences[:NAMED_MAX]:
                print_line(f"  {each.table} {each.start_s} {each.counter}: Redis {each.redis}, "
                      f"lake {each.lake}")  # fmt: skip
    return 0 if found.clean and not differences else 1


def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "angarium-report.html"
    ),
    as_json: Json = False,
) -> int:
    """Write one HTML file with plots."""
    from angarium.cli.installation import load_installation
    from angarium.lake.audit import last_audit
    from angarium.lake.report import report as draw
    from angarium.lake.tables import Lake
    from angarium.runtime.errors import InputInvalid

    lake = Lake.of(load_installation("lake_url"))
    with progress(quiet=as_json, counts=False) as tell:
        tell({"state": "drawing"})
        page = draw(lake)
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputInvalid(f"{output} can't be written: {error.strerror}") from None
    if as_json:
        print_json({"file": str(output), "bytes": len(page.encode())})
    else:
        print_line(f"wrote {output}")
        if last_audit(lake) is None:
            print_line(
                "it has no balance yet: run `angarium lake audit --now` first, then this again"
            )
    return 0


def query(
    sql: Annotated[str, typer.Argument(help="SQL over the tables: events, messages, …")],
    as_json: Json = False,
) -> int:
    """Ask the lake in SQL; DuckDB answers, Spark is not needed."""
    from angarium.cli.installation import load_installation
    from angarium.lake.query import ask
    from angarium.lake.tables import Lake

    with progress(quiet=as_json, counts=False) as tell:
        tell({"state": "asking"})
        answer = ask(Lake.of(load_installation("lake_url")), sql)
    if as_json:
        print_json(answer.as_dicts())
    else:
        print_table(answer.columns, answer.rows)
    return 0


def replay(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the replay; a repeat goes on with it.")],
    source: Annotated[str, typer.Option("--from", help="results (into dispatch) or transactions.")],
    where: Annotated[str, typer.Option(help="SQL over the columns of the source.")] = "true",
    limit: Annotated[int, typer.Option(min=1, help="So many rows at most.")] = 10_000,
    send: Annotated[
        bool, typer.Option("--send", help="Send them; without it they are only shown.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Send rows of the lake back into their module, each once. Shows them unless --send."""
    from angarium.cli.installation import load_installation
    from angarium.lake import replay as replays
    from angarium.lake.tables import Lake

    settings = load_installation("lake_url")
    replays.check(name, source)
    Lake.of(settings).need(source)
    with _spark(context, settings) as (spark, tables):
        chosen = replays.plan(spark, tables, name, source, where, limit)
        if not send:
            return _show_plan(chosen, as_json)
        sent = _with_runtime(
            lambda runtime: _send(runtime, spark, tables, chosen, as_json), settings
        )
    done = len(chosen.rows) - len(chosen.waiting)
    if as_json:
        print_json({"replay": name, "sent": sent, "sent_before": done})
    else:
        print_line(f"sent {sent}, {done} were sent before")
    return 0


def compact(context: typer.Context, as_json: Json = False) -> int:
    """Put small files together, and delete those that no table needs any more."""
    from angarium.cli.installation import load_installation
    from angarium.lake.pipeline import tidy
    from angarium.lake.tables import Lake

    settings = load_installation("lake_url")
    lake = Lake.of(settings)
    names = lake.existing()
    if not names:
        raise LakeEmpty(
            f"nothing is in {lake.url} yet; run `angarium lake run --once` once something has "
            "happened in the modules"
        )
    found: dict[str, tuple[int, int]] = {}
    with progress(quiet=as_json) as tell, _spark(context, settings) as (spark, tables):
        tell({"state": "compacting", "waiting": len(names)})
        for number, name in enumerate(names):
            before = len(lake.files(name))
            tidy(spark, tables, [name], all_files=True)
            found[name] = before, len(lake.files(name))
            tell({"events": number + 1})
    if as_json:
        print_json({name: {"before": a, "after": b} for name, (a, b) in found.items()})
    else:
        print_table(["table", "files before", "after"], [(n, a, b) for n, (a, b) in found.items()])
    return 0


@contextmanager
def _spark(context: typer.Context, settings: Settings) -> Iterator[tuple[SparkSession, LakeTables]]:
    """Spark for one command, what it says in a file, and the lake's tables."""
    with spark_aside(settings, context.obj.debug):
        from angarium.lake.spark import start
        from angarium.lake.steps import LakeTables
        from angarium.lake.tables import Lake

        spark = start(settings)
        try:
            yield spark, LakeTables(Lake.of(settings))
        finally:
            spark.stop()


# How a module takes a row


async def _send(
    runtime: Runtime, spark: SparkSession, tables: LakeTables, chosen: Plan, quiet: bool
) -> int:
    from angarium.lake.replay import send_all

    with progress(quiet=quiet) as tell:
        tell({"state": "sending", "waiting": len(chosen.waiting)})
        done = 0

        def count(portion: int) -> None:
            nonlocal done
            done += portion
            tell({"events": done})

        sender = _to_transactions if chosen.source == "transactions" else _to_dispatch
        return await send_all(spark, tables, chosen, sender(runtime), count)


def _to_dispatch(runtime: Runtime) -> Send:
    from angarium.dispatch.service import DispatchService

    dispatch = DispatchService(runtime)

    async def send(planned: Planned, key: str) -> str:
        (enqueued,) = await dispatch.enqueue([(planned.row["fields"].encode(), key)])
        return enqueued.message_id

    return send


def _to_transactions(runtime: Runtime) -> Send:
    import msgspec

    from angarium.transactions.model import TransactionStart
    from angarium.transactions.service import TransactionsService

    transactions = TransactionsService(runtime)

    async def send(planned: Planned, key: str) -> str:
        row = planned.row
        data = msgspec.json.encode(msgspec.json.decode(row["state"]).get("data"))
        start = TransactionStart(
            row["pipeline"], data, row["owner"], external_id=key, version=row["version"]
        )
        return (await transactions.start(start)).transaction_id

    return send


# Shown to people


def _show_audit(found: Audit) -> None:
    names = (
        "accepted", "delivered", "expired", "cancelled", "dead", "failed", "in_flight",
        "unexplained", "doubled", "out_of_order", "earlier",
    )  # fmt: skip
    sums: dict[tuple[str, str], list[int]] = {}
    for each in found.balances:
        row = sums.setdefault((each.module, each.account), [0] * len(names))
        for place, name in enumerate(names):
            row[place] += getattr(each, name)
    # What is nothing everywhere is left out, so that the rest fits into a terminal.
    shown = [
        place
        for place, name in enumerate(names)
        if name in ALWAYS_SHOWN or any(row[place] for row in sums.values())
    ]
    rows = [
        (module, account, *(row[place] for place in shown))
        for (module, account), row in sorted(sums.items())
    ]
    if rows:
        print_table(["module", "", *(names[place].replace("_", " ") for place in shown)], rows)
    else:
        print_line("no message or transaction was accepted in the time that the lake has")
    print_line(f"{found.events} events, {found.rejects} entries set aside")
    if found.clean:
        print_line("nothing is unexplained")
        return
    print_line(f"{found.wrong} do not fit:")
    for finding in found.findings[:NAMED_MAX]:
        what = " ".join(part for part in (finding.module, finding.account, finding.subject) if part)
        print_line(f"  {finding.kind}: {what} ({finding.why})")
    if len(found.findings) > NAMED_MAX:
        print_line(f"  … and {len(found.findings) - NAMED_MAX} more; --json has them")


def _show_plan(chosen: Plan, as_json: bool) -> int:
    waiting = chosen.waiting
    if as_json:
        ids = [each.id for each in waiting]
        done = len(chosen.rows) - len(ids)
        print_json({"replay": chosen.replay, "would_send": ids, "sent_before": done})
        return 0
    for each in waiting[:NAMED_MAX]:
        print_line(each.id)
    if len(waiting) > NAMED_MAX:
        print_line(f"… and {len(waiting) - NAMED_MAX} more")
    print_line(
        f"would send {len(waiting)}, {len(chosen.rows) - len(waiting)} were sent before; "
        "nothing was sent: add --send"
    )
    return 0


def _with_runtime(use: Callable[[Runtime], Any], settings: Settings | None = None) -> Any:
    import uvloop

    from angarium.cli.installation import load_installation
    from angarium.runtime.runtime import Runtime

    async def run() -> Any:
        async with Runtime.open(settings or load_installation("lake_url")) as runtime:
            return await use(runtime)

    return uvloop.run(run())
