from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from angarium.runtime.errors import SettingInvalid
from angarium.runtime.setting_sources import setting_fields
from angarium.settings import AllLimits, Durability, Layout, Settings, load

UNKNOWN = "there is no such setting"
LIST = "docs/settings.md lists the names"
LOCK_FIX = "is not a whole number; use one such as 2000"
TAKEN = "is also the name of another key; choose another"
DATABASE_FIX = "use sqlite:///file or postgresql://user:password@host/database"
LAKE_FIX = "use a folder or a URL such as s3://bucket/lake"
REDIS_FIX = "use embedded, redis://host:6379, redis+cluster://… or redis+sentinel://…/primary"


@pytest.fixture(autouse=True)
def folder(no_settings: Path) -> Path:
    return no_settings


def refusal_of(**overrides: Any) -> str:
    with pytest.raises(SettingInvalid) as caught:
        load(**overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return message


# ── where values come from ────────────────────────────────────────────────────────────────


def test_defaults_are_those_of_the_contract(folder: Path) -> None:
    settings = load()
    assert settings.home == folder / ".angarium"
    assert settings.redis_url == "embedded"
    assert settings.database_url == f"sqlite:///{folder}/.angarium/angarium.sqlite"
    assert settings.lake_url == f"{folder}/.angarium/lake"
    assert (settings.partitions, settings.prefix) == (1, "")
    assert settings.allow_private_addresses is False
    assert (settings.http.host, settings.http.port) == ("127.0.0.1", 8400)
    assert (settings.dispatch.ack_port, settings.dispatch.ack_timeout_ms) == (8301, 2000)
    assert (settings.dispatch.lock_ms, settings.pickup.port) == (2000, 3100)
    assert settings.routing.inbound == (("http", "127.0.0.1", 8071), ("ws", "127.0.0.1", 8081))
    assert settings.routing.layout is Layout.NATIVE
    assert settings.limits == AllLimits()


def test_the_environment_is_read_under_the_names_of_the_contract(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_values = {
        "ANGARIUM_HOME": "/data",
        "ANGARIUM_REDIS_URL": "redis://h:1",
        "ANGARIUM_DATABASE_URL": "postgresql://h/db",
        "ANGARIUM_LAKE_URL": "s3://bucket/lake",
        "ANGARIUM_PARTITIONS": "16",
        "ANGARIUM_PREFIX": "app:",
        "ANGARIUM_DURABILITY": "local",
        "ANGARIUM_HTTP__HOST": "0.0.0.0",
        "ANGARIUM_HTTP__PORT": "0",
        "ANGARIUM_PICKUP__PORT": "3101",
        "ANGARIUM_PICKUP__PUSH_URL": "http://push/send",
        "ANGARIUM_DISPATCH__CHANNEL": "in",
        "ANGARIUM_DISPATCH__ACK_PORT": "8302",
        "ANGARIUM_DISPATCH__ACK_TIMEOUT_MS": "500",
        "ANGARIUM_DISPATCH__LOCK_MS": "1500",
        "ANGARIUM_DISPATCH__CONSUMERS": "a:1,b:2",
        "ANGARIUM_ROUTING__INBOUND": '[["http","0.0.0.0","8021"]]',
        "ANGARIUM_ROUTING__LAYOUT": "acapy",
        "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
        "ANGARIUM_LIMITS__BATCH_ITEMS_MAX": "7",
    }
    for name, value in given_values.items():
        monkeypatch.setenv(name, value)
    settings = load()
    assert settings.home == Path("/data")
    assert settings.redis_url == "redis://h:1"
    assert settings.database_url == "postgresql://h/db"
    assert settings.lake_url == "s3://bucket/lake"
    assert (settings.partitions, settings.prefix) == (16, "app:")
    assert settings.durability is Durability.LOCAL
    assert (settings.http.host, settings.http.port) == ("0.0.0.0", 0)
    assert (settings.pickup.port, settings.pickup.push_url) == (3101, "http://push/send")
    assert (settings.dispatch.channel, settings.dispatch.ack_port) == ("in", 8302)
    assert (settings.dispatch.ack_timeout_ms, settings.dispatch.lock_ms) == (500, 1500)
    assert settings.dispatch.consumers == ("a:1", "b:2")
    assert settings.routing.inbound == (("http", "0.0.0.0", 8021),)
    assert settings.routing.layout is Layout.ACAPY
    assert settings.allow_private_addresses is True
    assert settings.limits == AllLimits(batch_items_max=7)


def test_keywords_beat_the_environment_which_beats_the_file(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (folder / "angarium.toml").write_text(
        'prefix = "file:"\n[dispatch]\nlock_ms = 300\nack_port = 1\nchannel = "file"\n'
        "[limits]\nid_bytes_max = 9\n"
    )
    monkeypatch.setenv("ANGARIUM_DISPATCH__LOCK_MS", "400")
    monkeypatch.setenv("ANGARIUM_DISPATCH__ACK_PORT", "2")
    monkeypatch.setenv("ANGARIUM_LIMITS__BATCH_ITEMS_MAX", "8")
    settings = load(dispatch={"ack_port": 3}, limits={"batch_bytes_max": 7})
    assert settings.prefix == "file:"
    assert settings.dispatch.channel == "file"
    assert settings.dispatch.lock_ms == 400
    assert settings.dispatch.ack_port == 3
    assert settings.limits == AllLimits(id_bytes_max=9, batch_items_max=8, batch_bytes_max=7)


def test_the_file_may_be_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "angarium.toml").write_text("partitions = 2")
    (folder / "other.toml").write_text("partitions = 3")
    monkeypatch.setenv("ANGARIUM_CONFIG", "other.toml")
    assert load().partitions == 3


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANGARIUM_PARTITIONS", "")
    monkeypatch.setenv("ANGARIUM_CONFIG", "")
    monkeypatch.setenv("ANGARIUM_REDIS_URL", "")
    monkeypatch.setenv("REDIS_SERVER_URL", "redis://h")
    settings = load()
    assert (settings.partitions, settings.redis_url) == (1, "redis://h")


def test_the_database_and_the_lake_follow_the_home_folder() -> None:
    settings = load(home="/data")
    assert settings.database_url == "sqlite:////data/angarium.sqlite"
    assert settings.lake_url == "/data/lake"


def test_a_relative_home_is_fixed_to_the_folder_it_was_given_in(folder: Path) -> None:
    assert load(home="here").home == folder / "here"
    assert load(home="~/there").home == Path("~/there").expanduser()


def test_settings_can_not_be_changed() -> None:
    settings = load()
    with pytest.raises(ValueError, match="frozen"):
        settings.partitions = 3  # type: ignore[misc]


# ── former names ──────────────────────────────────────────────────────────────────────────

AURA_DEFAULTS = {
    "AWAITED_MESSAGE_TTL": 900_000,
    "AWAITED_MESSAGES_BY_TURN": 15,
    "AWAITED_MESSAGES_INTERVAL": 20_000,
    "AWAITED_RETRIES_FACTOR": 1,
    "AWAITED_TIME_WHEN_RETRIES_END": 5_000,
    "CHECK_QUEUE_INTERVAL": 1_000,
    "CONCURRENT": 25,
    "CONCURRENT_FACTOR": 2,
    "INTERVAL": 200,
    "MAX_PENDING_TTL": 30_000,
    "MAX_PENDING_TTL_MARGIN": 5_000,
    "MAX_RETRIES": 100,
    "MESSAGE_TTL": 10_000,
    "SENT_MESSAGE_TTL": 5_000,
    "METRICS_PARTIAL_INTERVAL": 30_000,
}


@pytest.mark.parametrize(("name", "default"), AURA_DEFAULTS.items())
def test_every_queue_variable_has_its_default_and_both_names(
    monkeypatch: pytest.MonkeyPatch, name: str, default: int
) -> None:
    field = name.lower()
    assert getattr(load().conversations, field) == default
    monkeypatch.setenv(f"AURA_QUEUE_MANAGER_{name}", "77")
    assert getattr(load().conversations, field) == 77
    monkeypatch.delenv(f"AURA_QUEUE_MANAGER_{name}")
    monkeypatch.setenv(f"ANGARIUM_CONVERSATIONS__{name}", "78")
    assert getattr(load().conversations, field) == 78


@pytest.mark.parametrize(
    ("name", "group", "field", "default", "value"),
    [
        ("THRESHOLD_TIMESTAMP", "pickup", "threshold_timestamp", 60_000, 5),
        ("TOPIC_PREFIX", "routing", "topic_prefix", "acapy", "edge"),
        ("STATUS_ENDPOINT_HOST", "routing", "status_host", None, "0.0.0.0"),
        ("STATUS_ENDPOINT_PORT", "routing", "status_port", None, 7002),
        ("EXTERNALID_UNIQUENESS_PERIOD", "transactions", "externalid_uniqueness_period", 21600, 5),
        ("DELAY_BEFORE_ARCHIVING", "transactions", "delay_before_archiving", 1200, 0),
        (
            "PERSISTING_PERMISSION_LOCK1_PERIOD",
            "transactions",
            "persisting_permission_lock1_period",
            60,
            50,
        ),
        (
            "PERSISTING_PERMISSION_LOCK2_PERIOD",
            "transactions",
            "persisting_permission_lock2_period",
            90,
            70,
        ),
        ("MAX_WEBHOOK_RETRIES", "transactions", "max_webhook_retries", 8, 3),
        ("KEYSPACE_WEBHOOK_FAIL_LIMIT", "transactions", "webhook_fail_limit", 10, 3),
        ("KEYSPACE_WEBHOOK_FAIL_PERIOD", "transactions", "webhook_fail_period", 120, 3),
        ("KEYSPACE_WEBHOOK_DISABLE_PERIOD", "transactions", "webhook_disable_period", 300, 3),
    ],
)
def test_names_of_the_systems_we_replace_are_understood(
    monkeypatch: pytest.MonkeyPatch, name: str, group: str, field: str, default: Any, value: Any
) -> None:
    assert getattr(getattr(load(), group), field) == default
    monkeypatch.setenv(name, str(value))
    assert getattr(getattr(load(), group), field) == value


def test_the_former_variables_of_the_relay_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_SERVER_URL", "redis://h:1/0")
    monkeypatch.setenv("INBOUND_TRANSPORT_CONFIG", '[["ws", "0.0.0.0", "8023"]]')
    monkeypatch.setenv("STATUS_ENDPOINT_API_KEY", "test1234")
    settings = load()
    assert settings.redis_url == "redis://h:1/0"
    assert settings.routing.inbound == (("ws", "0.0.0.0", 8023),)
    assert settings.routing.status_api_key is not None
    assert settings.routing.status_api_key.get_secret_value() == "test1234"


def test_two_names_with_one_value_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHOLD_TIMESTAMP", "5")
    monkeypatch.setenv("ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP", "5 ")
    assert load().pickup.threshold_timestamp == 5


def test_two_names_with_different_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_SERVER_URL", "redis://:secret@a")
    monkeypatch.setenv("ANGARIUM_REDIS_URL", "redis://:secret@b")
    assert refusal_of() == (
        "ANGARIUM_REDIS_URL and REDIS_SERVER_URL: they have different values; keep one of them"
    )


def test_an_error_names_the_former_name_when_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AURA_QUEUE_MANAGER_MESSAGE_TTL", "10s")
    assert refusal_of() == (
        "AURA_QUEUE_MANAGER_MESSAGE_TTL: '10s' is not a whole number; use one such as 10000"
    )


@pytest.mark.parametrize(
    "name", ["AURA_QUEUE_MANAGER_DATABASE", "ANGARIUM_CONVERSATIONS__DATABASE"]
)
def test_only_redis_keeps_the_queue(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "REDIS")
    assert load().conversations.database == "REDIS"
    monkeypatch.setenv(name, "MONGODB")
    assert refusal_of() == f"{name}: MONGODB is not supported; set it to REDIS, or leave it out"
    monkeypatch.setenv(name, "ORACLE")
    assert refusal_of() == f"{name}: 'ORACLE' is not a choice; use 'REDIS'"


# ── unknown names ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("ANGARIUM_DISPATCH__LOK_MS", "did you mean ANGARIUM_DISPATCH__LOCK_MS?"),
        ("ANGARIUM_DISPATCH_LOCK_MS", "did you mean ANGARIUM_DISPATCH__LOCK_MS?"),
        ("ANGARIUM_REDISURL", "did you mean ANGARIUM_REDIS_URL?"),
        ("ANGARIUM_PORT", "did you mean ANGARIUM_HTTP__PORT?"),
        ("angarium_home", "did you mean ANGARIUM_HOME?"),
        ("ANGARIUM_ZZZ", "docs/settings.md lists the names"),
        ("ANGARIUM_", "docs/settings.md lists the names"),
    ],
)
def test_an_unknown_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, fix: str
) -> None:
    monkeypatch.setenv(name, "8400")
    assert refusal_of() == f"{name}: there is no such setting; {fix}"


def test_a_group_is_not_set_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANGARIUM_DISPATCH", '{"lock_ms": 500}')
    assert refusal_of().startswith("ANGARIUM_DISPATCH: there is no such setting; did you mean")


def test_variables_of_other_programs_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load()
    monkeypatch.setenv("AURA_QUEUE_MANAGER_UNHEARD_OF", "1")
    monkeypatch.setenv("ANGARIUMS", "1")
    assert load() == before


def test_variables_that_kubernetes_makes_for_a_service_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = load()
    for name, value in {
        "ANGARIUM_SERVICE_HOST": "10.0.0.1",
        "ANGARIUM_SERVICE_PORT": "8400",
        "ANGARIUM_REDIS_SERVICE_PORT_CLIENT": "6379",
        "ANGARIUM_PORT": "tcp://10.0.0.1:8400",
        "ANGARIUM_PORT_8400_TCP": "tcp://10.0.0.1:8400",
        "ANGARIUM_REDIS_PORT_6379_TCP_ADDR": "10.0.0.2",
    }.items():
        monkeypatch.setenv(name, value)
    assert load() == before


@pytest.mark.parametrize(
    ("text", "setting", "rest"),
    [
        ("[dispatch]\nlok_ms = 1", "dispatch.lok_ms", f"{UNKNOWN}; did you mean dispatch.lock_ms?"),
        ("dispach.lock_ms = 1", "dispach", f"{UNKNOWN}; did you mean dispatch.lock?"),
        ("[zzz]\nx = 1", "zzz", f"{UNKNOWN}; {LIST}"),
        ('"a\\nb" = 1', "a\\nb", f"{UNKNOWN}; {LIST}"),
        (
            "[limits]\nid_byte_max = 1",
            "limits.id_byte_max",
            f"{UNKNOWN}; did you mean limits.id_bytes_max?",
        ),
        (
            "dispatch = 3",
            "dispatch",
            "the value is not a group of settings; set its members one by one",
        ),
        ("[dispatch]\nlock_ms = 3", "dispatch.lock_ms", "'3' is less than 100; use at least 100"),
        (
            "[dispatch]\nlock_ms = 2.5",
            "dispatch.lock_ms",
            "'2.5' is not a whole number; use one such as 2000",
        ),
        ("prefix = 3", "prefix", "'3' is not text; put it in quotes"),
        ("home = 3", "home", "'3' is not text; put it in quotes"),
        (
            'home = ""',
            "home",
            "it is not the name of a folder; leave it out to use ./.angarium",
        ),
        ("partitions = [1]", "partitions", "'[1]' is not a whole number; use one such as 1"),
        ("[limits]\nid_bytes_max = 0", "limits.id_bytes_max", "'0' is less than 1; use at least 1"),
        (
            "[pickup]\npush_allowed = ['ftp://x']",
            "pickup.push_allowed",
            "the scheme 'ftp' is not known; use a URL such as https://host/path",
        ),
    ],
)
def test_a_mistake_in_the_file_is_refused(folder: Path, text: str, setting: str, rest: str) -> None:
    (folder / "angarium.toml").write_text(text)
    assert refusal_of() == f"{setting} in angarium.toml: {rest}"


def test_a_file_that_is_not_toml_is_refused(folder: Path) -> None:
    (folder / "angarium.toml").write_text("partitions = ")
    assert refusal_of() == (
        "angarium.toml: it is not TOML: Invalid value (at end of document); "
        "correct it or move it away"
    )


def test_a_file_that_is_not_text_is_refused(folder: Path) -> None:
    (folder / "angarium.toml").write_bytes(b"\xff")
    assert refusal_of() == (
        "angarium.toml: angarium.toml can't be read as text; "
        "make it a readable file or move it away"
    )


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "partitions = 1" + "0" * 5_000])
def test_a_file_made_to_break_the_parser_is_refused(folder: Path, text: str) -> None:
    (folder / "angarium.toml").write_text(text)
    assert refusal_of().startswith("angarium.toml: it is not TOML: ")


def test_a_named_file_that_is_missing_is_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("ANGARIUM_CONFIG", "nowhere.toml")
    assert refusal_of() == (
        "ANGARIUM_CONFIG: there is no file nowhere.toml; correct the path or unset it"
    )
    monkeypatch.setenv("ANGARIUM_CONFIG", str(folder))
    assert refusal_of().startswith(f"ANGARIUM_CONFIG: {folder} can't be read as text; ")


def test_an_error_in_a_named_file_contains_its_name(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (folder / "prod.toml").write_text("partitions = 0")
    monkeypatch.setenv("ANGARIUM_CONFIG", "prod.toml")
    assert refusal_of() == "partitions in prod.toml: '0' is less than 1; use at least 1"


def test_an_unknown_keyword_is_refused() -> None:
    assert refusal_of(partition=3) == (
        "partition: there is no such setting; did you mean partitions?"
    )
    assert refusal_of(dispatch={"lok_ms": 3}) == (
        "dispatch.lok_ms: there is no such setting; did you mean dispatch.lock_ms?"
    )
    assert refusal_of(limits={"nothing": 3}).startswith("limits.nothing: there is no such setting")


# ── values ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "value", "rest"),
    [
        ("DISPATCH__LOCK_MS", "abc", f"'abc' {LOCK_FIX}"),
        ("DISPATCH__LOCK_MS", "1.5", f"'1.5' {LOCK_FIX}"),
        ("DISPATCH__LOCK_MS", "9" * 5000, f"'{'9' * 60}…' {LOCK_FIX}"),
        ("DISPATCH__LOCK_MS", "a\nb", f"'a\\nb' {LOCK_FIX}"),
        ("DISPATCH__LOCK_MS", "99", "'99' is less than 100; use at least 100"),
        ("DISPATCH__LOCK_MS", "60001", "'60001' is more than 60000; use at most 60000"),
        ("HTTP__PORT", "65536", "'65536' is more than 65535; use at most 65535"),
        ("HTTP__PORT", "-1", "'-1' is less than 0; use at least 0"),
        ("ROUTING__STATUS_PORT", "x", "'x' is not a whole number; use one"),
        ("PARTITIONS", "0", "'0' is less than 1; use at least 1"),
        ("PARTITIONS", "16385", "'16385' is more than 16384; use at most 16384"),
        ("LIMITS__BATCH_ITEMS_MAX", "0", "'0' is less than 1; use at least 1"),
        ("LIMITS__BATCH_ITEMS_MAX", "many", "'many' is not a whole number; use one such as 500"),
        ("CONVERSATIONS__CONCURRENT_FACTOR", "x", "'x' is not a number; use one such as 2"),
        ("CONVERSATIONS__CONCURRENT_FACTOR", "0", "'0' is not more than 0; use more than 0"),
        ("CONVERSATIONS__CONCURRENT_FACTOR", "nan", "'nan' is not a number; use one such as 2"),
        ("TRANSACTIONS__WEBHOOK_RETRY_FACTOR", "0.5", "'0.5' is less than 1; use at least 1"),
        ("JOURNAL__ENABLED", "maybe", "'maybe' is neither true nor false; use true or false"),
        ("DURABILITY", "disk", "'disk' is not a choice; use 'memory', 'local' or 'replica'"),
        ("ROUTING__LAYOUT", "old", "'old' is not a choice; use 'native' or 'acapy'"),
        ("REDIS_URL", "localhost:6379", f"it is not a URL; {REDIS_FIX}"),
        ("REDIS_URL", "memcached://h", f"the scheme 'memcached' is not known; {REDIS_FIX}"),
        ("REDIS_URL", "redis://h:x", f"its server is not host:port; {REDIS_FIX}"),
        ("DATABASE_URL", "mysql://h/d", f"the scheme 'mysql' is not known; {DATABASE_FIX}"),
        ("LAKE_URL", "s3://", f"it is neither a folder nor a URL; {LAKE_FIX}"),
        ("PICKUP__PUSH_URL", "push", "it is not a URL; use a URL such as https://host/path"),
        ("PREFIX", "a{b", "'{' is not allowed in it; leave out the braces"),
        ("PREFIX", "a}", "'}' is not allowed in it; leave out the braces"),
        ("PREFIX", "a b", "' ' is not allowed in it; leave out spaces and line ends"),
        ("PREFIX", "a\n", "'\\n' is not allowed in it; leave out spaces and line ends"),
        ("PREFIX", "a" * 65, "its 65 bytes are more than 64; choose a shorter one"),
        ("PREFIX", "é" * 33, "its 66 bytes are more than 64; choose a shorter one"),
        ("DISPATCH__CHANNEL", "a{p1}", "'{' is not allowed in it; leave out the braces"),
        ("DISPATCH__CHANNEL", "a" * 257, "its 257 bytes are more than 256; choose a shorter one"),
        ("DISPATCH__DEAD", "messages:processed", f"'messages:processed' {TAKEN}"),
        ("DISPATCH__STREAM", "journal", f"'journal' {TAKEN}"),
    ],
)
def test_a_value_that_can_not_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, rest: str
) -> None:
    monkeypatch.setenv(f"ANGARIUM_{name}", value)
    assert refusal_of() == f"ANGARIUM_{name}: {rest}"


def test_the_grace_period_must_outlast_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSISTING_PERMISSION_LOCK2_PERIOD", "60")
    assert refusal_of() == (
        "PERSISTING_PERMISSION_LOCK2_PERIOD: 60 s leave no grace after the 60 s of work; "
        "make it longer than persisting_permission_lock1_period"
    )


def test_an_empty_name_is_refused() -> None:
    assert refusal_of(dispatch={"channel": ""}) == (
        "dispatch.channel: it is empty; give it a name or leave it out"
    )


@pytest.mark.limit("prefix_bytes_max")
def test_the_length_of_a_prefix_is_a_limit_like_any_other() -> None:
    assert load(prefix="a" * 65, limits={"prefix_bytes_max": 65}).prefix == "a" * 65
    assert "more than 3" in refusal_of(prefix="aaaa", limits={"prefix_bytes_max": 3})


@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster"])
def test_a_cluster_needs_more_than_one_partition(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("ANGARIUM_REDIS_URL", f"{scheme}://a:1,b:2")
    assert refusal_of() == (
        "ANGARIUM_PARTITIONS: one partition can't be used on a cluster, its keys carry no hash "
        "tag; set it to at least 2, 16 is a good start"
    )
    assert load(partitions=2).partitions == 2


# ── secrets ───────────────────────────────────────────────────────────────────────────────


def test_no_secret_is_printed_with_the_settings() -> None:
    settings = load(
        redis_url="redis://user:s3cr3t@host",
        database_url="postgresql://user:s3cr3t@host/db",
        lake_url="s3://key:s3cr3t@bucket/lake",
        pickup={
            "push_url": "https://user:s3cr3t@host",
            "push_allowed": ["https://u:s3cr3t@host"],
        },
        routing={"status_api_key": "s3cr3t"},
    )
    assert settings.redis_url == "redis://user:s3cr3t@host"
    for text in (repr(settings), str(settings), repr(settings.pickup), str(settings.routing)):
        assert "s3cr3t" not in text
    assert "redis://user:***@host" in repr(settings)


@pytest.mark.parametrize(
    "overrides",
    [
        {"redis_url": "redis://:s3cr3t"},
        {"redis_url": "redis://user:s3cr3t@host:x"},
        {"redis_url": "redis://user:s3/cr3t@s3cr3t"},
        {"redis_url": "s3cr3t"},
        {"redis_url": {"s3cr3t": 1}},
        {"database_url": "postgresql://u:s3cr3t@host:x/d"},
        {"pickup": {"push_url": "https://u:s3cr3t@host:x"}},
        {"routing": {"status_api_key": ["s3cr3t"]}},
        {"routing": "s3cr3t"},
    ],
)
def test_no_secret_is_printed_with_an_error(overrides: dict[str, Any]) -> None:
    message = refusal_of(**overrides)
    if overrides != {"redis_url": {"s3cr3t": 1}}:
        assert "s3cr3t" not in message


def test_every_setting_is_described() -> None:
    for entry in setting_fields(Settings):
        assert entry.description.endswith("."), entry.variable
