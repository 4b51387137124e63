"""The support chat example runs as its text says."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from pathlib import Path

from tests.kit.roles import ROOT, RoleProcess

FOLDER = ROOT / "examples" / "support_chat"
ROLES = ["dispatcher", "worker", "node", "conversations", "gateway"]


async def test_the_support_chat_answers_two_questions_in_order(
    redis_url: str, tmp_path: Path
) -> None:
    env = {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:",
        "ANGARIUM_HOME": str(tmp_path),
        "ANGARIUM_PICKUP__PORT": "0",
        "ANGARIUM_DISPATCH__ACK_PORT": "0",
        "ANGARIUM_DISPATCH__WORKER_PORT": "0",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}:{FOLDER}",
    }
    roles = RoleProcess(
        ["serve", *ROLES, "--app", "app:app"], env, ready_lines=len(ROLES), deadline_s=90
    )
    async with roles:
        chat = await asyncio.create_subprocess_exec(
            sys.executable, str(FOLDER / "chat.py"), str(roles.ports["gateway"]),
            env={"PATH": "/usr/bin:/bin", **env}, stdout=subprocess.PIPE, cwd=tmp_path,
        )  # fmt: skip
        async with asyncio.timeout(90):
            out, _ = await chat.communicate()
        lines = out.decode().splitlines()
        assert lines[1::2] == ["It is 42.", "It is 42."]
        asked = {
            "We are looking into «What is the question?».",
            "We are looking into «And the answer?».",
        }
        assert set(lines[0::2]) == asked
        assert chat.returncode == 0
