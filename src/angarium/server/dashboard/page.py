"""Serves the dashboard's files from `static/`.

The files are read once and served from memory by exact name, so no path leads to another file. The
content policy allows only scripts from these files, so markup in a message is never executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from angarium.runtime.http_api import problem

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
MEDIA: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
        ".webmanifest": "application/manifest+json",
    }
)
POLICY = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    )
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        # Browsers revalidate each time and get 304, so a new version is used at once.
        "cache-control": "no-cache",
    }
)


@dataclass(frozen=True)
class File:
    body: bytes
    media: str
    tag: str


class Files:
    """The files are read at the first request."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._folder = folder
        self._files: Mapping[str, File] | None = None

    def answer(self, request: Request, name: str, **headers: str) -> Response:
        found = self._read().get(name)
        if found is None:
            return problem(404, "not_found", f"there is no file {name[:100]!r}")
        shown = {**HEADERS, "etag": found.tag, **headers}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=shown)
        return Response(found.body, headers={**shown, "content-type": found.media})

    def _read(self) -> Mapping[str, File]:
        if self._files is None:
            self._files = {
                path.relative_to(self._folder).as_posix(): _file(path)
                for path in sorted(self._folder.rglob("*"))
                if path.suffix in MEDIA
            }
        return self._files


def wants_page(request: Request) -> bool:
    """Browsers accept HTML; other clients get the API's links."""
    return "text/html" in request.headers.get("accept", "")


def index(files: Files, request: Request) -> Response:
    return files.answer(request, INDEX, vary="accept")


def asset_routes(files: Files) -> list[BaseRoute]:
    async def asset(request: Request) -> Response:
        return files.answer(request, request.path_params["name"])

    return [Route("/assets/{name:path}", asset)]


def _file(path: Path) -> File:
    body = path.read_bytes()
    digest = hashlib.sha256(body).hexdigest()[:20]
    return File(body, MEDIA[path.suffix], f'"{digest}"')
