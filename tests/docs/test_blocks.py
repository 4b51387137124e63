"""Every command and every piece of Python on the pages does what the page says, for real.

A page has one test, which types its blocks in their order, in a clean home beside `angarium up`.
What is not run has its reason here.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from angarium.settings import load
from tests.docs.blocks import PAGES, SHELL, Block, blocks, of_page
from tests.docs.shell import Reader
from tests.kit.roles import ROOT
from tests.kit.server import ServerProcess

SKIPPED = {
    "README.md": "tests/docs/test_commands.py types its first five minutes; make is what runs it",
    "docs/index.md": "make, which runs the tests",
    "docs/demo.md": "tests/demo runs it",
    "docs/lake/index.md": "tests/docs/test_lake_pages.py types them, beside the other Sparks",
    "docs/lake/cookbook.md": "tests/docs/test_lake_pages.py types them, beside the other Sparks",
    "docs/guides/first-hour.md": "tests/docs/test_first_hour.py types it beside `angarium up`",
    "docs/guides/two-machines.md": "tests/docs/test_two_machines.py types it on two hosts",
    "docs/faults.md": "runs of several minutes, which `make faults` and tests/faults are for",
}
SKIPPED_COMMANDS = {
    "aca-py start": "tests/interop runs the plugin in an agent of the same shape",
}
RUN = {
    "docs/api.md", "docs/dashboard.md",
    "docs/modules/conversations.md", "docs/modules/dispatch.md", "docs/modules/pickup.md",
    "docs/modules/routing.md", "docs/modules/transactions.md", "docs/security/tokens.md",
}  # fmt: skip
# Python that is compiled only, by words in it.
SKIPPED_PYTHON = {
    "import polars": "Polars is not among our dependencies",
    "import duckdb": "tests/docs/test_lake_pages.py runs it",
    "@app.table": "tests/docs/test_lake_pages.py runs it",
    "session()": "tests/docs/test_lake_pages.py runs it; of sources.md, tests/lake/test_session.py",
    "readStream": "tests/lake/test_redis_stream.py runs the same on a session",
    "writeStream": "tests/lake/test_redis_stream.py runs the sink",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(aof=True) as found:
        yield found


async def typed(reader: Reader, block: Block, **filled: str) -> list[str]:
    """The block's lines, one after the other, with words in capitals filled in."""
    printed = []
    for line in block.commands:
        if any(line.startswith(skipped) for skipped in SKIPPED_COMMANDS):
            continue
        for word, value in filled.items():
            line = re.sub(rf"(?<=\s){word}…?(?=\s|$)", value, line)
        printed.append(await reader.type(line))
    return printed


def module_of(page: str) -> str:
    """The Python that defines the page's `app`."""
    return next(each.text for each in of_page(page, "python") if "Angarium()" in each.text)


# What there is


def test_no_command_hides_in_a_block_that_is_not_run() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "" and block.page != "README.md":
                hidden = [line for line in block.text.splitlines() if SHELL.match(line)]
                assert hidden == [], f"{block.page}:{block.line}: call the block `sh`"


def test_every_page_with_commands_is_run_or_skipped_with_its_reason() -> None:
    with_commands = {
        block.page for page in PAGES for block in blocks(page) if block.language == "sh"
    }
    assert with_commands - RUN <= SKIPPED.keys()
    texts = "\n".join(block.text for page in PAGES for block in blocks(page))
    assert [each for each in (*SKIPPED_COMMANDS, *SKIPPED_PYTHON) if each not in texts] == []
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python" and block.page not in RUN:
                assert skipped(block), f"{block.page}:{block.line}"


def skipped(block: Block) -> bool:
    return any(words in block.text for words in SKIPPED_PYTHON)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_json_and_toml_can_be_read(page: Path, no_settings: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            compile(block.text, block.page, "exec", flags=flags)
        elif block.language == "json":
            json.loads(block.text)


def test_the_settings_of_the_page_are_taken(no_settings: Path) -> None:
    (block,) = of_page("docs/settings.md", "toml")
    (no_settings / "angarium.toml").write_text(block.text)
    settings = load()
    assert (settings.partitions, settings.dispatch.lock_ms) == (16, 1000)


def test_commands_for_redis_are_those_of_redis(server: ServerProcess) -> None:
    server.ask("FLUSHALL")
    ran = 0
    for block in of_page("docs/protocols/dispatch.md", "redis"):
        for line in block.text.splitlines():
            answer = server.ask(*line.partition("→")[0].split())
            ran += 1
            if "→ 0" in line:
                assert answer == 0
    assert ran >= 9


# Page by page


async def test_the_page_of_the_api(server: ServerProcess, tmp_path: Path) -> None:
    async with Reader(tmp_path, server, beside_up=True) as reader:
        reader.write("support.toml", 'name = "support"\n[[steps]]\ntype = "noop"\n')
        await reader.type("angarium pipeline load support.toml")
        script = module_of("docs/api.md")
        calls = "import asyncio\nasyncio.run(elsewhere())\nwithout_a_loop()\n"
        reader.write("module.py", script)
        await reader.type("angarium serve worker --app module:app")
        await reader.type("angarium serve dispatcher")
        await reader.python(script + calls)
        listed = await reader.type("angarium transactions list --status queued --json")
        assert "support" in listed


async def test_the_page_of_the_dashboard(server: ServerProcess, tmp_path: Path) -> None:
    async with Reader(tmp_path, server, beside_up=True) as reader:
        await reader.type("angarium serve dispatcher")
        (block,) = of_page("docs/dashboard.md", "sh")
        printed = await typed(reader, block)
        assert "modules" in json.loads(printed[2])


async def test_the_page_of_conversations(server: ServerProcess, tmp_path: Path) -> None:
    # The request is still open when the commands are typed, however long the role takes to start.
    rules = {"ANGARIUM_CONVERSATIONS__MESSAGE_TTL": "600000"}
    async with Reader(tmp_path, server, beside_up=True, **rules) as reader:
        reader.write("module.py", module_of("docs/modules/conversations.md"))
        await reader.python(
            "from angarium import Angarium\n"
            "with Angarium().sync_client as client:\n"
            "    client.conversations.request('anna', 'r1', origin='whatsapp')\n"
        )
        (block,) = of_page("docs/modules/conversations.md", "sh")
        printed = await typed(reader, block, ID="anna")
        assert "r1" in printed[1]


async def test_the_page_of_dispatch(server: ServerProcess, tmp_path: Path) -> None:
    rules = {"ANGARIUM_DISPATCH__DELIVERIES_MAX": "1", "ANGARIUM_DISPATCH__RETRY_DELAY_MS": "1"}
    async with Reader(tmp_path, server, beside_up=True, **rules) as reader:
        reader.write("module.py", module_of("docs/modules/dispatch.md"))
        start, queues, intake, dead = of_page("docs/modules/dispatch.md", "sh")
        await reader.type("angarium serve api")
        printed = await typed(reader, start)
        assert "total  51" in printed[2]
        assert "consumers" in printed[3]
        # Without a worker for the queue, its messages wait and are shown.
        await typed(reader, Block("", 0, "sh", "\n".join(queues.commands[:3])))
        assert "emails" in await reader.type("angarium dispatch status")
        printed = await typed(reader, intake)
        assert '"message_id"' in printed[0]
        # The page's function takes orders, so the bare numbers are among the dead.
        letter = await dead_letter(reader)
        listed, shown, retried, dropped = dead.commands
        await typed(reader, Block("", 0, "sh", f"{listed}\n{shown}\n{retried}"), ID=letter)
        again = await dead_letter(reader)
        await reader.type(dropped.replace("ID…", again))


async def dead_letter(reader: Reader) -> str:
    for _ in range(60):
        found = json.loads(await reader.type("angarium dispatch dead list --json"))
        if found["letters"]:
            return str(found["letters"][0]["id"])
    raise AssertionError("nothing died")


async def test_the_page_of_pickup(server: ServerProcess, tmp_path: Path) -> None:
    async with Reader(tmp_path, server, beside_up=True) as reader:
        shell, script = of_page("docs/modules/pickup.md", "sh", "python")
        serve, *rest = shell.commands
        await reader.type(serve)
        # The page's loop waits for ever; here it ends with its first delivery.
        body = textwrap.indent(f"{script.text}        break\n", "    ")
        await reader.python(f"import asyncio\nasync def main():\n{body}asyncio.run(main())\n")
        add = script.text.splitlines()
        await reader.python(
            "import asyncio\n"
            f"{add[0]}\n"
            "async def main():\n"
            "    async with PickupClient('ws://127.0.0.1:3100/') as client:\n"
            "        await client.add_message('connection-2', ['did:example:anna'], 1)\n"
            "asyncio.run(main())\n"
        )
        block = Block("", 0, "sh", "\n".join(rest))
        printed = await typed(reader, block, CONNECTION="connection-2")
        assert "1" in printed[0]


async def test_the_page_of_routing(server: ServerProcess, tmp_path: Path) -> None:
    async with Reader(tmp_path, server, beside_up=True) as reader:
        reader.write("module.py", module_of("docs/modules/routing.md"))
        serve, operate, _ = of_page("docs/modules/routing.md", "sh")
        await typed(reader, serve)
        await reader.python(
            "import urllib.request\n"
            "from tests.routing.harness import envelope\n"
            "urllib.request.urlopen('http://127.0.0.1:8071/', data=envelope('key-1')).read()\n"
        )
        printed = await typed(reader, operate, KEY="key-1")
        assert "key-1" in printed[0]


async def test_the_page_of_transactions(server: ServerProcess, tmp_path: Path) -> None:
    async with Reader(tmp_path, server, beside_up=True) as reader:
        reader.write("module.py", module_of("docs/modules/transactions.md"))
        (pipeline,) = of_page("docs/modules/transactions.md", "toml")
        reader.write("payment.toml", pipeline.text)
        (block,) = of_page("docs/modules/transactions.md", "sh")
        printed = await typed(reader, block)
        assert "success" in printed[2]


async def test_the_page_of_tokens(server: ServerProcess, tmp_path: Path) -> None:
    async with Reader(tmp_path, server, beside_up=True) as reader:
        await reader.type("angarium serve api")
        (block,) = of_page("docs/security/tokens.md", "sh")
        create, tenant, listed, revoke, call = block.commands
        made = re.search(r"ang_[\w-]+", await reader.type(create))
        assert made is not None
        await reader.type(tenant)
        await reader.type(listed)
        found = json.loads(await reader.type("angarium token list --json"))
        (acme,) = [each for each in found if each["token"]["name"] == "acme"]
        await reader.type(revoke.replace("ID", acme["id"]))
        assert '"processes"' in await reader.type(f"TOKEN={made[0]}; {call}")
