"""What the pages tell people to type: every command exists with its options, and the first five
minutes of README run as they stand there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from angarium.cli.main import application
from tests.docs.shell import UP_ROLES
from tests.kit.roles import ANY_PORT, ROOT, RoleProcess

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# A command stands at the start of a line or behind variables; a comment or a wide gap ends it.
COMMAND = re.compile(r"^(?:[$] )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?angarium +(.*)$")
END = re.compile(r"\s+#|\s{3,}| &$|…| \| | > ")


def commands(page: Path) -> Iterator[str]:
    text = page.read_text()
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    lines += INLINE.findall(BLOCK.sub("", text))
    for line in lines:
        match = COMMAND.match(line.strip())
        if match is not None:
            yield END.split(match[1], maxsplit=1)[0].strip()


def problem(words: list[str]) -> str | None:
    """What is wrong with a command line, without running it."""
    command: Any = typer.main.get_command(application())
    while hasattr(command, "commands"):
        words = [word for word in words if word != "--debug"]
        if not words or words[0].startswith("-"):
            return None
        name = words[0].split("|")[0]
        if name not in command.commands:
            return f"there is no command {words[0]!r}"
        command, words = command.commands[name], words[1:]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    unknown = [word for word in unknown if word not in ("--help", "--")]
    return f"unknown option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_exists_with_its_options(page: Path) -> None:
    wrong = []
    for line in commands(page):
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        found = problem(words)
        if found is not None:
            wrong.append(f"angarium {line}: {found}")
    assert wrong == []


def test_a_command_that_does_not_exist_would_be_found() -> None:
    assert problem(["publish", "--channel", "x"]) is None
    assert problem(["publsh"]) == "there is no command 'publsh'"
    assert problem(["publish", "--never"]) == "unknown option --never"
    assert list(commands(ROOT / "README.md")) != []


async def test_the_first_five_minutes_of_readme_run_as_written(tmp_path: Path) -> None:
    """A message's result on the screen, a killed worker, and the history of the message that
    waited for the next one."""
    found = BLOCK.findall((ROOT / "README.md").read_text())
    (first,) = [block for block in found if "cat > work.py" in block]
    (shown,) = [block for block in found if "hello, Xerxes" in block and block != first]
    (second,) = [block for block in found if "kill %1" in block]
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    settings = {**ANY_PORT, "ANGARIUM_HOME": str(tmp_path / "home")}
    # Spark has tests of its own and would only load the machine here.
    settings["ANGARIUM_LAKE__START_DELAY_MS"] = "3600000"
    async with RoleProcess(["up", "--json"], settings, ready_lines=UP_ROLES):
        shell = await asyncio.create_subprocess_exec(
            "bash", "-ec", f"{first}\necho =====\n{second}",
            cwd=tmp_path,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(120):
                out, _ = await shell.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, out.decode()
    lines = [line for line in out.decode().splitlines() if not line.startswith('{"role"')]
    middle = lines.index("=====")
    assert [*map(likeness, lines[:middle])] == [*map(likeness, shown.splitlines())]
    after = "\n".join(lines[middle:])
    assert "  text  hello, Atossa" in after
    assert [event in after for event in ("enqueued", "accepted", "completed")] == [True] * 3


def likeness(line: str) -> str:
    """The line without what differs in every run: ids, ports, times."""
    line = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", line)
    return re.sub(r"127\.0\.0\.1:\d+, [\d-]+ [\d:.]+", "WHERE, WHEN", line)
