"""F58, F61: the mistakes of a first hour, typed; the message must say what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from angarium import Angarium
from angarium.cli.main import main
from angarium.cli.serve import _useless
from angarium.client import Client, SyncClient
from angarium.runtime.errors import InputInvalid
from angarium.settings import load
from tests.kit.sample import sample_settings
from tests.kit.server import ServerProcess


def step_without_a_name(app: Angarium) -> None:
    app.step(lambda step: None)  # type: ignore[arg-type]


def two_of_one_name(app: Angarium) -> None:
    app.step("pay")(lambda step: None)
    app.step("pay")(lambda step: None)


def no_function(app: Angarium) -> None:
    app.worker()("work")  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (step_without_a_name, '@app.step needs a name: @app.step("name")'),
        (two_of_one_name, "@app.step 'pay' is registered twice"),
        (no_function, "@app.worker is for functions, not for 'work'"),
    ],
)
def test_a_wrong_decorator_says_how_it_is_written(
    mistake: Callable[[Angarium], None], said: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        mistake(Angarium())
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "workers"], "role 'workers' is not part of this version"),
        (["serve", "worker"], "decorate a function and name its module"),
        (["serve", "worker", "--app", "nowhere:app"], "there is no module 'nowhere' in "),
        (["serve", "worker", "--app", "work"], "'work' is no application; use module:app"),
        (
            ["serve", "worker", "--app", "work:application"],
            "write `application = Angarium()` there",
        ),
        (["serve", "inbox", "--app", "work:app"], "decorate a function and name its module"),
    ],
)
def test_a_wrong_name_is_named_in_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "work.py").write_text("from angarium import Angarium\napp = Angarium()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_node_without_steps_and_a_worker_that_others_cannot_reach_are_told() -> None:
    app = Angarium()
    (line,) = _useless(["node"], load(), app)
    assert "it has no steps" in line
    assert "--app module:app" in line
    app.step("pay")(lambda step: None)
    assert [*_useless(["node"], load(), app)] == []
    elsewhere = load(redis_url="redis://redis.example:6379")
    (line,) = _useless(["worker"], elsewhere, app)
    assert "registers as 127.0.0.1" in line
    assert "ANGARIUM_DISPATCH__WORKER_HOST" in line
    reachable = load(redis_url="redis://redis.example:6379", dispatch={"worker_host": "0.0.0.0"})
    assert [*_useless(["worker"], reachable, app)] == []
    assert [*_useless(["worker"], load(redis_url="redis://127.0.0.1:6379"), app)] == []


def test_a_missing_password_of_redis_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess() as server:
        server.ask("CONFIG", "SET", "requirepass", "secret")
        monkeypatch.setenv("ANGARIUM_REDIS_URL", server.url)
        monkeypatch.setenv("ANGARIUM_HOME", str(tmp_path))
        assert main(["dispatch", "status"]) == 2
    said = capsys.readouterr().err
    assert "password" in said
    assert "ANGARIUM_REDIS_URL" in said


async def test_values_of_a_client_are_python_values(redis_url: str) -> None:
    async with Client(sample_settings(redis_url)) as client:
        assert await client.routing.send("key", {"text": "é"}) == "kept"
        assert await client.routing.send("key", "text") == "kept"
        with pytest.raises(InputInvalid, match="can't be written as JSON"):
            await client.routing.send("key", object())
        await client.transactions.load({"name": "pay", "steps": [{"type": "charge"}]})
        started = await client.transactions.start("pay", {"amount": 3})
        found = await client.transactions.wait(started.transaction_id, 0)
        assert found.data == {"amount": 3}


def test_a_synchronous_client_shows_its_methods(redis_url: str) -> None:
    with SyncClient(Client(sample_settings(redis_url))) as client:
        assert {"start", "wait", "cancel"} <= set(dir(client.transactions))
        start: Any = client.transactions.start
        assert list(inspect.signature(start).parameters)[:2] == ["pipeline", "data"]
        assert start.__doc__.startswith("Start a transaction")
