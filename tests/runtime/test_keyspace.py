from __future__ import annotations

import zlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from redis.crc import key_slot
from tools import reference

from angarium.conversations import keys as conversations_keys
from angarium.dispatch import keys as dispatch_keys
from angarium.modules import MODULES
from angarium.routing import keys as routing_keys
from angarium.runtime import keys
from angarium.runtime.keyspace import Key, Keyspace, Scope, Shape
from angarium.settings import load
from angarium.transactions import keys as transactions_keys

KEYS = [key for module in MODULES for key in module.keys]
PARTITIONED = [key for key in KEYS if key.scope is Scope.PARTITION]
prefixes = st.sampled_from(["", "app:", "t3f9", "stateH:"])
ids = st.text(min_size=1)


def parts_of(key: Key, identifier: str) -> tuple[str, ...]:
    return (identifier,) * Shape.of(key.name).parts


def test_with_one_partition_names_are_spelled_as_declared() -> None:
    space = Keyspace("", 1)
    assert space.name(transactions_keys.STATE, 0, "tx1") == "stateH:tx1"
    assert space.name(dispatch_keys.MESSAGES_PENDING) == "messages:pending"
    assert (
        space.name(conversations_keys.CONVERSATION_REQUESTS, 0, "conv-01")
        == "bridge:queue:conv-01:req"
    )
    assert (
        space.name(conversations_keys.CONVERSATION_RESPONSES, 0, "conv-01")
        == "bridge:queue:conv-01"
    )
    assert space.name(routing_keys.INBOUND, 0, "key") == "acapy_inbound_key"


def test_the_names_of_the_five_systems_are_kept_exactly() -> None:
    declared = {key.name.partition("{")[0] for key in KEYS}
    assert declared >= {
        *("uid_recip_key_pending_msg_count", "round_robin_iterator", "uid_recip_keys_map"),
        *("recip_key_uid_map", "uid_last_access_map"),
        *("messages:published", "messages:processed", "messages:pending", "messages:dead"),
        *("messages:inbox", "consumer:ids", "distributed_leader_lock"),
        *("bridge:queue:", "bridge:queue:req:", "bridge:queue:res:"),
        *("bridge:queue:pendingMessages", "bridge:queue:asyncRequest:"),
        *("pipelineH:", "stateH:", "processingZ", "qInL:", "qOutL:", "qAdminL:", "externalId:"),
        *("stats1H:", "stats2H:", "stats3H:", "sleepingZ", "toArchiveZ", "toArchiveLock1"),
        *("toArchiveLock2", "webhooksZ", "webhookCounter:"),
    }


def test_the_letter_at_the_end_of_a_transaction_key_is_its_type() -> None:
    letters = {"H": "hash", "L": "list", "Z": "zset"}
    for key in transactions_keys.KEYS:
        last = key.name.partition(":")[0][-1]
        if last in letters:
            assert key.type == letters[last], key.name


def test_with_more_partitions_the_hash_tag_comes_first() -> None:
    space = Keyspace("app:", 4)
    assert space.name(transactions_keys.STATE, 3, "tx1") == "{p3}:app:stateH:tx1"
    assert space.name(keys.JOURNAL, 0) == "{p0}:app:journal"


def test_a_key_of_the_keyspace_has_no_tag_and_a_key_of_the_server_has_no_prefix() -> None:
    space = Keyspace("app:", 4)
    assert space.global_name(keys.LAYOUT) == "app:angarium:layout"
    assert space.global_name(keys.KEYSPACES) == "angarium:keyspaces"
    assert space.global_name(dispatch_keys.MESSAGES_PUBLISHED) == "app:messages:published"


def test_a_key_is_only_named_in_its_own_scope() -> None:
    space = Keyspace("", 2)
    with pytest.raises(TypeError, match="exists once per keyspace"):
        space.name(keys.LAYOUT)
    with pytest.raises(TypeError, match="exists once per partition"):
        space.global_name(keys.JOURNAL)


def test_a_missing_or_superfluous_part_is_refused() -> None:
    space = Keyspace("", 1)
    with pytest.raises(TypeError, match=r"stateH:\{transaction_id\} takes 1 parts, not 0"):
        space.name(transactions_keys.STATE)
    with pytest.raises(TypeError, match="journal takes 0 parts, not 1"):
        space.name(keys.JOURNAL, 0, "x")
    with pytest.raises(TypeError, match="angarium:layout takes 0 parts, not 1"):
        space.global_name(keys.LAYOUT, "x")


def test_a_partition_that_does_not_exist_has_no_names() -> None:
    with pytest.raises(IndexError):
        Keyspace("", 2).name(keys.JOURNAL, 2)


def test_a_key_has_at_most_one_placeholder() -> None:
    with pytest.raises(ValueError, match="more than one placeholder"):
        Key("{a}:{b}", "string", "runtime", "")


def test_an_override_must_keep_the_placeholder() -> None:
    assert (
        Keyspace("", 1, {transactions_keys.STATE: "tx:{id}:s"}).name(
            transactions_keys.STATE, 0, "7"
        )
        == "tx:7:s"
    )
    with pytest.raises(ValueError, match="must have the placeholder"):
        Keyspace("", 1, {transactions_keys.STATE: "tx"})


def test_names_that_can_be_set_follow_the_settings() -> None:
    settings = load(
        prefix="app:",
        dispatch={"channel": "in", "pending": "todo", "lock": "boss", "stream": "done"},
        conversations={"prefix": "chat"},
        routing={"topic_prefix": "edge"},
    )
    space = settings.runtime_options().keyspace
    assert space.global_name(dispatch_keys.MESSAGES_PUBLISHED) == "app:in"
    assert space.name(dispatch_keys.MESSAGES_PROCESSED) == "app:done"
    assert space.name(dispatch_keys.MESSAGES_PENDING) == "app:todo"
    assert space.name(dispatch_keys.MESSAGES_PAYLOADS) == "app:todo:payloads"
    assert space.name(dispatch_keys.MESSAGES_ATTEMPTS) == "app:todo:attempts"
    assert space.name(dispatch_keys.LEADER_LOCK) == "app:boss"
    assert space.name(dispatch_keys.LEADER_LOCK_TERM) == "app:boss:term"
    assert space.name(conversations_keys.PENDING_MESSAGES) == "app:chat:pendingMessages"
    assert space.name(conversations_keys.CONVERSATION_REQUESTS, 0, "c") == "app:chat:c:req"
    assert space.name(routing_keys.INBOUND, 0, "key") == "app:edge_inbound_key"
    assert space.name(routing_keys.OUTBOUND_RETRY) == "app:edge_outbound_retry"
    assert space.name(routing_keys.RECIP_KEY_UID) == "app:recip_key_uid_map"


def test_the_default_settings_change_no_name() -> None:
    space = load(prefix="app:").runtime_options().keyspace
    for key in PARTITIONED:
        assert space.name(key, 0, *parts_of(key, "x")) == Keyspace("app:", 1).name(
            key, 0, *parts_of(key, "x")
        )


@given(identifier=st.text(), partitions=st.integers(1, 64))
def test_the_partition_of_an_id_never_changes(identifier: str, partitions: int) -> None:
    # The formula is spelled out: another one would lose what is already stored.
    expected = zlib.crc32(identifier.encode()) % partitions
    space = Keyspace("", partitions)
    assert space.partition_of(identifier) == expected
    assert space.partition_of(identifier.encode()) == expected


def test_ids_spread_evenly_over_the_partitions() -> None:
    space = Keyspace("", 16)
    counts = [0] * 16
    for number in range(16_000):
        counts[space.partition_of(f"conversation-{number}")] += 1
    assert min(counts) > 800
    assert max(counts) < 1_200


@given(prefix=prefixes, partition=st.integers(0, 7), identifier=ids)
def test_all_keys_of_a_partition_are_in_one_cluster_slot(
    prefix: str, partition: int, identifier: str
) -> None:
    space = Keyspace(prefix, 8)
    names = [space.name(key, partition, *parts_of(key, identifier)) for key in PARTITIONED]
    # The client's own hashing of the bytes it would send, against the slot of the bare tag.
    assert {key_slot(name.encode()) for name in names} == {key_slot(f"p{partition}".encode())}


@given(
    prefix=prefixes,
    partitions=st.sampled_from([1, 2, 11]),
    key=st.sampled_from(PARTITIONED),
    number=st.integers(0, 10),
    identifier=ids,
)
def test_a_name_leads_back_to_its_key_partition_and_id(
    prefix: str, partitions: int, key: Key, number: int, identifier: str
) -> None:
    space = Keyspace(prefix, partitions, keys=KEYS)
    partition = number % partitions
    name = space.name(key, partition, *parts_of(key, identifier))
    found = space.explain(name)
    assert found is not None
    # An id directly follows the conversations prefix, so its name may equal another key.
    assume(found.key is key or key in (*conversations_keys.KEYS, *routing_keys.KEYS))
    if found.key is key:
        assert found == (key, partition, *(parts_of(key, identifier) or (None,)))


@given(
    identifier=st.from_regex(r"[A-Za-z0-9_-]{6,40}", fullmatch=True), partition=st.integers(0, 3)
)
def test_names_of_ordinary_ids_never_meet(identifier: str, partition: int) -> None:
    assume(identifier not in ("pendingMessages", "direct_resp"))
    space = Keyspace("app:", 4, keys=KEYS)
    names = [space.name(key, partition, *parts_of(key, identifier)) for key in PARTITIONED]
    assert len(set(names)) == len(names)
    for key, name in zip(PARTITIONED, names, strict=True):
        assert space.explain(name) == (key, partition, *(parts_of(key, identifier) or (None,)))


def test_the_fixed_parts_of_all_keys_differ() -> None:
    shapes = [Shape.of(key.name) for key in KEYS]
    assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize(
    ("key", "identifier"),
    [
        (conversations_keys.CONVERSATION_RESPONSES, "pendingMessages"),
        (conversations_keys.CONVERSATION_RESPONSES, "req:rq-1"),
        (conversations_keys.CONVERSATION_RESPONSES, "other:req"),
        (conversations_keys.CONVERSATION_REQUESTS, "res:rs-1"),
        (routing_keys.INBOUND, "direct_resp"),
    ],
)
def test_an_id_that_spells_another_key_is_found_out(key: Key, identifier: str) -> None:
    space = Keyspace("", 1, keys=KEYS)
    found = space.explain(space.name(key, 0, identifier))
    assert found is not None
    assert found.key is not key


def test_foreign_names_are_not_explained() -> None:
    space = Keyspace("app:", 4, keys=KEYS)
    for name in ["journal", "app:journal", "{p4}:app:journal", "{p1}:journal", "{px}:app:journal"]:
        assert space.explain(name) is None
    assert space.explain("{p1}:app:journal") == (keys.JOURNAL, 1, None)
    assert space.explain("app:angarium:layout") == (keys.LAYOUT, 0, None)
    assert space.explain("angarium:keyspaces") == (keys.KEYSPACES, 0, None)


@given(name=st.text())
def test_any_name_can_be_asked_about(name: str) -> None:
    for found in (
        Keyspace("", 3, keys=KEYS).explain("{p" + name),
        Keyspace("", 1, keys=KEYS).explain(name),
    ):
        assert found is None or (found.key in KEYS and 0 <= found.partition < 3)


def test_every_key_says_what_it_holds_and_whose_it_is() -> None:
    for key in KEYS:
        assert key.meaning[0].isupper() or key.meaning[0] == "`", key.name
        assert not key.meaning.endswith("."), key.name
        assert key.expiry, key.name


def test_the_reference_pages_are_up_to_date() -> None:
    assert reference.outdated() == [], f"run {reference.COMMAND}"


def test_an_outdated_page_is_reported_and_not_written(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "DOCS", tmp_path)
    assert reference.main(["--check"]) == 1
    assert (
        "docs/keyspace.md is out of date; run python tools/reference.py" in capsys.readouterr().err
    )
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0


def test_the_reference_tool_refuses_arguments_it_does_not_know() -> None:
    assert reference.main(["--chekc"]) == 2
