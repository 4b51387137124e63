"""A declared transition: both sides of the call follow from the declaration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from angarium.dispatch import keys
from angarium.runtime.errors import ScriptFailed
from angarium.runtime.keyspace import Key, Keyspace
from angarium.runtime.transition import BoundTransition, Transition
from tests.kit.sample import SampleStore, sample_runtime


class CountArgs(NamedTuple):
    stopped: bool
    long_chars: int
    ratio: float


class Word(NamedTuple):
    queue: str
    weight: int


class LongWord(NamedTuple):
    word: str
    chars: int


class Counted(NamedTuple):
    total: int
    ratio: float
    long: list[LongWord]


class CountedWord(NamedTuple):
    word: str
    weight: int


def declared(**changes: Any) -> Transition[Any]:
    declaration: dict[str, Any] = {
        "keys": {"order": keys.CONSUMER_IDS},
        "channels": {"news": keys.MESSAGES_PUBLISHED},
        "args": CountArgs,
        "item": CountedWord,
        "item_keys": {"list": Key("words:{word}", "list", "runtime", "")},
        "replies": {"counted": Counted, "stopped": None},
        "one_reply": True,
    }
    return Transition("tests.kit", "count_words", **(declaration | changes))


async def test_names_types_and_rows_travel_both_ways(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        channel = runtime.keyspace.global_name(keys.MESSAGES_PUBLISHED)
        async with runtime.redis.subscribe(channel) as news:
            await news.subscribed.wait()
            words = [CountedWord("a", 1), CountedWord("enormous", 5), CountedWord("é☃é", 2)]
            reply = await runtime.call(declared(), 0, CountArgs(False, 6, 0.5), words)
            # A number leaves a script as an integer: that is what Redis makes of it.
            assert reply == Counted(8, 1.0, [LongWord("enormous", 8), LongWord("é☃é", 7)])
            # A subscription reports its start as a gap: that batch can come first, alone.
            received = (await news.receive()).messages or (await news.receive()).messages
            assert [each.payload for each in received] == [b"8"]
        order = runtime.keyspace.name(keys.CONSUMER_IDS, 0)
        found = await runtime.redis.call("LRANGE", order, 0, -1, key=order)
        assert found == [b"a", b"1", b"enormous", b"5", "é☃é".encode(), b"2"]
        own = runtime.keyspace.name(Key("words:{word}", "list", "runtime", ""), 0, "a")
        assert await runtime.redis.call("LRANGE", own, 0, -1, key=own) == [b"a"]


async def test_a_variant_without_fields_is_its_word(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        assert await runtime.call(declared(), 0, CountArgs(True, 6, 0.5), []) == "stopped"


async def test_single_calls_share_script_calls_and_each_gets_its_reply(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        store = SampleStore(runtime)
        assert await store.accept("one") == "accepted"
        assert await store.accept("one") == "duplicate"
        assert await store.accept_alone("two") == "accepted"


async def test_a_reply_that_is_not_declared_is_an_error(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        without = declared(replies={"counted": Counted, "halted": None})
        with pytest.raises(ScriptFailed, match="count_words answered None"):
            await runtime.call(without, 0, CountArgs(True, 6, 0.5), [])


def test_parameters_other_than_the_declared_ones_are_refused() -> None:
    with pytest.raises(ScriptFailed, match=r"each_item takes \(word, weight, list_key\)"):
        declared(item=Word).script  # noqa: B018


def test_a_key_needs_a_field_for_its_placeholder(tmp_path: Path) -> None:
    other = Key("words:{queue}", "list", "runtime", "")
    with pytest.raises(ScriptFailed, match="no placeholder that is a field"):
        BoundTransition(declared(item_keys={"list": other}), Keyspace("", 1))
