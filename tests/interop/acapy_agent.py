"""Real ACA-Py agents, from PyPI, in an environment of their own under `.cache/`.

The agent needs pydantic 1 and we need pydantic 2, so the two can't share an environment. Ours is
on the agent's path as source, with the few packages that the plugin needs beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.eventually import eventually
from tests.kit.leash import LeashedProcess
from tests.kit.ports import free_port
from tests.kit.roles import ROOT

PACKAGES = (
    "aries-cloudagent[askar]==0.12.6",
    "hiredis>=3.2",
    "msgspec>=0.20",
    "structlog>=25",
    "prometheus-client>=0.22",
)
FOLDER = ROOT / ".cache" / "acapy-0.12.6"
START_S = 60.0
INSTALL_S = 600


def agent_python() -> Path:
    """The interpreter of the agents' environment, which is made when it is not there yet."""
    python = FOLDER / "venv" / "bin" / "python"
    done = FOLDER / "done"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists() and done.read_text() == repr(PACKAGES):
            return python
        shutil.rmtree(FOLDER / "venv", ignore_errors=True)
        uv = Path(sys.executable).with_name("uv")
        for arguments in (
            ["venv", "-q", "--python", sys.executable, str(FOLDER / "venv")],
            ["pip", "install", "-q", "--python", str(python), *PACKAGES],
        ):
            command = [str(uv), *arguments]
            made = subprocess.run(
                command, env=_environment(), capture_output=True, text=True, timeout=INSTALL_S
            )
            if made.returncode != 0:
                problem = f"no environment for ACA-Py: {made.stderr[-500:]}"
                if os.environ.get("CI"):
                    pytest.fail(problem)
                pytest.skip(problem)
        done.write_text(repr(PACKAGES))
    return python


def _environment() -> dict[str, str]:
    """As tools/bootstrap does it: trust what the machine trusts, and follow pip's index."""
    environment = {"UV_SYSTEM_CERTS": "true", "UV_PYTHON_DOWNLOADS": "never", **os.environ}
    if index := environment.get("PIP_INDEX_URL"):
        environment.setdefault("UV_DEFAULT_INDEX", index)
    return environment


class Agent:
    def __init__(self, admin: str, client: aiohttp.ClientSession, log: Path) -> None:
        self._admin = admin
        self._client = client
        self.log = log

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        async with self._client.request(method, self._admin + path, json=body) as answer:
            text = await answer.text()
            assert answer.status == 200, f"{path}: {answer.status} {text[:500]}"
            return json.loads(text)

    async def connection_state(self, connection_id: str) -> str:
        return str((await self.call("GET", f"/connections/{connection_id}"))["state"])


@asynccontextmanager
async def agent(
    name: str, endpoint: str, arguments: Sequence[str], plugin: dict[str, Any] | None = None
) -> AsyncIterator[Agent]:
    """One agent with a wallet in memory and no ledger, until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"angarium-{name}-"))
    port = free_port()
    command = [
        str(agent_python()), "-m", "aries_cloudagent", "start",
        "--label", name, "--endpoint", endpoint,
        "--admin", "127.0.0.1", str(port), "--admin-insecure-mode",
        "--no-ledger", "--wallet-type", "askar", "--wallet-name", name, "--wallet-key", "key",
        "--auto-provision", "--auto-accept-invites", "--auto-accept-requests",
        "--auto-ping-connection", "--log-level", "info", *arguments,
    ]  # fmt: skip
    if plugin is not None:
        # JSON is YAML, which is what the agent reads.
        (folder / "plugins.yml").write_text(json.dumps({"redis_queue": plugin}))
        command += ["--plugin", "angarium.routing.acapy"]
        command += ["--plugin-config", str(folder / "plugins.yml")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOME": str(folder)}
    log = folder / "log"
    with log.open("wb") as output:
        process = LeashedProcess(
            command, env=env, cwd=folder, stdout=output, stderr=output, scratch=folder
        )
    try:
        async with aiohttp.ClientSession() as client:
            found = Agent(f"http://127.0.0.1:{port}", client, log)

            async def ready() -> bool:
                if not process.alive:
                    raise RuntimeError("the agent ended; its log is printed below")
                return bool((await found.call("GET", "/status/ready"))["ready"])

            await eventually(ready, START_S, ignoring=(aiohttp.ClientError,))
            yield found
    except BaseException:
        print(log.read_text()[-6000:])
        raise
    finally:
        process.close()
        shutil.rmtree(folder, ignore_errors=True)
