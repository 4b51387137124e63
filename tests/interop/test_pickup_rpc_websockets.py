"""The library that shipped clients are built on, in both major lines that are in use."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kit.ports import free_port
from tests.kit.roles import ROOT, RoleProcess

CACHE = ROOT / ".cache" / "rpc-websockets"
CLIENT = Path(__file__).with_name("pickup_client.cjs")
VERSIONS = {"rpc-websockets-7": "7.11.2", "rpc-websockets-10": "10.0.1"}
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def libraries() -> Path:
    """Both versions, fetched once into a folder that is not part of the sources."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        if os.environ.get("CI"):
            pytest.fail("node and npm are needed")
        pytest.skip("node and npm are needed")
    modules = CACHE / "node_modules"
    if not all((modules / name).exists() for name in VERSIONS):
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / "package.json").write_text('{"private": true}')
        wanted = [f"{name}@npm:rpc-websockets@{version}" for name, version in VERSIONS.items()]
        done = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *wanted],
            cwd=CACHE, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            if os.environ.get("CI"):
                pytest.fail(done.stderr[-500:])
            pytest.skip(f"rpc-websockets can't be fetched: {done.stderr[-200:]}")
    return modules


class Node:
    """The client's process, step by step."""

    def __init__(self, library: Path, url: str, script: Path = CLIENT) -> None:
        self._process = subprocess.Popen(
            ["node", str(script), str(library), url],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.steps: list[tuple[str, Any]] = []

    def until(self, step: str) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            self.steps.append((found["step"], found["value"]))
            if found["step"] == step:
                return found["value"]
        assert self._process.stderr is not None
        raise AssertionError(f"{self.steps}\n{self._process.stderr.read()}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def env(redis_url: str, tmp_path: Path) -> dict[str, str]:
    return {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"i{secrets.token_hex(3)}:",
        "ANGARIUM_DATABASE_URL": f"sqlite:///{tmp_path}/pickup.db",
        "ANGARIUM_PICKUP__PORT": str(free_port()),
        "ANGARIUM_PICKUP__LEASE_MS": "1000",
        "ANGARIUM_PICKUP__GRACE_MS": "100",
    }


@pytest.mark.parametrize("name", VERSIONS)
async def test_a_shipped_client_calls_every_method_and_comes_back(
    name: str, libraries: Path, env: dict[str, str]
) -> None:
    url = f"ws://127.0.0.1:{env['ANGARIUM_PICKUP__PORT']}"
    async with RoleProcess(["serve", "gateway"], env) as role:
        node = Node(libraries / name, url)
        try:
            first = await asyncio.to_thread(node.until, "round 1")
            found = dict(node.steps)
            assert first == ["1-0", "1-1", "1-2"]
            assert {step: found[step] for step in EXPECTED} == EXPECTED
            role.kill()
            async with RoleProcess(["serve", "gateway"], env):
                both = await asyncio.to_thread(node.until, "round 2")
                assert both == ["1-0", "1-1", "1-2", "2-0", "2-1", "2-2"]
        finally:
            node.close()


EXPECTED: dict[str, Any] = {
    "subscribe": {"messagesReceived": "ok"},
    "ping": "pong",
    "addMessage": "string",
    "addMessageToQueue": "string",
    "count": 2,
    "takeFromQueue": ["addMessage"],
    "date": True,
    "removeMessages": True,
    "removeAllMessages": True,
    "left": 0,
    "addLiveModeSession": True,
    "removeLiveModeSession": True,
    "unknown method": -32601,
    "bad params": -32602,
    "addLiveSession": True,
    "getLiveSession": True,
}
