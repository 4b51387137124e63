"""The guide from one machine to two, typed on two hosts: network namespaces on this machine."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from angarium.redis.embedded.server import find_server
from tests.kit.eventually import wait_until
from tests.kit.hosts import Host, hosts, hosts_problem
from tests.kit.leash import LeashedProcess
from tests.kit.roles import ROOT

GUIDE = ROOT / "docs/guides/two-machines.md"
# A section's first block; a section without one is left out.
BLOCK = re.compile(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
WORK = """
from angarium import Angarium
app = Angarium()

@app.worker()
async def greet(message):
    return {"text": f"hello, {message['name']}"}
"""


def sections(first: Host, second: Host) -> dict[str, str]:
    text = (
        GUIDE.read_text().replace("10.11.0.1", first.address).replace("10.11.0.2", second.address)
    )
    return dict(BLOCK.findall(text))


@pytest.mark.skipif(hosts_problem() is not None, reason=hosts_problem() or "")
def test_a_worker_on_the_second_machine_does_the_work_by_the_guides_commands(
    tmp_path: Path,
) -> None:
    (tmp_path / "work.py").write_text(WORK)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "valkey-server").symlink_to(find_server().path)
    environment = {name: text for name, text in os.environ.items() if "ANGARIUM" not in name}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{programs}:{os.environ['PATH']}",
        "REDIS_PASSWORD": secrets.token_hex(8),
        "DISPATCH_TOKEN": secrets.token_hex(16),
        "ANGARIUM_HTTP__PORT": "0",
    }

    def start(host: Host, name: str, script: str) -> LeashedProcess:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "work.py").write_text(WORK)
        given = {**environment, "ANGARIUM_HOME": str(folder / "home")}
        command = host.argv("bash", "-ec", f"cd {folder}\n{script}\nwait")
        return LeashedProcess(command, env=given)

    with hosts(2) as (one, two):
        typed = sections(one, two)
        exports = "\n".join(line for line in typed["On A"].splitlines() if "export" in line)
        first = start(one, "a", typed["On A"])
        second = start(two, "b", typed["On B"])
        try:

            def type_on_first(command: str) -> str:
                done = subprocess.run(
                    one.argv("bash", "-ec", f"{exports}\n{command}"),
                    cwd=tmp_path / "a",
                    env={**environment, "ANGARIUM_HOME": str(tmp_path / "a/home")},
                    capture_output=True, text=True, timeout=120, check=False,
                )  # fmt: skip
                return done.stdout if done.returncode == 0 else ""

            status, publish = typed["Try it, on A"].splitlines()
            there = f"{two.address}:8302"
            wait_until(lambda: f"consumers: {there}" in type_on_first(status), 90)
            shown = type_on_first(publish)
            assert f"completed by {there}" in shown
            assert "hello, Xerxes" in shown
        finally:
            second.close()
            first.close()
