"""The examples as a user runs them, with real roles and the command line."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from angarium.cli.main import main
from tests.kit.eventually import wait_until
from tests.kit.roles import ROOT, RoleProcess
from tests.kit.server import ServerProcess

EXAMPLES = ROOT / "examples"


class Shell:
    """`angarium` in an example's folder; commands run in this process, roles in their own."""

    def __init__(
        self,
        server: ServerProcess,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        home: Path,
    ) -> None:
        self.folder = folder
        self._capsys = capsys
        self.env = {
            "ANGARIUM_REDIS_URL": server.url,
            "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:",
            "ANGARIUM_APP": "app:app",
        }
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "app", raising=False)
        for name, value in {**self.env, "ANGARIUM_HOME": str(home)}.items():
            monkeypatch.setenv(name, value)

    def node(self) -> RoleProcess:
        env = {**self.env, "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}"}
        return RoleProcess(["serve", "node", "--group", "default"], env)

    def run(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = main(arguments)
        out, err = self._capsys.readouterr()
        assert found == code, err
        return out or err

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))


MakeShell = Callable[[str], Shell]


@pytest.fixture
def shell_in(
    redis_server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    no_settings: Path,
) -> MakeShell:
    return lambda name: Shell(redis_server, EXAMPLES / name, capsys, monkeypatch, no_settings)


def test_the_payment_waits_for_the_bank(shell_in: MakeShell) -> None:
    shell = shell_in("transactions_payment")
    assert shell.json("pipeline", "load", "payment.toml") == {"payment": 1}
    with shell.node():
        id = shell.json("tx", "start", "payment", "--data", '{"amount": 42}')["id"]
        wait_until(lambda: shell.json("tx", "show", id)["status"] == "sleeping", 30)
        assert shell.json("tx", "show", id)["progress"] == {"stage": "charged"}
        assert shell.json("tx", "switch", id, "bank", '{"ok": true}') == {"status": "woken"}
        wait_until(lambda: shell.json("tx", "show", id)["status"] == "success", 30)
        assert shell.json("tx", "show", id)["output"]["paid"] is True
        dear = ("tx", "start", "payment", "--data", '{"amount": 4200}', "--wait-s", "30")
        assert shell.json(*dear, code=1)["status"] == "aborted"


def test_the_fan_out_gathers_what_its_children_made(shell_in: MakeShell) -> None:
    shell = shell_in("transactions_fan_out")
    assert shell.json("pipeline", "load", "order.toml") == {"pack-item": 1, "order": 1}
    items = [{"name": "tea", "grams": 250}, {"name": "salt", "grams": 1000}]
    with shell.node():
        start = ("tx", "start", "order", "--data", json.dumps({"items": items}))
        ended = shell.json(*start, "--wait-s", "30")
        assert ended["output"] == {"parcels": ["tea", "salt"], "kilograms": 1.25}


def test_the_command_line_shows_lists_cancels_and_refuses(shell_in: MakeShell) -> None:
    shell = shell_in("transactions_payment")
    shell.run("pipeline", "load", "payment.toml")
    assert "payment" in shell.run("pipeline", "list")
    assert "charge-card" in shell.run("pipeline", "show", "payment")
    assert shell.json("pipeline", "show", "payment")[0]["version"] == 1
    id = shell.run("tx", "start", "payment", "--external-id", "a-1").strip()
    repeat = shell.json("tx", "start", "payment", "--external-id", "a-1")
    assert repeat == {"id": id, "duplicate": True}
    assert id in shell.run("tx", "list", "--status", "queued")
    assert [each["id"] for each in shell.json("tx", "list", "--status", "queued")] == [id]
    assert "queued" in shell.run("tx", "show", id)
    assert shell.json("tx", "watch")["queues"][-1]["length"] == 1
    assert "SILENT" not in shell.run("tx", "watch")
    assert shell.json("tx", "statistics", "--level", "coarse")[0]["all"] == {"started": 1}
    assert "started" in shell.run("tx", "statistics")
    assert shell.run("tx", "cancel", id).strip() == "cancelled"
    assert "has ended already" in shell.run("tx", "cancel", id, code=1)
    assert "no transaction 'nobody'" in shell.run("tx", "show", "nobody", code=1)
    assert "no pipeline 'x'" in shell.run("tx", "start", "x", code=1)
    assert "not JSON" in shell.run("tx", "start", "payment", "--data", "{", code=1)
    assert "--status must be" in shell.run("tx", "list", "--status", "happy", code=1)
    private = ("tx", "start", "payment", "--webhook", "http://127.0.0.1/")
    assert "not a public address" in shell.run(*private, code=1)
    assert "can't be read" in shell.run("pipeline", "load", "nowhere.toml", code=1)
