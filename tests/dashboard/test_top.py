"""`angarium top` as a user meets it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

from angarium.runtime.process_report import ProcessReporter
from tests.kit.eventually import wait_until
from tests.kit.sample import sample_runtime

COMMAND = str(Path(sys.executable).with_name("angarium"))


def environment(redis_url: str, prefix: str) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "TERM": "xterm",
        "COLUMNS": "120",
        "LINES": "40",
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": prefix,
    }


async def test_top_prints_once_for_pipes_and_programs(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        await ProcessReporter(runtime, "gateway").report({"sessions": 3})
        env = environment(redis_url, runtime.settings.prefix)

        def top(*options: str) -> str:
            ended = subprocess.run(
                [COMMAND, "top", *options], env=env, capture_output=True, text=True, timeout=90
            )
            assert (ended.returncode, ended.stderr) == (0, "")
            return ended.stdout

        lines = top("--once").splitlines()
        assert [line.split()[0] for line in lines] == [
            "dispatch", "routing", "pickup", "conversations", "transactions", "journal",
        ]  # fmt: skip
        assert "waiting=0" in lines[0]
        assert "accepted_per_s=0" in lines[0]
        sample = json.loads(top("--once", "--json"))
        assert len(sample["modules"]) == 5


def with_control_c() -> None:
    """As at a terminal; what a shell starts in the background is deaf to it, and so are we then."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_top_stays_on_a_terminal_and_ends_with_control_c(redis_url: str) -> None:
    ours, theirs = pty.openpty()
    env = environment(redis_url, "top:")
    process = subprocess.Popen(
        [COMMAND, "top"], env=env, stdin=theirs, stdout=theirs, preexec_fn=with_control_c
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = ""

    def shown() -> bool:
        nonlocal seen
        try:
            seen += os.read(ours, 100_000).decode(errors="replace")
        except (BlockingIOError, OSError):
            return False
        return bool(re.search("conversations.*pickup", seen, re.DOTALL))

    try:
        wait_until(shown, 60)
        process.send_signal(signal.SIGINT)

        def ended() -> bool:
            shown()  # a terminal that nobody reads fills up, and who writes to it waits
            return process.poll() is not None

        wait_until(ended, 60)
        assert process.returncode == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_top_without_redis_says_so_in_one_line(tmp_path: Path) -> None:
    env = {**environment("redis://127.0.0.1:9/0", "top:"), "ANGARIUM_HOME": str(tmp_path)}
    env["ANGARIUM_REDIS__UNAVAILABLE_TIMEOUT_MS"] = "300"
    ended = subprocess.run(
        [COMMAND, "top", "--once"], env=env, capture_output=True, text=True, timeout=90
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("angarium: ")
    assert ended.stderr.count("\n") == 1
