"""A reader who types what a page says, in a folder of its own, on servers that are really there.

What a page calls `module:app` is the page's own Python; `serve` stays in the background until the
page is read to its end; ports of the pages are replaced by those that were free. Words in capitals
are filled in by the test that knows what they stand for.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from tests.kit.roles import ROOT, RoleProcess
from tests.kit.server import ServerProcess

COMMAND_S_MAX = 90.0
# What `up` starts without an application, except Spark.
UP_ROLES = 8
UP_PORTS = (
    ("api", "http", "8400"),
    ("gateway", "gateway", "3100"),
    ("relay", "http", "8071"),
    ("relay", "ws", "8081"),
)
FOREGROUND = re.compile(r"angarium serve ")
# A stand-in where no client of Redis is installed: the command goes to the real server.
REDIS_CLI = f"""#!{sys.executable}
import sys, redis
words = sys.argv[1:]
port = int(words[words.index("-p") + 1])
del words[words.index("-p") : words.index("-p") + 2]
print(redis.Redis(port=port).execute_command(*words))
"""


class Reader:
    """Use as an async context manager."""

    def __init__(
        self,
        folder: Path,
        server: ServerProcess,
        command_s_max: float = COMMAND_S_MAX,
        /,
        *,
        beside_up: bool = False,
        **settings: str,
    ) -> None:
        """`beside_up`: everything that `angarium up` starts without an application runs too."""
        self.folder = folder
        self._command_s_max = command_s_max
        self._server = server
        self._beside_up = beside_up
        self._roles = AsyncExitStack()
        self._ports: dict[str, int] = {"6379": server.port}
        self._settings = {
            "ANGARIUM_HOME": str(folder / ".angarium"),
            "ANGARIUM_REDIS_URL": server.url,
            "ANGARIUM_HTTP__PORT": "0",
            "ANGARIUM_PICKUP__PORT": "0",
            "ANGARIUM_DISPATCH__ACK_PORT": "0",
            "ANGARIUM_ROUTING__INBOUND": '[["http","127.0.0.1","0"],["ws","127.0.0.1","0"]]',
            "PYTHONPATH": f"{folder}:{ROOT}:{ROOT / 'src'}",
            **settings,
        }

    async def __aenter__(self) -> Reader:
        self._server.ask("FLUSHALL")
        (self.folder / ".venv").symlink_to(Path(sys.executable).parents[1])
        (self.folder / ".curlrc").write_text("fail\nsilent\nshow-error\n")
        tools = self.folder / "bin"
        tools.mkdir()
        (tools / "redis-cli").write_text(REDIS_CLI)
        (tools / "redis-cli").chmod(0o755)
        if self._beside_up:
            await self._up()
        return self

    async def _up(self) -> None:
        # The lake's pages have a test of their own; its Spark would only load the machine here.
        settings = {**self._settings, "ANGARIUM_LAKE__START_DELAY_MS": "3600000"}
        up = RoleProcess(["up", "--json"], settings, ready_lines=UP_ROLES, deadline_s=COMMAND_S_MAX)
        await self._roles.enter_async_context(up)
        for role, name, usual in UP_PORTS:
            self._ports[usual] = up.port_of(role, name)

    async def __aexit__(self, *_: object) -> None:
        await self._roles.aclose()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    async def type(self, line: str) -> str:
        """One line; what it printed. A command that fails, fails the test."""
        line = self._with_ports(line.partition("   #")[0].strip())
        if FOREGROUND.match(line):
            await self.serve(shlex.split(line, comments=True)[1:])
            return ""
        return await asyncio.to_thread(self._run, ["bash", "-ec", line], line)

    async def python(self, text: str) -> str:
        """A script; what it printed."""
        text = self._with_ports(text)
        return await asyncio.to_thread(self._run, [sys.executable, "-c", text], text)

    async def serve(self, words: list[str]) -> RoleProcess:
        role = RoleProcess(words, self._settings, deadline_s=COMMAND_S_MAX)
        await self._roles.enter_async_context(role)
        for name, usual in (("http", "8400"), ("gateway", "3100"), ("ws", "8081")):
            if name in role.ports:
                number = "8071" if name == "http" and "relay" in words else usual
                self._ports[number] = role.ports[name]
        return role

    def _with_ports(self, text: str) -> str:
        for usual, found in self._ports.items():
            text = re.sub(rf"((?:127\.0\.0\.1|localhost):|-p ){usual}\b", rf"\g<1>{found}", text)
        return re.sub(r"redis://localhost(?!:)", self._server.url, text)

    def _run(self, command: list[str], shown: str) -> str:
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ANGARIUM_")}
        ended = subprocess.run(
            command, cwd=self.folder, timeout=self._command_s_max, check=False, text=True,
            input="y\n", capture_output=True,  # what asks whether it is meant is told so
            env={**kept, **self._settings, "PATH": path, "CURL_HOME": str(self.folder)},
        )  # fmt: skip
        assert ended.returncode == 0, f"{shown}\n{ended.stdout[-1000:]}\n{ended.stderr[-2000:]}"
        return ended.stdout
