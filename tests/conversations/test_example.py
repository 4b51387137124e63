"""The example runs as it says, against a real server."""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.kit.roles import RoleProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "conversations_chat" / "app.py"


def test_the_chat_prints_its_answers_in_the_order_of_the_questions(redis_url: str) -> None:
    env = {"ANGARIUM_REDIS_URL": redis_url, "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:"}
    code = f"import runpy; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    with RoleProcess(["-c", code], env, ready_lines=0) as example:
        assert example.wait(60) == 0
        assert example.lines() == [
            "first → let me look that up",
            "first → here it is",
            "second → the answer that was ready at once",
            "third → the answer to the last question",
        ]
