"""F32: what has had tokens stays closed when they are revoked, removed or lost with Redis."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.kit.eventually import wait_until
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.security.wire import handshake, said, status_of

PATIENCE_S = 30.0
Settings = dict[str, str]


def called(role: RoleProcess, path: str = "/v1/processes", token: str = "") -> tuple[int, str]:
    """The status, and what the problem says if it is one."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"http://127.0.0.1:{role.port_of('api', 'http')}{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, str(json.loads(error.read())["detail"])


def command(settings: Settings, *args: str) -> str:
    """What a command of `angarium token` prints."""
    with RoleProcess(["token", *args], settings, ready_lines=0) as process:
        assert process.wait(PATIENCE_S) == 0, process.stderr()
        return "\n".join(process.lines())


def api(settings: Settings, **more: str) -> RoleProcess:
    return RoleProcess(["serve", "api"], {**settings, **more})


def wait_for_answer(role: RoleProcess, *answers: int, token: str = "") -> int:
    """The status without a token, when it is one of these."""

    def found() -> int:
        status = called(role, token=token)[0]
        return status if status in answers else 0

    return wait_until(found, PATIENCE_S)


@pytest.fixture
def redis() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.fixture
def settings(redis: ServerProcess, tmp_path: Path) -> Settings:
    return {"ANGARIUM_REDIS_URL": redis.url, "ANGARIUM_HOME": str(tmp_path / "home")}


def made_and_revoked(settings: Settings, role: RoleProcess) -> None:
    """A token is made, counts, and is revoked; the API has noticed both."""
    token = command(settings, "create", "somebody", "--scope", "admin")
    wait_for_answer(role, 401)
    assert called(role, token=token) == (200, "")
    (listed,) = json.loads(command(settings, "list", "--json"))
    command(settings, "revoke", listed["id"])
    # Where revoking opens everything, the old token gets in with everybody else.
    wait_until(lambda: "none" in called(role)[1] or called(role)[0] == 200, PATIENCE_S)


def test_an_api_whose_last_token_is_revoked_stays_closed_and_says_how_to_make_one(
    redis: ServerProcess, settings: Settings, tmp_path: Path
) -> None:
    with api(settings) as role:
        assert called(role)[0] == 200
        made_and_revoked(settings, role)
        for path in ("/v1/processes", "/metrics", "/v1/live", "/v1/lake", "/v1/search?id=x"):
            status, problem = called(role, path)
            assert status == 401, path
            assert "angarium token create" in problem
        assert any("no_tokens" in line for line in role.stderr())
        again = command(settings, "create", "another", "--scope", "admin")
        assert wait_for_answer(role, 200, token=again) == 200
    # Another API on this Redis, in another home folder.
    redis.ask("DEL", "angarium:tokens")
    with api({**settings, "ANGARIUM_HOME": str(tmp_path / "other")}) as role:
        assert called(role)[0] == 401


def test_an_api_stays_closed_when_redis_is_flushed_while_it_runs_and_after_a_restart(
    redis: ServerProcess, settings: Settings, tmp_path: Path
) -> None:
    with api(settings) as role:
        command(settings, "create", "somebody")
        wait_for_answer(role, 401)
        redis.ask("FLUSHALL")
        wait_until(lambda: "none" in called(role)[1] or called(role)[0] == 200, PATIENCE_S)
        assert called(role)[0] == 401
        # What was lost is written again, so that others agree.
        wait_until(lambda: redis.ask("HEXISTS", "angarium:tokens-seen", "api"), PATIENCE_S)
        with api({**settings, "ANGARIUM_HOME": str(tmp_path / "other")}) as other:
            assert called(other)[0] == 401
    redis.ask("FLUSHALL")
    with api(settings) as role:
        assert called(role)[0] == 401


def test_a_token_that_no_api_has_ever_seen_closes_as_well(
    redis: ServerProcess, settings: Settings
) -> None:
    command(settings, "create", "somebody")
    redis.ask("FLUSHALL")
    with api(settings) as role:
        assert called(role)[0] == 401


async def test_tokens_that_were_taken_out_of_the_settings_open_neither_api_nor_gateway(
    settings: Settings,
) -> None:
    async def answers(more: Mapping[str, str]) -> tuple[int, int]:
        args = ["serve", "api", "gateway"]
        async with RoleProcess(args, {**settings, **more}, ready_lines=2) as role:
            port = role.port_of("gateway", "gateway")
            opening = handshake({"Connection": "Upgrade", "Host": "127.0.0.1"})
            # An opened WebSocket is told to close at once.
            answer = await said(port, opening, b"\x88\x80\x00\x00\x00\x00")
            return called(role)[0], status_of(answer)

    assert await answers({}) == (200, 101)
    tokens = {"ANGARIUM_HTTP__TOKENS": "admin:t", "ANGARIUM_PICKUP__TOKENS": "tenant:t"}
    assert await answers(tokens) == (401, 401)
    assert await answers({}) == (401, 401)
    assert await answers({"ANGARIUM_ACCESS": "open"}) == (200, 101)


def test_the_operator_can_say_open_or_tokens(settings: Settings) -> None:
    with api(settings, ANGARIUM_ACCESS="tokens") as role:
        status, problem = called(role)
        assert status == 401
        assert "angarium token create" in problem
        token = command(settings, "create", "somebody")
        assert wait_for_answer(role, 200, token=token) == 200
    with api(settings, ANGARIUM_ACCESS="open") as role:
        assert called(role)[0] == 200
    outside = {**settings, "ANGARIUM_ACCESS": "open", "ANGARIUM_HTTP__HOST": "0.0.0.0"}
    with RoleProcess(["serve", "api"], outside, ready_lines=0) as role:
        assert role.wait(PATIENCE_S) == 2
        assert any("ANGARIUM_ACCESS" in line for line in role.stderr())
