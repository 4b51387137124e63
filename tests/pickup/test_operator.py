"""The command line, the API, the example and the metrics of the module."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from angarium.cli.main import main
from angarium.pickup.gateway import Gateway
from angarium.pickup.overview import PickupSampler
from angarium.runtime.process_report import read_processes
from tests.kit.eventually import eventually
from tests.kit.roles import ROOT, RoleProcess
from tests.pickup.harness import DID, OTHER_DID, connected, gateway, sqlite, url_of

DEADLINE_S = 60


async def test_the_command_line_shows_and_drains_queues(
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = sqlite(tmp_path)
    async with gateway(redis_url, database) as service, connected(service) as (client, _):
        for did in (DID, DID, OTHER_DID):
            await client.add_message("c1", [did], 1)
        await client.add_live_session("c2", "s1")
        monkeypatch.setenv("ANGARIUM_REDIS_URL", redis_url)
        monkeypatch.setenv("ANGARIUM_DATABASE_URL", database)
        monkeypatch.setenv("ANGARIUM_PREFIX", service.runtime.settings.prefix)

        async def run(*arguments: str) -> tuple[int, list[str], str]:
            code = await asyncio.to_thread(main, ["pickup", *arguments])
            printed = capsys.readouterr()
            return code, printed.out.splitlines(), printed.err

        code, lines, _ = await run("show", "c1", "--json")
        shown = json.loads(lines[0])
        assert code == 0
        assert (shown["pending"], shown["sending"], shown["live"]) == (3, 0, False)
        code, lines, _ = await run("show", "c2")
        words = [line.split() for line in lines]
        assert ["session", "s1", "at", service.store.gateway] in words
        code, lines, _ = await run("show")
        words = [line.split() for line in lines]
        assert words[:2] == [["gateway", "sessions", "live"], [service.store.gateway, "1", "yes"]]
        code, lines, _ = await run("show", "--json")
        overview = json.loads(lines[0])
        assert overview["queues"] == 1
        assert overview["gateways"] == [
            {"gateway": service.store.gateway, "sessions": 1, "live": True}
        ]
        code, lines, _ = await run("drain", "c1", "--recipient", DID, "--yes", "--json")
        assert json.loads(lines[0]) == {"removed": 2}
        code, lines, _ = await run("drain", "c1", "--yes")
        assert lines == ["1 message removed"]
        code, _, error = await run("show", "c1")
        assert code == 1
        assert "has no messages and no session" in error
        code, _, error = await run("show", "a b")
        assert code == 1
        assert "must be a word" in error


async def test_an_empty_queue_is_not_counted(redis_url: str, tmp_path: Path) -> None:
    database = sqlite(tmp_path)
    async with gateway(redis_url, database) as service, connected(service) as (client, _):
        sampler = PickupSampler(service.runtime)
        await client.add_live_session("c2", "s1")
        ids = {name: await client.add_message(name, [DID], 1) for name in ("c1", "c2")}
        sample = await sampler.sample(set(), await now_ms(service))
        assert (sample.waiting, sample.facts["queues"]) == (2, 2)
        assert sample.oldest_ms is not None
        for name, message in ids.items():
            await client.remove_messages(name, [message])
        sample = await sampler.sample(set(), await now_ms(service))
        assert (sample.waiting, sample.facts["queues"], sample.oldest_ms) == (0, 0, None)
        await client.add_message("c1", [DID], 1)
        assert (await sampler.sample(set(), await now_ms(service))).waiting == 1


async def now_ms(service: Gateway) -> int:
    seconds, micros = await service.runtime.redis.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def test_the_api_shows_and_drains_queues(redis_url: str, tmp_path: Path) -> None:
    database = sqlite(tmp_path)
    async with gateway(redis_url, database) as service, connected(service) as (client, _):
        await client.add_message("c1", [DID], 1)
        env = {
            "ANGARIUM_REDIS_URL": redis_url,
            "ANGARIUM_DATABASE_URL": database,
            "ANGARIUM_PREFIX": service.runtime.settings.prefix,
            "ANGARIUM_HTTP__PORT": "0",
        }
        async with RoleProcess(["serve", "api"], env) as api, aiohttp.ClientSession() as session:
            base = f"http://127.0.0.1:{api.ports['http']}/v1/pickup"
            async with session.get(base) as answer:
                assert (await answer.json())["queues"] == 1
            async with session.get(f"{base}/connections/c1") as answer:
                assert (await answer.json())["pending"] == 1
            async with session.delete(f"{base}/connections/c1") as answer:
                assert await answer.json() == {"removed": 1}
            async with session.get(f"{base}/connections/c1") as answer:
                assert answer.status == 404
            async with session.get(f"{base}/connections/c1?tenant=a:b") as answer:
                assert answer.status == 400


async def test_a_gateway_reports_its_metrics(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service, connected(service) as (client, _):
        await client.add_message("c1", [DID], 1)

        async def reported() -> bool:
            found = await read_processes(service.runtime)
            return any(each.role == "gateway" and each.figures["added"] == 1 for each in found)

        await eventually(reported, DEADLINE_S)


async def test_the_example_runs(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        script = ROOT / "examples" / "pickup_mediator" / "mediator.py"
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, str(script), url_of(service)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown = [line for line in done.stdout.splitlines() if "phone shows" in line]
        assert [line.split(": ")[1] for line in shown] == ["one", "two", "three", "four"]
        assert done.stdout.endswith("waiting: 0\n")
