"""The lake over HTTP: `/v1/lake/…`. Answers from the tables, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.lake.audit import Balance, Finding
from angarium.lake.checkpoint import entry_id_of, position_of, stored_positions
from angarium.lake.errors import LakeEmpty
from angarium.lake.lookup import LakeEvent, Lookup, TableFigures
from angarium.lake.report import report
from angarium.lake.tables import Lake
from angarium.runtime.application import Application
from angarium.runtime.errors import InputInvalid
from angarium.runtime.http_api import HttpApi, Operation, Parameter, reply
from angarium.runtime.journal import Journal
from angarium.runtime.process_report import ProcessReport, read_processes
from angarium.runtime.runtime import Runtime

SUBJECT_CHARS_MAX = 300
SUBJECT = Parameter(
    "subject", "path", {"type": "string", "minLength": 1, "maxLength": SUBJECT_CHARS_MAX}
)

# A file to keep. Opened in a browser all the same, it may show itself and nothing else.
REPORT_HEADERS = {
    "content-disposition": 'attachment; filename="angarium-report.html"',
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
}


class JobStatus(msgspec.Struct, frozen=True):
    """A job of the application; `error` says why it was stopped."""

    name: str
    behind: int
    error: str


class LakeStatus(msgspec.Struct, frozen=True):
    """`behind_ms`: the journal's time between the first entry that is not stored and the newest;
    null when there is no lake yet. `running`: whether a role `lake` lives somewhere."""

    url: str
    running: bool
    behind_ms: int | None
    tables: list[TableFigures]
    jobs: list[JobStatus]


class LakeAudit(msgspec.Struct, frozen=True):
    """The newest audit; `wrong` counts what is unexplained, doubled or out of order."""

    audited_ms: int
    wrong: int
    balances: list[Balance]
    findings: list[Finding]


class LakeHistory(msgspec.Struct, frozen=True):
    subject: str
    events: list[LakeEvent]


def http_api(runtime: Runtime, app: Application) -> HttpApi:
    handlers = Handlers(runtime)
    return HttpApi("lake", handlers.operations())


class Handlers:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lake = Lake.of(runtime.settings)
        self._lookup = Lookup(self._lake)
        self._drawing = asyncio.Lock()

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/v1/lake", "lake_status",
                      "The lake's tables, and how far it is behind the journal", self.status,
                      answers={200: LakeStatus}),
            Operation("GET", "/v1/lake/audit", "lake_audit", "The balance of the newest audit",
                      self.audit, answers={200: LakeAudit}),
            Operation("GET", "/v1/lake/report", "lake_report",
                      "One HTML file with plots, made from what is stored now", self.report,
                      answers={200: str}, content="text/html"),
            Operation("GET", "/v1/lake/history/{subject}", "lake_history",
                      "All that the journal told of an id", self.history,
                      answers={200: LakeHistory}, parameters=[SUBJECT]),
        ]  # fmt: skip

    async def status(self, _: Request) -> Response:
        roles = [each for each in await read_processes(self._runtime) if each.role == "lake"]
        tables = await self._lookup.tables()
        behind = await behind_ms(self._runtime, self._lake) if tables else None
        return reply(LakeStatus(self._lake.url, bool(roles), behind, tables, jobs_of(roles)))

    async def audit(self, _: Request) -> Response:
        found = await self._lookup.last_audit()
        if found is None:
            raise LakeEmpty("no audit has run yet; run `angarium lake audit --now`")
        return reply(LakeAudit(found.audited_ms, found.wrong, found.balances, found.findings))

    async def report(self, _: Request) -> Response:
        async with self._drawing:  # it reads all tables, so one at a time
            page = await asyncio.to_thread(report, self._lake)
        return Response(page, headers=REPORT_HEADERS, media_type="text/html")

    async def history(self, request: Request) -> Response:
        subject = request.path_params["subject"]
        if len(subject) > SUBJECT_CHARS_MAX:
            raise InputInvalid(f"an id has at most {SUBJECT_CHARS_MAX} letters")
        return reply(LakeHistory(subject, await self._lookup.history(subject) or []))


def jobs_of(roles: Sequence[ProcessReport]) -> list[JobStatus]:
    """From what the role reports: `job_behind_…` and `job_failed_…` with the job's name."""
    figures = {name: value for each in roles for name, value in each.figures.items()}
    names = [name.removeprefix("job_behind_") for name in figures if name.startswith("job_behind_")]
    return [
        JobStatus(
            name, int(figures[f"job_behind_{name}"]), str(figures.get(f"job_failed_{name}", ""))
        )
        for name in sorted(names)
    ]


async def behind_ms(runtime: Runtime, lake: Lake) -> int:
    """Between the newest entry of each journal and the lake's; the largest of all partitions."""
    journal, worst = Journal(runtime), 0
    for partition, position in stored_positions(lake, runtime.keyspace).items():
        last_id = (await journal.status(partition)).last_id
        if position_of(last_id) <= position:
            continue
        stored_id = entry_id_of(position) if position >= 0 else "0-0"
        # From the first entry that is not stored: between the stored one and that, nothing was.
        for entry_id, _ in await journal.read(partition, stored_id, 1):
            worst = max(worst, _ms(last_id) - _ms(entry_id.decode()))
    return worst


def _ms(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])
