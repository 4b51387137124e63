"""The client that the known gateway's project publishes, unchanged.

It is installed from the registry. Where the registry does not have it, PICKUP_CLIENT_SOURCE names
the folder `packages/client` of a checkout of its repository, which is compiled as it stands;
without that the test is skipped.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.test_pickup_rpc_websockets import Node, env
from tests.kit.roles import ROOT, RoleProcess

__all__ = ["env"]

PACKAGE, VERSION = "@2060.io/message-pickup-repository-client", "0.0.8"
CACHE = ROOT / ".cache" / "known-pickup-client"
DRIVER = Path(__file__).with_name("known_client.cjs")
# What its package.json asks for, and the compiler. Imports of @credo-ts/core are types only.
NEEDED = ("rpc-websockets@7.11.2", "loglevel@1.9.2", "typescript@4.9.5")
COMPILER = """
const fs = require('fs'), path = require('path'), ts = require('typescript')
const [, from, to] = process.argv
fs.mkdirSync(to, { recursive: true })
for (const name of fs.readdirSync(from)) {
  const found = ts.transpileModule(fs.readFileSync(path.join(from, name), 'utf8'), {
    compilerOptions: { module: 'commonjs', target: 'es2020', esModuleInterop: true },
  })
  fs.writeFileSync(path.join(to, name.replace(/ts$/, 'js')), found.outputText)
}
"""
pytestmark = pytest.mark.timeout(300)


def npm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("npm")
    if program is None or shutil.which("node") is None:
        pytest.skip("node and npm are needed")
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "package.json").write_text('{"private": true}')
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps"]
    return subprocess.run(
        [program, "install", *options, *arguments],
        cwd=CACHE, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Path:
    source = os.environ.get("PICKUP_CLIENT_SOURCE")
    if source is None:
        found = CACHE / "node_modules" / PACKAGE
        if not found.exists():
            done = npm(f"{PACKAGE}@{VERSION}")
            if done.returncode != 0:
                pytest.skip(f"{PACKAGE} {VERSION} can't be fetched: {done.stderr[-200:]}")
        return found
    done = npm(*NEEDED)
    assert done.returncode == 0, done.stderr[-500:]
    built = CACHE / "built"
    compiled = subprocess.run(
        ["node", "-e", COMPILER, str(Path(source) / "src"), str(built)],
        cwd=CACHE, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert compiled.returncode == 0, compiled.stderr
    return built / "index.js"


async def test_the_published_client_of_the_known_gateway_works_unchanged(
    library: Path, env: dict[str, str]
) -> None:
    async with RoleProcess(["serve", "gateway"], env, deadline_s=90):
        node = Node(library, f"ws://127.0.0.1:{env['ANGARIUM_PICKUP__PORT']}", DRIVER)
        try:
            await asyncio.to_thread(node.until, "end")
        finally:
            node.close()
    assert dict(node.steps) == {
        "ping": "pong",
        "addMessage": ["string"] * 3,
        "count": 3,
        "taken": [1, 2],
        "same ids": True,
        "removeMessages": None,
        "removeAllMessages": None,
        "left": 0,
        "no session": False,
        "addLiveSession": True,
        "getLiveSession": True,
        "received": [1, 2, 3],
        "nothing left": 0,
        "removeLiveSession": True,
        "session gone": False,
        "end": True,
    }
