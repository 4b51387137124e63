"""`GET /v1/processes`: who runs, and what each says of itself."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.core.application import Angarium
from angarium.core.figures import ProcessFigures, read_processes
from angarium.core.ground import Ground
from angarium.core.web import Face, Operation, reply


class Processes(msgspec.Struct, frozen=True):
    processes: list[ProcessFigures]


def face(ground: Ground, app: Angarium) -> Face:
    async def list_processes(_: Request) -> Response:
        return reply(Processes(await read_processes(ground)))

    operation = Operation(
        "GET",
        "/v1/processes",
        "list_processes",
        "Every role of every live process, with the figures it last reported",
        list_processes,
        answers={200: Processes},
    )
    return Face("processes", [operation])
