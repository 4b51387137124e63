"""A server that speaks S3, with one bucket, for lakes in an object store."""

from __future__ import annotations

import socket
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from tests.kit.eventually import wait_until
from tests.kit.leash import LeashedProcess

START_S_MAX = 60.0


class Store:
    """An S3 server on a free port, with one bucket."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process = LeashedProcess(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        )
        wait_until(self._made, START_S_MAX)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "something",
        }

    def _made(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/bucket"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT")) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def close(self) -> None:
        self._process.close()


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    found = Store()
    yield found
    found.close()


@pytest.fixture
def url(store: Store, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{request.node.name}"
