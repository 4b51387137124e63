"""Two instances and a relay: every key has one owner, and each message is answered by it.

Starts its own Redis (embedded), a relay and two instances as processes, posts to twelve keys twice
over and prints who answered. Run it with the project's Python: `python run.py`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ANGARIUM = Path(sys.executable).with_name("angarium")


@contextmanager
def role(home: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """A role as a process; its readiness line."""
    env = {
        **os.environ,
        "ANGARIUM_HOME": home,
        "ANGARIUM_ROUTING__INBOUND": '[["http","127.0.0.1","0"]]',
    }
    command = [str(ANGARIUM), "serve", *arguments]
    with subprocess.Popen(
        command, cwd=HERE, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait()


def envelope(key: str) -> bytes:
    """A DIDComm envelope as far as a relay looks; its sender waits for the answer."""
    header = {"alg": "Authcrypt", "recipients": [{"header": {"kid": key}}]}
    protected = base64.urlsafe_b64encode(json.dumps(header).encode()).decode()
    return json.dumps(
        {"protected": protected, "ciphertext": "…", "~transport": {"return_route": "all"}}
    ).encode()


def post(url: str, key: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, envelope(key)), timeout=30) as answer:
        return str(json.load(answer)["handled_by"])


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    keys = [f"key-{number}" for number in range(12)]
    inbox = ("inbox", "--app", "app:app")
    with (
        tempfile.TemporaryDirectory() as home,
        role(home, "relay") as relay,
        role(home, *inbox),
        role(home, *inbox),
    ):
        url = f"http://127.0.0.1:{relay['ports']['http']}"
        first = {key: post(url, key) for key in keys}
        again = {key: post(url, key) for key in keys}
        say(f"keys per instance: {dict(Counter(first.values()))}")
        say(f"every key kept its owner: {first == again}")


if __name__ == "__main__":
    main()
