"""`angarium transactions …` (also `tx`) and `angarium pipeline …`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from angarium.cli.dead_letters import After, All, DeadLetterCommands, Ids, Limit, Reason
from angarium.cli.output import Json, duration, print_json, print_line, print_table, run

if TYPE_CHECKING:
    from angarium.transactions.dead_letters import TransactionDeadLetters
    from angarium.transactions.model import Transaction
    from angarium.transactions.pages import TransactionSummary
    from angarium.transactions.service import TransactionsService

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the transaction.")]
Pipeline = Annotated[str | None, typer.Option("--pipeline", help="Of this pipeline only.")]
Owner = Annotated[str | None, typer.Option("--owner", help="Of this owner only.")]


def transaction_commands() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, help="Start, show and control transactions.")
    for command in (start, show, list_, cancel, switch, rerun, watch, statistics):
        app.command(command.__name__.rstrip("_"))(command)
    about = "List, show, retry and drop transactions that ended because a step failed too often."
    app.add_typer(DeadTransactionCommands(_dead_letters, about).group(), name="dead")
    return app


def pipeline_commands() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, help="Pipeline definitions.")
    app.command("list")(pipeline_list)
    app.command("show")(pipeline_show)
    app.command("load")(pipeline_load)
    return app


def start(
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="Name of the pipeline.")],
    given: Annotated[str | None, typer.Argument(metavar="[JSON]", help="The data.")] = None,
    data: Annotated[str | None, typer.Option(help="The data, as an option.")] = None,
    owner: Annotated[str, typer.Option(help="Owner of the transaction.")] = "default",
    external_id: Annotated[
        str | None,
        typer.Option(help="Your id for it; a repeated id returns the first transaction."),
    ] = None,
    webhook: Annotated[str | None, typer.Option(help="URL that is called when it ends.")] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="Run before all others of its group.")
    ] = False,
    wait_s: Annotated[float, typer.Option(help="Seconds to wait for its end.")] = 0,
    as_json: Json = False,
) -> int:
    """Start a transaction; with --wait-s, wait for its end, and exit with 1 without success."""
    text = _data(given, data)

    async def use(transactions: TransactionsService) -> int:
        from angarium.transactions.model import TransactionStart

        started = await transactions.start(
            TransactionStart(
                pipeline, text.encode(), owner, external_id, webhook=webhook, admin=admin
            )
        )
        if wait_s > 0:
            ended = await _ended(transactions, started.transaction_id, wait_s)
            _show(ended, as_json)
            return 0 if ended.status == "success" else 1
        if as_json:
            print_json({"id": started.transaction_id, "duplicate": started.duplicate})
        else:
            print_line(started.transaction_id)
        return 0

    return _run(use)


def show(id: Id, as_json: Json = False) -> int:
    """Show a transaction, from Redis or the archive."""

    async def use(transactions: TransactionsService) -> int:
        return _show(await transactions.get(id), as_json)

    return _run(use)


def list_(
    status: Annotated[
        str | None,
        typer.Option(help="queued, running, sleeping, success, …; all that are open if not given."),
    ] = None,
    pipeline: Annotated[str, typer.Option(help="Of this pipeline only.")] = "",
    owner: Annotated[str, typer.Option(help="Of this owner only.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=500)] = 50,
    as_json: Json = False,
) -> int:
    """Transactions of one status, or all that have not ended."""
    from angarium.runtime.errors import InputInvalid
    from angarium.transactions.model import TransactionStatus

    try:
        wanted = (
            [TransactionStatus(status)]
            if status
            else [each for each in TransactionStatus if not each.final]
        )
    except ValueError:
        raise InputInvalid(f"--status must be one of {', '.join(TransactionStatus)}") from None

    async def use(transactions: TransactionsService) -> int:
        from angarium.transactions.pages import TransactionFilter

        found: list[TransactionSummary] = []
        for each in wanted:
            left = limit - len(found)
            if left:
                page = await transactions.page(TransactionFilter(each, pipeline, owner), left)
                found += page.transactions
        if as_json:
            print_json(found)
        else:
            rows = [
                (one.id, one.pipeline, one.owner, one.status.value, one.step, one.node or "")
                for one in found
            ]
            print_table(("id", "pipeline", "owner", "status", "step", "node"), rows)
        return 0

    return _run(use)


def cancel(id: Id, as_json: Json = False) -> int:
    """Cancel a transaction; its node stops a running one."""

    async def use(transactions: TransactionsService) -> int:
        return _print_status(await transactions.cancel(id), as_json)

    return _run(use)


def switch(
    id: Id,
    name: Annotated[str, typer.Argument(help="Name of the switch.")],
    value: Annotated[str, typer.Argument(help="Its value.")] = "",
    as_json: Json = False,
) -> int:
    """Set a switch; a transaction that sleeps for it wakes up."""

    async def use(transactions: TransactionsService) -> int:
        return _print_status(await transactions.set_switch(id, name, value), as_json)

    return _run(use)


def rerun(
    id: Id,
    data: Annotated[str | None, typer.Option(help="New data for the step that failed.")] = None,
    as_json: Json = False,
) -> int:
    """Run a dead letter again from the step that failed, with new data if it is given."""
    text = b"" if data is None else _data(None, data).encode()

    async def use(transactions: TransactionsService) -> int:
        return _print_status(await transactions.rerun(id, text), as_json)

    return _run(use)


class DeadTransactionCommands(DeadLetterCommands):
    """The commands of every module, and a choice by pipeline and owner."""

    def list(
        self,
        limit: Limit = 50,
        after: After = None,
        reason: Reason = "",
        as_json: Json = False,
        pipeline: Pipeline = None,
        owner: Owner = None,
    ) -> int:
        """List dead letters with their last reasons, the last one first."""
        return _chosen(pipeline, owner).list(limit, after, reason, as_json)

    def retry(
        self,
        ids: Ids = None,
        everything: All = False,
        reason: Reason = "",
        as_json: Json = False,
        pipeline: Pipeline = None,
        owner: Owner = None,
    ) -> int:
        """Run dead letters again from the step that failed, with all its tries."""
        return _chosen(pipeline, owner).retry(ids, everything, reason, as_json)

    def drop(
        self,
        ids: Ids = None,
        everything: All = False,
        reason: Reason = "",
        as_json: Json = False,
        pipeline: Pipeline = None,
        owner: Owner = None,
    ) -> int:
        """Give up dead letters; they are archived."""
        return _chosen(pipeline, owner).drop(ids, everything, reason, as_json)


def _chosen(pipeline: str | None, owner: str | None) -> DeadLetterCommands:
    return DeadLetterCommands(lambda: _dead_letters(pipeline, owner))


@asynccontextmanager
async def _dead_letters(
    pipeline: str | None = None, owner: str | None = None
) -> AsyncIterator[TransactionDeadLetters]:
    from angarium.transactions.model import check_name

    given = {"pipeline": pipeline, "owner": owner}
    # An empty name is refused: it would choose all.
    names = {name: check_name(text, name) for name, text in given.items() if text is not None}
    async with _transactions(None) as transactions:
        yield transactions.dead_letters(**names)


def watch(
    longest: Annotated[
        int, typer.Option(min=1, max=200, help="How many of those that run longest.")
    ] = 20,
    as_json: Json = False,
) -> int:
    """Show what needs attention: the longest running, queues, missing steps, silent nodes."""

    async def use(transactions: TransactionsService) -> int:
        found = await transactions.health_report(longest)
        if as_json:
            print_json(found)
            return 0
        print_line(
            f"{found.running} running, {found.sleeping} sleeping, {found.to_archive} to archive, "
            f"{found.webhooks} webhooks due, {found.dead_letters} dead letters"
        )
        nodes = [
            (each.node, duration(each.silent_ms), "alive" if each.alive else "SILENT")
            for each in found.nodes
        ]
        print_table(("node", "last seen", ""), nodes)
        queues = [
            (each.node_group, each.kind, each.length, duration(each.waiting_ms))
            for each in found.queues
        ]
        print_table(("node group", "queue", "length", "waiting"), queues)
        steps = [
            (each.node_group, each.step_type, each.transactions, duration(each.waiting_ms))
            for each in found.awaited_steps
        ]
        if steps:
            print_table(("node group", "no node with step", "waiting", "for"), steps)
        rows = [
            (each.transaction_id, each.pipeline, each.node, duration(each.age_ms))
            for each in found.longest_running
        ]
        print_table(("running longest", "pipeline", "node", "for"), rows)
        return 0

    return _run(use)


def statistics(
    level: Annotated[str, typer.Option(help="fine (5 s), medium (100 s), coarse (1000 s).")] = (
        "fine"
    ),
    intervals: Annotated[int, typer.Option(min=1, help="How many intervals.")] = 12,
    as_json: Json = False,
) -> int:
    """Counters of the last intervals."""
    from angarium.runtime.errors import InputInvalid
    from angarium.transactions.statistics import StatisticsLevel

    try:
        wanted = StatisticsLevel(level)
    except ValueError:
        raise InputInvalid(f"--level must be one of {', '.join(StatisticsLevel)}") from None

    async def use(transactions: TransactionsService) -> int:
        found = await transactions.statistics(wanted, intervals)
        if as_json:
            print_json(found)
            return 0
        events = sorted({event for each in found for event in each.all})
        rows = [(each.start_s, *(each.all.get(event, 0) for event in events)) for each in found]
        print_table(("from", *events), rows)
        return 0

    return _run(use)


def pipeline_list(as_json: Json = False) -> int:
    """The newest version of each pipeline."""

    async def use(transactions: TransactionsService) -> int:
        found = list((await transactions.pipelines()).values())
        if as_json:
            print_json(found)
        else:
            rows = [
                (each.name, each.version, each.node_group, len(each.steps), each.description)
                for each in found
            ]
            print_table(("name", "version", "node group", "steps", "description"), rows)
        return 0

    return _run(use)


def pipeline_show(
    name: Annotated[str, typer.Argument(help="Name of the pipeline.")],
    as_json: Json = False,
) -> int:
    """All versions of a pipeline, newest first."""

    async def use(transactions: TransactionsService) -> int:
        found = await transactions.versions(name)
        if as_json:
            print_json(found)
            return 0
        for each in found:
            print_line(
                f"{each.name} version {each.version} on {each.node_group}  {each.description}"
            )
            rows = [
                (number, step.type or f"→ {step.pipeline}", step.timeout_ms or "", step.description)
                for number, step in enumerate(each.steps, 1)
            ]
            print_table(("step", "type", "timeout_ms", "description"), rows)
        return 0

    return _run(use)


def pipeline_load(
    path: Annotated[Path, typer.Argument(help="A .toml or .json file, or a folder of them.")],
    application: Annotated[
        str | None, typer.Option("--app", help="Check the steps against this module:app.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Store definitions; running transactions keep their version."""

    async def use(transactions: TransactionsService) -> int:
        from angarium.transactions.definitions import read_definitions

        stored = await transactions.load(read_definitions(str(path)))
        if as_json:
            print_json(stored)
        else:
            for name, version in stored.items():
                print_line(f"{name} is version {version}")
        return 0

    return _run(use, application)


# Shared


def _run(
    use: Callable[[TransactionsService], Awaitable[int]], application: str | None = None
) -> int:
    async def used() -> int:
        async with _transactions(application) as transactions:
            return await use(transactions)

    return run(used())


@asynccontextmanager
async def _transactions(application: str | None) -> AsyncIterator[TransactionsService]:
    from angarium.cli.installation import load_installation
    from angarium.cli.runtime import with_short_timeout
    from angarium.lake.filed import transactions_of
    from angarium.runtime.application import load_application
    from angarium.runtime.runtime import Runtime
    from angarium.transactions.service import TransactionsService

    settings = with_short_timeout(load_installation())
    named = application or settings.app
    app = load_application(named) if named else None
    async with Runtime.open(settings) as runtime:
        transactions = TransactionsService(runtime, app, transactions_of(runtime.settings))
        try:
            yield transactions
        finally:
            await transactions.close()


async def _ended(transactions: TransactionsService, id: str, wait_s: float) -> Transaction:
    """Polls: a short command needs no subscription."""
    import asyncio

    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    while True:
        found = await transactions.get(id)
        if found.status.final or loop.time() >= until_s:
            return found
        await asyncio.sleep(0.05)


def _show(transaction: Transaction, as_json: bool) -> int:
    import msgspec

    if as_json:
        print_json(transaction)
        return 0
    rows = [
        (name, value if isinstance(value, str | int) else msgspec.json.encode(value).decode())
        for name, value in msgspec.to_builtins(_plain(transaction)).items()
        if value is not None
    ]
    print_table(("", ""), rows)
    return 0


def _plain(transaction: Transaction) -> Any:
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(transaction))


def _print_status(status: str, as_json: bool) -> int:
    if as_json:
        print_json({"status": status})
    else:
        print_line(status)
    return 0


def _data(given: str | None, option: str | None) -> str:
    import msgspec

    from angarium.runtime.errors import InputInvalid

    if given is not None and option is not None:
        raise InputInvalid("the data is given twice: leave the argument or --data")
    text = given or option or "{}"
    try:
        msgspec.json.decode(text)
    except ValueError as error:
        raise InputInvalid(f"the data is not JSON: {error}") from None
    return text
