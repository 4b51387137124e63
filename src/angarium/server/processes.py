"""`GET /v1/processes`: the reports of all live processes."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.runtime.application import Application
from angarium.runtime.http_api import HttpApi, Operation, reply
from angarium.runtime.process_report import ProcessReport, read_processes
from angarium.runtime.runtime import Runtime


class Processes(msgspec.Struct, frozen=True):
    processes: list[ProcessReport]


def http_api(runtime: Runtime, app: Application) -> HttpApi:
    async def list_processes(_: Request) -> Response:
        return reply(Processes(await read_processes(runtime)))

    operation = Operation(
        "GET",
        "/v1/processes",
        "list_processes",
        "Every role of every live process, with its last reported metrics",
        list_processes,
        answers={200: Processes},
    )
    return HttpApi("processes", [operation])
