"""`angarium token` and `angarium find`."""

from __future__ import annotations

import json
import secrets

import pytest

from angarium.cli.main import main

MESSAGE = '{"hello": 1}'


@pytest.fixture
def keyspace(redis_url: str, monkeypatch: pytest.MonkeyPatch, no_settings: object) -> None:
    monkeypatch.setenv("ANGARIUM_REDIS_URL", redis_url)
    monkeypatch.setenv("ANGARIUM_PREFIX", f"t{secrets.token_hex(4)}:")


def test_a_token_is_created_listed_and_revoked(
    keyspace: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", "list"]) == 0
    assert "no tokens" in capsys.readouterr().out
    assert main(["token", "create", "ci", "--scope", "write", "--tenant", "acme"]) == 0
    token = capsys.readouterr().out.strip()
    assert token.startswith("ang_")
    assert main(["token", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["token"]["tenant"] == "acme"
    assert token not in json.dumps(listed)
    assert main(["token", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1:] == ["write", "ci", "acme"]
    assert main(["token", "revoke", listed["id"]]) == 0
    assert main(["token", "revoke", listed["id"]]) == 1
    assert main(["token", "create", "x", "--scope", "root"]) == 1
    assert "read, write, admin" in capsys.readouterr().err


def test_an_id_is_found_with_its_history(
    keyspace: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", "--durable", "--json", MESSAGE]) == 0
    message_id = json.loads(capsys.readouterr().out)["messages"][0]["message_id"]
    assert main(["find", message_id]) == 0
    assert "enqueued" in capsys.readouterr().out
    assert main(["find", message_id, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["event"] for each in found["history"]] == ["enqueued"]
    assert main(["find", "nobody"]) == 1
    assert "nobody" in capsys.readouterr().err
