"""A change of state, declared once: its keys, its arguments, its items and its replies by name.

    class CountItem(NamedTuple):
        name: str
        payload: bytes

    class Counted(NamedTuple):
        count: int

    COUNT = Transition(
        "angarium.counting",
        "count_messages",                    # lua/count_messages.lua
        keys={"counts": COUNTS},
        item=CountItem,
        item_keys={"last": LAST},            # its name has the placeholder {name}: that field
        replies={"counted": Counted, "names_full": None},
    )

Both sides of the call follow from the declaration. Python passes the named tuples as they are. The
script begins with lines that the loader generates: a local for each key (`counts_key`), channel
(`ends_channel`) and argument, `reply.counted(count)` and `reply.names_full`, and for the items

    local replies = each_item(function(name, payload, last_key) … end)

whose parameters must be those of the declaration, or the script is refused when it is loaded.
`item_count` is their number, and `item_values(first, last)` gives the fields of some of them as
one flat list of arguments, for commands that take many at once; `item_keys(first, last)` gives
their keys, and `item_column(number)` one field of all. A script that reads ids itself gets the stem
of their keys (`states_stem`). A script without items answers once; one with items answers once for
each, or, with `one_reply`, once for the call.

A key of None is one that the caller names (`Runtime.call(…, names=…)`): leases and streams of users
have no name in a manifest. A script that writes no events, `journalled=False`, gets neither the
journal's keys nor the time; it can be used on keys outside our partitions. One that lets new work
in, `admits=True`, is refused before its first line while the journal is full and the setting
`journal.full` says so; another can ask `journal_is_full()`.

The last field of an item may be a list (`fields: Sequence[Argument]`). The function then gets two
positions, `fields_first` and `fields_last`, and `argument_values(fields_first, fields_last)` gives
the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from angarium.redis.connection import Argument
from angarium.redis.errors import ScriptFailed
from angarium.redis.scripts import Script
from angarium.runtime.errors import JOURNAL_FULL
from angarium.runtime.keyspace import Key, Keyspace, placeholder_of
from angarium.runtime.scripts import load_script

Item = TypeVar("Item", bound=tuple[Any, ...])

# KEYS and ARGV that every transition has: the journal; the time, the actor, the journal's limit.
FIRST_KEY, FIRST_ARGUMENT = 3, 4
# A limit below 0 says that new work is refused while the journal is full (journal_append).
_IS_FULL = (
    "local function journal_is_full() local limit = tonumber(ARGV[3]) return limit < 0 "
    "and (tonumber(redis.call('HGET', KEYS[2], 'full')) or 0) >= -limit end"
)
_ADMIT = f"if journal_is_full() then return redis.error_reply('{JOURNAL_FULL} wait') end"
_NUMBERS = (int, float, bool)
NUMBER_MAX = 1 << 63
_COUNTS = [str(count) for count in range(64)]
_EACH_ITEM = re.compile(r"\beach_item\(function\(([^)]*)\)")


class NoItem(NamedTuple):
    """The item type of a transition without items."""


@dataclass(frozen=True, eq=False)
class Transition(Generic[Item]):
    package: str
    name: str
    _: KW_ONLY
    keys: Mapping[str, Key | None] = field(default_factory=dict)
    channels: Mapping[str, Key] = field(default_factory=dict)
    args: type[tuple[Any, ...]] | None = None
    item: type[Item] | None = None
    item_keys: Mapping[str, Key | None] = field(default_factory=dict)
    replies: Mapping[str, type[tuple[Any, ...]] | None] = field(default_factory=dict)
    one_reply: bool = False
    journalled: bool = True
    admits: bool = False
    """Whether it lets new work in, which is refused while the journal is full, if set so."""
    stems: Mapping[str, Key] = field(default_factory=dict)
    """Keys without their id, of the same partition: the script appends ids that it reads."""

    @cached_property
    def script(self) -> Script:
        words = [word for word, fields in self.replies.items() if fields is None]
        script = load_script(self.package, self.name, self.prelude(), words)
        if self.item is not None:
            self._check_parameters(script.source)
        return script

    def prelude(self) -> list[str]:
        """The lines of Lua that give names to KEYS and ARGV."""
        first_key, at = (FIRST_KEY, FIRST_ARGUMENT) if self.journalled else (1, 1)
        names = [*(f"{key}_key" for key in self.keys), *(f"{stem}_stem" for stem in self.stems)]
        lines = [_IS_FULL] if self.journalled else []
        lines += [_ADMIT] if self.admits else []
        lines += [f"local {name} = KEYS[{first_key + n}]" for n, name in enumerate(names)]
        for name in self.channels:
            lines.append(f"local {name}_channel = ARGV[{at}]")
            at += 1
        for name, kind in _fields(self.args):
            lines.append(f"local {name} = {_read(kind, f'ARGV[{at}]')}")
            at += 1
        if self.item is not None:
            lines += self._item_lines(at, first_key)
        variants = (f"{word} = {_variant(word, fields)}" for word, fields in self.replies.items())
        lines.append(f"local reply = {{ {', '.join(variants)} }}")
        return lines

    def _item_lines(self, at: int, first_key: int) -> list[str]:
        fields, keys = _fields(self.item), len(self.item_keys)
        if _ends_in_list(self.item):
            return _list_lines(at, fields)
        values = [_read(kind, f"ARGV[at + {n + 1}]") for n, (_, kind) in enumerate(fields)]
        values += [f"KEYS[key + {n + 1}]" for n in range(keys)]
        key = first_key + len(self.keys) + len(self.stems) - 1
        width = len(fields)
        declared, next_item = f"at = {{}}, {at}", f"at = at + {width}"
        if keys:
            declared, next_item = (
                f"at, key = {{}}, {at}, {key}",
                f"at, key = at + {width}, key + {keys}",
            )
        lines = [
            f"local item_count = tonumber(ARGV[{at}])",
            f"local function each_item(run) local found, {declared} "
            f"for item = 1, item_count do found[item] = run({', '.join(values)}) "
            f"{next_item} end return found end",
            "local function item_values(first, last) "
            f"return unpack(ARGV, {at + 1} + {width} * (first - 1), {at} + {width} * last) end",
            "local function item_column(number) local found = {} for item = 1, item_count do "
            f"found[item] = ARGV[{at - width} + number + {width} * item] end return found end",
        ]
        if keys:
            lines.append(
                "local function item_keys(first, last) "
                f"return unpack(KEYS, {key + 1} + {keys} * (first - 1), {key} + {keys} * last) end"
            )
        return lines

    def _check_parameters(self, source: str) -> None:
        wanted = [name for name, _ in _fields(self.item)] + [f"{k}_key" for k in self.item_keys]
        if _ends_in_list(self.item):
            wanted[-1:] = [f"{wanted[-1]}_first", f"{wanted[-1]}_last"]
        for found in _EACH_ITEM.findall(source):
            if [each.strip() for each in found.split(",")] != wanted:
                problem = f"each_item takes ({found}), and the declaration says {wanted}"
                raise ScriptFailed(f"{self.package}.{self.name}: {problem}")

    def arguments(
        self, args: tuple[Any, ...] | None, items: Sequence[Item] = (), channels: Sequence[str] = ()
    ) -> list[Argument]:
        """ARGV after those of the journal: the shared ones, the number of items, each item's."""
        values: list[Argument] = [*channels]
        if args is not None:
            values += _as_text(args)
        if self.item is None:
            return values
        values.append(str(len(items)))
        if self._items_end_in_list:
            for *plain, rest in items:
                values += plain
                values.append(_COUNTS[len(rest)] if len(rest) < len(_COUNTS) else len(rest))
                values += rest
            return values
        values += chain.from_iterable(items)
        return _as_text(values) if self._items_have_bools else values

    @cached_property
    def _items_have_bools(self) -> bool:
        return bool in [kind for _, kind in _fields(self.item)]

    @cached_property
    def _items_end_in_list(self) -> bool:
        return _ends_in_list(self.item)

    @cached_property
    def _decoders(self) -> Mapping[bytes, Callable[[Sequence[Any]], Any] | str]:
        return {
            word.encode(): word if fields is None else _decoder(fields)
            for word, fields in self.replies.items()
        }

    @cached_property
    def _words(self) -> Mapping[bytes, str]:
        return {word: found for word, found in self._decoders.items() if isinstance(found, str)}

    def decode_all(self, replies: Sequence[Any]) -> list[Any]:
        """The variant of each reply; one that is not declared is an error in its place."""
        words = self._words
        try:
            return [words[reply] for reply in replies]
        except (KeyError, TypeError):
            return [self._decoded(reply) for reply in replies]

    def _decoded(self, reply: Any) -> Any:
        try:
            return self.decode(reply)
        except ScriptFailed as error:
            return error

    def decode(self, reply: Any) -> Any:
        """The variant: its word, or its named tuple."""
        word, fields = (reply[0], reply[1:]) if isinstance(reply, list) and reply else (reply, ())
        try:
            decoder = self._decoders[word]
        except (KeyError, TypeError):
            raise ScriptFailed(f"{self.name} answered {word!r}, which is not declared") from None
        return decoder if isinstance(decoder, str) else decoder(fields)


class BoundTransition(Generic[Item]):
    """A transition on one keyspace: what is the same for every call is made once."""

    def __init__(self, transition: Transition[Item], keyspace: Keyspace) -> None:
        self.transition = transition
        self.script = transition.script
        self._keyspace = keyspace
        self._channels = [keyspace.global_name(each) for each in transition.channels.values()]
        self._keys = _declared(transition.keys)
        self._fixed = all(placeholder_of(key.name) is None for key in self._keys)
        self._names: dict[int, list[str]] = {}
        item_keys = _declared(transition.item_keys)
        self._item_places = [(key, _place(key, transition.item)) for key in item_keys]

    def call(
        self, partition: int, args: tuple[Any, ...] | None, items: Sequence[Item]
    ) -> tuple[list[str], list[Argument]]:
        """KEYS, the shared ones and then each item's own, and ARGV."""
        names = [*self._shared_names(partition, args)]
        values = self.transition.arguments(args, items, self._channels)
        if self._item_places:
            name = self._keyspace.name
            for item in items:
                names += [name(key, partition, item[place]) for key, place in self._item_places]
        return names, values

    def _shared_names(self, partition: int, args: tuple[Any, ...] | None) -> list[str]:
        """A placeholder is filled by the argument of that name."""
        found = self._names.get(partition)
        if found is None:
            name = self._keyspace.name
            found = [name(key, partition, *_filling(key, args)) for key in self._keys]
            found += [name(stem, partition, "") for stem in self.transition.stems.values()]
            if self._fixed:
                self._names[partition] = found
        return found


def _declared(keys: Mapping[str, Key | None]) -> list[Key]:
    """Empty if the caller names the keys."""
    return [key for key in keys.values() if key is not None]


def _fields(kind: type[tuple[Any, ...]] | None) -> list[tuple[str, Any]]:
    return list(get_type_hints(kind).items()) if kind is not None else []


def _ends_in_list(item: type[tuple[Any, ...]] | None) -> bool:
    fields = _fields(item)
    return bool(fields) and get_origin(fields[-1][1]) is Sequence


def _list_lines(at: int, fields: list[tuple[str, Any]]) -> list[str]:
    """The items follow each other: the plain fields, the number of values, the values."""
    plain = len(fields) - 1
    values = [_read(kind, f"ARGV[at + {n + 1}]") for n, (_, kind) in enumerate(fields[:-1])]
    values += [f"at + {plain + 2}", "last"]
    return [
        f"local item_count = tonumber(ARGV[{at}])",
        f"local function each_item(run) local found, at = {{}}, {at} for item = 1, item_count do "
        f"local last = at + {plain + 1} + tonumber(ARGV[at + {plain + 1}]) "
        f"found[item] = run({', '.join(values)}) at = last end return found end",
        "local function argument_values(first, last) return unpack(ARGV, first, last) end",
    ]


def _read(kind: Any, text: str) -> str:
    if kind is bool:
        return f"({text} == '1')"
    return f"tonumber({text})" if kind in _NUMBERS else text


def _variant(word: str, fields: type[tuple[Any, ...]] | None) -> str:
    if fields is None:
        return f"'{word}'"
    names = ", ".join(name for name, _ in _fields(fields))
    return f"function({names}) return {{ '{word}', {names} }} end"


def _filling(key: Key, args: tuple[Any, ...] | None) -> tuple[str, ...]:
    name = placeholder_of(key.name)
    return () if name is None else (str(getattr(args, name)),)


def _place(key: Key, item: type[tuple[Any, ...]] | None) -> int:
    names = [name for name, _ in _fields(item)]
    placeholder = placeholder_of(key.name)
    if placeholder not in names:
        raise ScriptFailed(f"{key.name} has no placeholder that is a field of its item: {names}")
    return names.index(placeholder)


def _as_text(values: Sequence[Any]) -> list[Argument]:
    """Numbers become text here: a command of text alone is checked fastest before it is sent.
    Redis has no booleans; a number that is too large is refused there."""
    return [
        str(int(value)) if isinstance(value, int) and -NUMBER_MAX < value < NUMBER_MAX else value
        for value in values
    ]


def _decoder(kind: type[tuple[Any, ...]]) -> Callable[[Sequence[Any]], Any]:
    readers = [_reader(hint) for _, hint in _fields(kind)]

    def decode(fields: Sequence[Any]) -> Any:
        return kind(*[read(value) for read, value in zip(readers, fields, strict=True)])

    return decode


def _reader(kind: Any) -> Callable[[Any], Any]:
    if get_origin(kind) is list:
        (row,) = get_args(kind)
        return _rows(row) if isinstance(row, type) and issubclass(row, tuple) else _many(row)
    if kind is str:
        return lambda value: value.decode()
    if kind is bool:
        return lambda value: bool(int(value))
    return {int: int, float: float}.get(kind, lambda value: value)


def _many(kind: Any) -> Callable[[Any], Any]:
    read = _reader(kind)
    return lambda values: [read(value) for value in values]


def _rows(kind: type[tuple[Any, ...]]) -> Callable[[Any], Any]:
    """Rows come as one flat list: a nested one for each would cost Redis a table."""
    readers = [_reader(hint) for _, hint in _fields(kind)]
    width = len(readers)

    def decode(flat: Sequence[Any]) -> list[Any]:
        return [
            kind(*[read(flat[at + n]) for n, read in enumerate(readers)])
            for at in range(0, len(flat), width)
        ]

    return decode
