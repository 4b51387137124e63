"""`angarium publish` and `angarium dispatch …` in real processes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from angarium.cli.main import main
from angarium.dispatch import keys
from angarium.dispatch.epochs import digest
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.store import DispatchStore
from angarium.runtime.lease import Lease
from angarium.runtime.runtime import Runtime
from tests.dispatch.harness import StoreHarness
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_settings
from tests.kit.server import ServerProcess

COMMAND = Path(sys.executable).with_name("angarium")
COMMAND_S_MAX = 60.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        (line,) = self.out.splitlines()
        return json.loads(line)


class Shell:
    """Runs the command against one keyspace, and looks at it from outside."""

    def __init__(
        self, runtime: Runtime, folder: Path, captured: pytest.CaptureFixture[str]
    ) -> None:
        self.runtime = runtime
        self.store = DispatchStore(runtime)
        self._folder = folder
        self._captured = captured

    @property
    def environment(self) -> dict[str, str]:
        settings = self.runtime.settings
        kept = {name: text for name, text in os.environ.items() if not name.startswith("ANGARIUM_")}
        return {
            **kept,
            "ANGARIUM_HOME": str(self._folder / "home"),
            "ANGARIUM_REDIS_URL": settings.redis_url,
            "ANGARIUM_PREFIX": settings.prefix,
            "ANGARIUM_PARTITIONS": str(settings.partitions),
            "ANGARIUM_LIMITS__FRAME_BYTES_MAX": "1000",
        }

    async def run(self, *arguments: str) -> Ended:
        """In this process, which is much quicker than one of its own."""
        with pytest.MonkeyPatch.context() as patch:
            for name, text in self.environment.items():
                patch.setenv(name, text)
            patch.chdir(self._folder)
            code = await asyncio.to_thread(main, list(arguments))
        return Ended(code, *self._captured.readouterr())

    async def run_process(self, *arguments: str, stdin: bytes = b"") -> Ended:
        process = await asyncio.create_subprocess_exec(
            COMMAND,
            *arguments,
            cwd=self._folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(COMMAND_S_MAX):
            out, err = await process.communicate(stdin)
        return Ended(await process.wait(), out.decode(), err.decode())

    async def inbox(self) -> list[bytes]:
        name = self.runtime.keyspace.name(keys.MESSAGES_INBOX)
        entries = await self.runtime.redis.call("XRANGE", name, "-", "+", key=name)
        return [values[3] for _, values in entries]

    async def die(self, payload: bytes, *reasons: str) -> str:
        """A message that a worker refused for the last time; its id."""
        lease = Lease(self.runtime, self.store.lease_keys(0), 60_000)
        assert await lease.acquire()
        (message_id,) = new_ids(1)
        batch = [(message_id, payload)]
        assert await self.store.accept(0, lease.term, 1, batch, digest(payload), 1) == (1, 0)
        harness = StoreHarness(self.runtime, self.store, 0, lease.term)
        for reason in reasons:
            await harness.reject(message_id, reason)
        await lease.release()
        return message_id.decode()


Open = Callable[[str], AbstractAsyncContextManager[Shell]]


@pytest.fixture
def shell(no_settings: Path, capsys: pytest.CaptureFixture[str]) -> Open:
    @asynccontextmanager
    async def open_shell(redis_url: str) -> AsyncIterator[Shell]:
        settings = sample_settings(redis_url, dispatch={"deliveries_max": 1})
        async with Runtime.open(settings) as runtime:
            yield Shell(runtime, no_settings, capsys)

    return open_shell


# publish


async def test_published_messages_are_heard_in_order_and_unchanged(
    any_redis_url: str, shell: Open
) -> None:
    Path("order.json").write_text('{\n  "n": 3.0\n}\n')
    async with shell(any_redis_url) as ours:
        store = ours.store
        async with ours.runtime.redis.subscribe(
            store.channel, messages_max=10_000, key=store.subscription_key
        ) as channel:

            async def listened_to() -> bool:
                asked = ("PUBSUB", "NUMSUB", store.channel)
                reply = await ours.runtime.redis.call(*asked, key=store.subscription_key)
                return bool(reply[1] == 1)

            await eventually(listened_to, 30)
            ended = await ours.run_process(
                "publish", "--channel", '{"n":  1}', "-", "@order.json", "--count", "2", "--json",
                stdin=b'\n [2] \n"three"',
            )  # fmt: skip
            assert ended == Ended(0, '{"messages":8,"listeners":1,"unheard":0}\n', "")
            heard: list[bytes] = []
            while len(heard) < 8:
                heard += [payload for _, payload in (await channel.receive()).messages]
        each = [b'{"n":  1}', b"[2]", b'"three"', b'{\n  "n": 3.0\n}']
        assert heard == [payload for payload in each for _ in range(2)]


async def test_publish_says_how_many_listened_and_warns_when_nobody_did(
    redis_url: str, shell: Open
) -> None:
    async with shell(redis_url) as ours:
        ended = await ours.run("publish", "--channel", "1", "2")
        channel = ours.store.channel
        assert (ended.code, ended.out) == (1, f"2 messages on {channel}, heard by 0\n")
        (warning,) = ended.err.splitlines()
        assert warning.startswith("angarium: nobody listened to 2 messages: lost; ")
        assert "without --channel" in warning


async def test_durable_messages_wait_in_the_intake_and_a_key_is_accepted_once(
    redis_url: str, shell: Open
) -> None:
    async with shell(redis_url) as ours:
        first = await ours.run("publish", '{"n": 1}', "--durable", "--key", "k", "--json")
        ((message),) = first.json()["messages"]
        assert message["duplicate"] is False
        assert first.json()["dispatchers"] == 0
        assert "no dispatcher runs" in first.err
        again = await ours.run("publish", '{"n": 2}', "--durable", "--key", "k", "--json")
        assert again.json()["messages"] == [{**message, "duplicate": True}]
        lines = b"".join(b"%d\n" % n for n in range(2_000))
        many = await ours.run_process("publish", "--durable", "-", stdin=lines)
        assert many.out == "2000 messages in the durable intake\n"
        assert sorted(await ours.inbox()) == sorted([b'{"n": 1}', *lines.split()])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--durable", "1", "{no json"), "'{no json' is no JSON: "),
        (("--durable", "1", ""), "'' is no JSON: "),
        (("--durable", "1", "@nowhere.json"), "nowhere.json can't be read: "),
        (("--durable", "1", f'"{"x" * 1_000}"'), "frame_bytes_max: 1039 is more than the 1000"),
        (("--channel", "--key", "k", "1"), "no key and no id to wait for"),
        (("--channel", "--wait", "1"), "no key and no id to wait for"),
        (("--wait", "-"), "--wait is for messages that are given as arguments"),
        (("--key", "", "1"), "--key is for one message"),
        (("--durable", "--key", "k", "1", "2"), "--key is for one message"),
        (("--durable", "--key", "k", "1", "--count", "2"), "--key is for one message"),
        (("--durable", "--key", "k", "-"), "--key is for one message"),
    ],
)
def test_an_invalid_message_is_refused_in_one_line_before_any_is_sent(
    redis_server: ServerProcess,
    no_settings: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    problem: str,
) -> None:
    monkeypatch.setenv("ANGARIUM_REDIS_URL", redis_server.url)
    monkeypatch.setenv("ANGARIUM_PREFIX", "refused:")
    monkeypatch.setenv("ANGARIUM_LIMITS__FRAME_BYTES_MAX", "1000")
    assert main(["publish", *arguments]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("angarium: ")
    assert problem in line
    assert redis_server.ask("EXISTS", "refused:messages:inbox") == 0


async def test_messages_of_a_named_queue_are_published_and_shown(
    redis_url: str, shell: Open
) -> None:
    async with shell(redis_url) as ours:
        lost = await ours.run("publish", "--channel", "--queue", "emails", '{"n":1}')
        assert lost.code == 1
        assert ":emails, heard by 0" in lost.out
        assert "ANGARIUM_DISPATCH__QUEUES=emails" in lost.err
        ended = await ours.run("publish", "--queue", "emails", '{"n":2}')
        assert ended.code == 0
        lease = Lease(ours.runtime, ours.store.lease_keys(0), 60_000)
        assert await lease.acquire()
        found = await ours.store.accept_inbox(0, lease.term, 10, 10)
        assert found is not None
        assert found.named == 1
        status = await ours.run("dispatch", "status")
        assert re.search(r"emails +1 +[\d.]+ m?s +none", status.out)
        (shown,) = (await ours.run("dispatch", "status", "--json")).json()["queues"]
        assert (shown["queue"], shown["waiting"], shown["workers"]) == ("emails", 1, 0)
        wrong = await ours.run("publish", "--queue", "two words", "1")
        assert wrong.code != 0
        assert "name of a queue" in wrong.err


async def test_an_invalid_line_of_stdin_is_named_by_its_number(redis_url: str, shell: Open) -> None:
    async with shell(redis_url) as ours:
        ended = await ours.run_process("publish", "--durable", "-", stdin=b"1\n\n{\n")
        assert ended.code == 1
        assert "line 3 is no JSON" in ended.err


async def test_publish_waits_for_results_and_the_exit_code_follows_them(
    redis_url: str, shell: Open
) -> None:
    async with shell(redis_url) as ours:
        queued = await ours.run("publish", '{"later": 1}')
        assert queued.code == 0
        waiting = queued.out.split()[-1]
        early = await ours.run("result", waiting)
        assert early.code == 1
        assert early.out.startswith(f"{waiting}  queued, 20")
        assert "no result yet" in early.err
        env = {**ours.environment, "ANGARIUM_DISPATCH__ACK_PORT": "0"}
        env["ANGARIUM_DISPATCH__DELIVERIES_MAX"] = "1"
        arguments = ["serve", "dispatcher", "worker", "--app", "tests.dispatch.echo:app"]
        with RoleProcess(arguments, env, ready_lines=2):
            done = await ours.run("publish", "--wait", '{"text": "hello,\\u001b[2J Xerxes"}')
            assert (done.code, done.err) == (0, "")
            head, state, *fields = done.out.splitlines()
            message_id = head.split()[-1]
            assert state.startswith(f"{message_id}  completed by 127.0.0.1:")
            assert fields == ["  text  hello,\\x1b[2J Xerxes"]
            two = await ours.run("result", waiting, message_id, "--wait-s", "60", "--json")
            assert two.code == 0
            assert [json.loads(line)["result"]["later"] for line in two.out.splitlines()[:1]] == [
                "1"
            ]
            failed = await ours.run("publish", "--wait", '{"fail": "no bank"}')
            assert failed.code == 1
            assert "ValueError: no bank" in failed.out
            assert 'raise ValueError(message["fail"])' in failed.out
            assert "angarium dispatch dead retry" in failed.err


# dispatch status


async def test_the_status_shows_leaders_and_counts_as_table_and_json(
    any_redis_url: str, shell: Open
) -> None:
    async with shell(any_redis_url) as ours:
        lease = Lease(ours.runtime, ours.store.lease_keys(0), 600_000)
        assert await lease.acquire()
        await ours.store.join_dispatchers("one")
        await ours.store.enqueue(b"1")
        found = (await ours.run("dispatch", "status", "--json")).json()
        partitions = found["partitions"]
        assert [each["partition"] for each in partitions] == list(range(ours.store.partitions))
        assert (partitions[0]["leader"], partitions[0]["term"]) == (ours.runtime.actor, 1)
        assert sum(each["inbox"] for each in partitions) == 1
        assert found["dispatchers"] == ["one"]
        lines = (await ours.run("dispatch", "status")).out.splitlines()
        assert lines[0].split()[:3] == ["partition", "leader", "term"]
        assert lines[1].split()[:3] == ["0", ours.runtime.actor, "1"]
        assert lines[-2:] == ["consumers: none registered", "dispatchers: one"]


async def test_a_terminal_gets_a_table(redis_url: str, shell: Open) -> None:
    async with shell(redis_url) as ours:
        terminal, theirs = pty.openpty()
        try:
            process = subprocess.Popen(
                [COMMAND, "dispatch", "status"],
                env={**ours.environment, "TERM": "xterm-256color", "COLUMNS": "200"},
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
            )
            os.close(theirs)
            shown = b""
            while chunk := read_terminal(terminal):
                shown += chunk
            assert process.wait(COMMAND_S_MAX) == 0
        finally:
            os.close(terminal)
        assert b"Partition" in shown
        assert b"nobody" in shown


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux answers EIO when the other side is closed
        return b""


# dispatch dead


async def test_dead_letters_are_listed_with_their_reasons_and_page_by_page(
    redis_url: str, shell: Open
) -> None:
    async with shell(redis_url) as ours:
        evil = b'{"text":"\x1b[2J ' + b"x" * 100 + b'"}'
        first = await ours.die(evil, "w1: no such customer")
        second = await ours.die(b"2", "w1: still not")
        ended = await ours.run("dispatch", "dead", "list")
        titles, *rows = [re.split("  +", line) for line in ended.out.splitlines()]
        assert titles == ["id", "died", "tries", "last reason", "queue", "payload"]
        assert [row[0] for row in rows] == [first, second]
        assert rows[0][2:4] == ["1", "w1: no such customer"]
        assert "\x1b" not in ended.out
        assert len(rows[0][4]) == 60  # its queue has no name
        page = (await ours.run("dispatch", "dead", "list", "--limit", "1", "--json")).json()
        (letter,) = page["letters"]
        assert (letter["id"], letter["payload"]) == (first, evil.decode())
        rest = (
            await ours.run("dispatch", "dead", "list", "--after", page["next"], "--json")
        ).json()
        assert [each["id"] for each in rest["letters"]] == [second]
        assert rest["next"] is None


async def test_dead_letters_are_retried_and_dropped_by_id(redis_url: str, shell: Open) -> None:
    async with shell(redis_url) as ours:
        one, two, three = [await ours.die(b"1", "no") for _ in range(3)]
        assert await ours.run("dispatch", "dead", "retry", one) == Ended(0, f"{one} retried\n", "")
        ended = await ours.run("dispatch", "dead", "drop", two, one, "--json")
        assert ended.code == 1
        outcomes = ended.json()["letters"]
        assert outcomes == {two: "dropped", one: "dead_letter_unknown"}
        assert ended.err == f"angarium: there is no dead letter '{one}'\n"
        status = await ours.store.status(0)
        assert (status.pending, status.dead) == (1, 1)
        (left,) = await ours.store.dead_letters(0, 10)
        assert left.message_id == three


async def test_all_dead_letters_are_retried_or_dropped_at_once(redis_url: str, shell: Open) -> None:
    async with shell(redis_url) as ours:
        for _ in range(250):
            await ours.die(b"1", "no")
        ended = await ours.run("dispatch", "dead", "retry", "--all")
        assert ended == Ended(0, "250 retried\n", "")
        status = await ours.store.status(0)
        assert (status.pending, status.dead) == (250, 0)
        await ours.die(b"1", "no")
        dropped = await ours.run("dispatch", "dead", "drop", "--all", "--json")
        assert dropped.json() == {"dropped": 1}
        assert (await ours.store.status(0)).dead == 0


async def test_retry_and_drop_need_ids_or_all(redis_url: str, shell: Open) -> None:
    async with shell(redis_url) as ours:
        message_id = await ours.die(b"1", "no")
        for arguments in (("retry",), ("drop", message_id, "--all")):
            ended = await ours.run("dispatch", "dead", *arguments)
            assert ended.code == 1
            assert "by their ids, or by --all or --reason" in ended.err
        assert (await ours.store.status(0)).dead == 1


async def test_a_dead_letter_is_shown_with_reasons_and_payload(redis_url: str, shell: Open) -> None:
    async with shell(redis_url) as ours:
        message_id = await ours.die(b'{"n": 1}', "w1: ValueError: \x1b no")
        shown = await ours.run("dispatch", "dead", "show", message_id)
        assert shown.code == 0
        lines = [line.split(maxsplit=1) for line in shown.out.splitlines()]
        assert ["id", message_id] in lines
        assert ["tries", "1"] in lines
        assert ["1", "w1: ValueError: \\x1b no"] in lines
        assert ["payload", '{"n": 1}'] in lines
        as_json = await ours.run("dispatch", "dead", "show", message_id, "--json")
        assert as_json.json()["payload"] == '{"n": 1}'
        unknown = await ours.run("dispatch", "dead", "show", "nobody")
        assert unknown.code != 0


async def test_dead_letters_of_a_reason_are_retried_or_dropped(redis_url: str, shell: Open) -> None:
    async with shell(redis_url) as ours:
        await ours.die(b"1", "w1: TimeoutError")
        await ours.die(b"2", "w1: ValueError: no")
        kept = await ours.die(b"3", "w1: OSError")
        dead = ("dispatch", "dead")
        assert (await ours.run(*dead, "retry", "--reason", "Timeout")).out == "1 retried\n"
        assert (await ours.run(*dead, "drop", "--reason", "ValueError")).out == "1 dropped\n"
        listed = await ours.run(*dead, "list", "--reason", "OSError", "--json")
        assert [each["id"] for each in listed.json()["letters"]] == [kept]
