"""An API and a node with one step that opens a file, whose error text may be odd."""

from __future__ import annotations

import asyncio
import os
import secrets
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.kit.roles import RoleProcess

ENDED_DEADLINE_S = 60.0
APPLICATION = """
    import os
    from angarium import Angarium

    app = Angarium()

    @app.step("open-file")
    async def open_file(step):
        if step.data["odd"]:
            raise FileNotFoundError(f"no such file: {os.fsdecode(b'caf' + bytes([0xe9]))}")
        return {"name": step.data["name"]}
"""


class FileSteps:
    def __init__(self, port: int, web: aiohttp.ClientSession) -> None:
        self.port = port
        self._web = web
        self._url = f"http://127.0.0.1:{port}/v1/transactions"

    async def run(self, name: str, *, odd: bool = False) -> dict[str, Any]:
        """Start a transaction and return its end; every answer must be about its own id."""
        body = {"pipeline": "open", "data": {"name": name, "odd": odd}}
        async with self._web.post(self._url, json=body) as answer:
            assert answer.status == 201, await answer.text()
            id = (await answer.json())["id"]
        async with asyncio.timeout(ENDED_DEADLINE_S):
            while True:
                async with self._web.get(f"{self._url}/{id}", params={"wait_s": "5"}) as answer:
                    found: dict[str, Any] = await answer.json()
                assert found["id"] == id, (id, found)
                if found["status"] not in ("queued", "running"):
                    return found

    async def gets_its_own_output(self, name: str) -> bool:
        found = await self.run(name)
        return bool(found["status"] == "success" and found["output"] == {"name": name})


@asynccontextmanager
async def file_steps(redis_url: str, folder: Path) -> AsyncIterator[FileSteps]:
    (folder / "files.py").write_text(textwrap.dedent(APPLICATION))
    (folder / "pipelines.toml").write_text(
        '[[pipelines]]\nname = "open"\nsteps = [{ type = "open-file" }]\n'
    )
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"f1-{secrets.token_hex(4)}:",
        "ANGARIUM_TRANSACTIONS__PIPELINES": str(folder / "pipelines.toml"),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    args = ["serve", "api", "node", "--app", "files:app"]
    async with RoleProcess(args, env, ready_lines=2) as role, aiohttp.ClientSession() as web:
        yield FileSteps(role.port_of("api", "http"), web)
