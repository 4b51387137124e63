"""All settings of Angarium: their names, defaults, units and rules.

A value comes from a keyword given to `load`, else from the environment (`ANGARIUM_*`, or a
name taken over from one of the systems we replace), else from `angarium.toml`, else from the
default below. `load` answers with settings that can be used, or raises `SettingInvalid` that
names the setting as the user wrote it. Nothing here opens a connection or makes a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from angarium.core import keyspace, urls
from angarium.core.limits import MIB, Limits
from angarium.core.setting_sources import Former, Sources
from angarium.core.setting_values import (
    check,
    key_name,
    key_text,
    read_consumers,
    read_home,
    read_inbound,
    read_list,
    refusal,
)
from angarium.core.urls import redacted

__all__ = ["Durability", "Layout", "Limits", "Settings", "load", "redacted"]

Port = Annotated[int, Field(ge=0, le=65535)]
# Scripts count in doubles, which are exact up to here.
Positive = Annotated[int, Field(ge=1, le=2**53)]
Factor = Annotated[float, Field(gt=0, le=1_000, allow_inf_nan=False)]
Name = Annotated[str, AfterValidator(key_name)]
HttpUrl = Annotated[
    str, AfterValidator(check(urls.http_url_problem, "use a URL such as https://host/path"))
]


class Durability(StrEnum):
    MEMORY = "memory"  # Redis took it
    LOCAL = "local"  # and it is on the disk of that server
    REPLICA = "replica"  # and another server has it


class Layout(StrEnum):
    NATIVE = "native"
    ACAPY = "acapy"


class Redacting(BaseModel):
    """Shows URLs without their passwords wherever it is printed."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            if isinstance(value, str) and "url" in str(name):
                value = redacted(value)
            elif isinstance(value, tuple):
                value = tuple(redacted(v) if isinstance(v, str) else v for v in value)
            yield name, value


class Group(Redacting):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class HttpSettings(Group):
    host: str = Field("127.0.0.1", description="Address the API and the dashboard listen on.")
    port: Port = Field(8400, description="Port of the API and the dashboard; 0 takes a free one.")


class RedisSettings(Group):
    call_timeout_ms: Positive = Field(
        5_000, description="Milliseconds a call may take before its connection is given up."
    )
    unavailable_timeout_ms: Positive = Field(
        10_000, description="Milliseconds a call waits for Redis to come back before it fails."
    )
    connections_max: Positive = Field(
        8, description="Connections to each Redis server for calls that need one to themselves."
    )


class JournalSettings(Group):
    enabled: bool = Field(True, description="Whether transitions are written to the journal.")
    bytes_max: Positive = Field(
        256 * MIB,
        description="Bytes the journal of a partition may hold; beyond them the oldest entries "
        "are dropped, and counted, even when a reader has not seen them.",
    )


class DispatchSettings(Group):
    channel: Name = Field(
        keyspace.MESSAGES_PUBLISHED.name, description="Channel that publishers send to."
    )
    stream: Name = Field(
        keyspace.MESSAGES_PROCESSED.name, description="Stream of the workers' results."
    )
    pending: Name = Field(
        keyspace.MESSAGES_PENDING.name,
        description="Sorted set of unfinished messages; payloads and attempts stand beside it.",
    )
    dead: Name = Field(keyspace.MESSAGES_DEAD.name, description="Stream of messages given up.")
    consumer_ids: Name = Field(
        keyspace.CONSUMER_IDS.name, description="List of the live consumers."
    )
    lock: Name = Field(keyspace.LEADER_LOCK.name, description="Lock of a partition's leader.")
    lock_ms: int = Field(
        2_000,
        ge=100,
        le=60_000,
        description="Milliseconds after which a silent leader loses its lock.",
    )
    ack_port: Port = Field(8301, description="Port for acknowledgements; 0 takes a free one.")
    ack_timeout_ms: Positive = Field(
        2_000,
        description="Milliseconds without acknowledgement after which another worker gets the "
        "message.",
    )
    deliveries_max: Positive = Field(
        10, description="Deliveries after which an unacknowledged message is dead."
    )
    consumers: Annotated[tuple[str, ...], BeforeValidator(read_consumers)] = Field(
        (),
        description="Consumers to dial besides those that register: a list of `host:port`, or a "
        "file with one on each line.",
    )


class RoutingSettings(Group):
    layout: Layout = Field(
        Layout.NATIVE,
        description="`native`, or `acapy` to share Redis with instances of the ACA-Py plugin.",
    )
    inbound: Annotated[
        tuple[tuple[Literal["http", "ws"], str, Port], ...],
        BeforeValidator(read_inbound),
        Former("INBOUND_TRANSPORT_CONFIG"),
    ] = Field(
        (("http", "127.0.0.1", 8071), ("ws", "127.0.0.1", 8081)),
        description="Where the relay listens: a JSON list of transport, host and port.",
    )
    topic_prefix: Annotated[Name, Former("TOPIC_PREFIX")] = Field(
        keyspace.TOPIC_PREFIX,
        description="Beginning of the names of the inbound and outbound lists.",
    )
    status_host: Annotated[str | None, Former("STATUS_ENDPOINT_HOST")] = Field(
        None, description="Address of the status endpoints; without it they are not served."
    )
    status_port: Annotated[Port | None, Former("STATUS_ENDPOINT_PORT")] = Field(
        None, description="Port of the status endpoints; 0 takes a free one."
    )
    status_api_key: Annotated[SecretStr | None, Former("STATUS_ENDPOINT_API_KEY")] = Field(
        None, description="Key that callers of the status endpoints must show."
    )
    stale_after_ms: Positive = Field(
        15_000,
        description="Milliseconds of silence after which an instance with mail loses its keys.",
    )
    direct_response_timeout_ms: Positive = Field(
        15_000, description="Milliseconds a caller at the relay waits for a direct response."
    )


class ConversationsSettings(Group):
    """Fields with a former name keep its spelling; their times are in milliseconds."""

    prefix: Name = Field(
        keyspace.CONVERSATIONS_PREFIX, description="Beginning of the names of this room's keys."
    )
    awaited_message_ttl: Annotated[Positive, Former("AURA_QUEUE_MANAGER_AWAITED_MESSAGE_TTL")] = (
        Field(900_000, description="Milliseconds a reply lives before it is deleted.")
    )
    awaited_messages_by_turn: Annotated[
        Positive, Former("AURA_QUEUE_MANAGER_AWAITED_MESSAGES_BY_TURN")
    ] = Field(15, description="Awaited replies that are fetched in one turn.")
    awaited_messages_interval: Annotated[
        Positive, Former("AURA_QUEUE_MANAGER_AWAITED_MESSAGES_INTERVAL")
    ] = Field(20_000, description="Milliseconds between two turns of the awaited agent.")
    awaited_retries_factor: Annotated[
        Factor, Former("AURA_QUEUE_MANAGER_AWAITED_RETRIES_FACTOR")
    ] = Field(1, description="Factor of the back-off: retries so far × `max_pending_ttl` × this.")
    awaited_time_when_retries_end: Annotated[
        Positive, Former("AURA_QUEUE_MANAGER_AWAITED_TIME_WHEN_RETRIES_END")
    ] = Field(
        5_000, description="Milliseconds a reply is awaited once its validations are used up."
    )
    check_queue_interval: Annotated[Positive, Former("AURA_QUEUE_MANAGER_CHECK_QUEUE_INTERVAL")] = (
        Field(1_000, description="Milliseconds between checks whether the queue has gone idle.")
    )
    concurrent: Annotated[Positive, Former("AURA_QUEUE_MANAGER_CONCURRENT")] = Field(
        25, description="Replies a process works on at the same time."
    )
    concurrent_factor: Annotated[Factor, Former("AURA_QUEUE_MANAGER_CONCURRENT_FACTOR")] = Field(
        2, description="Times `concurrent`, the most replies the execution queue holds."
    )
    interval: Annotated[Positive, Former("AURA_QUEUE_MANAGER_INTERVAL")] = Field(
        200, description="Milliseconds between two passes over the queue when nothing wakes it."
    )
    max_pending_ttl: Annotated[Positive, Former("AURA_QUEUE_MANAGER_MAX_PENDING_TTL")] = Field(
        30_000, description="Milliseconds a reply may be PENDING before it is AWAITED."
    )
    max_pending_ttl_margin: Annotated[
        Positive, Former("AURA_QUEUE_MANAGER_MAX_PENDING_TTL_MARGIN")
    ] = Field(
        5_000,
        description="Milliseconds before the end of `max_pending_ttl` at which the memory queue "
        "gives a reply back.",
    )
    max_retries: Annotated[Positive, Former("AURA_QUEUE_MANAGER_MAX_RETRIES")] = Field(
        100, description="Checks whether a reply may go, before it is AWAITED."
    )
    message_ttl: Annotated[Positive, Former("AURA_QUEUE_MANAGER_MESSAGE_TTL")] = Field(
        10_000, description="Milliseconds a request lives."
    )
    sent_message_ttl: Annotated[Positive, Former("AURA_QUEUE_MANAGER_SENT_MESSAGE_TTL")] = Field(
        5_000,
        description="Milliseconds without a client's ACK after which a reply counts as sent.",
    )
    metrics_partial_interval: Annotated[
        Positive, Former("AURA_QUEUE_MANAGER_METRICS_PARTIAL_INTERVAL")
    ] = Field(30_000, description="Milliseconds covered by the queue's partial metrics.")
    database: Annotated[Literal["REDIS"], Former("AURA_QUEUE_MANAGER_DATABASE")] = Field(
        "REDIS", description="Where the queue is kept; only REDIS."
    )

    @field_validator("database", mode="before")
    @classmethod
    def _only_redis(cls, value: Any) -> Any:
        if str(value).upper() == "MONGODB":
            raise refusal("MONGODB is not supported", "set it to REDIS, or leave it out")
        return str(value).upper()


class PickupSettings(Group):
    port: Port = Field(3100, description="Port of the WebSocket gateway; 0 takes a free one.")
    threshold_timestamp: Annotated[Positive, Former("THRESHOLD_TIMESTAMP")] = Field(
        60_000, description="Milliseconds a message stays in Redis before the database has it."
    )
    grace_ms: int = Field(
        5_000,
        ge=0,
        description="Milliseconds in which the client of a replaced session may still "
        "acknowledge, before its messages are sent again.",
    )
    push_url: HttpUrl | None = Field(
        None, description="Where push notifications are posted; without it none are sent."
    )
    push_allowed: Annotated[tuple[HttpUrl, ...], BeforeValidator(read_list)] = Field(
        (), description="Notification URIs that clients may name, as a list."
    )
    push_interval_ms: Positive = Field(
        5_000, description="Milliseconds in which a token gets at most one notification."
    )


class TransactionsSettings(Group):
    """Fields with a former name keep its spelling; their periods are in seconds."""

    externalid_uniqueness_period: Annotated[Positive, Former("EXTERNALID_UNIQUENESS_PERIOD")] = (
        Field(21_600, description="Seconds in which an owner's externalId is taken.")
    )
    delay_before_archiving: Annotated[int, Field(ge=0), Former("DELAY_BEFORE_ARCHIVING")] = Field(
        1_200, description="Seconds a completed transaction stays in Redis."
    )
    persisting_permission_lock1_period: Annotated[
        Positive, Former("PERSISTING_PERMISSION_LOCK1_PERIOD")
    ] = Field(60, description="Seconds in which a node with the role is given work.")
    persisting_permission_lock2_period: Annotated[
        Positive, Former("PERSISTING_PERMISSION_LOCK2_PERIOD")
    ] = Field(
        90, description="Seconds after which another node may take the role; the rest is grace."
    )
    max_webhook_retries: Annotated[Positive, Former("MAX_WEBHOOK_RETRIES")] = Field(
        8, description="Attempts to deliver a webhook before it is given up."
    )
    webhook_retry_delay_ms: Positive = Field(
        15_000, description="Milliseconds before a webhook's second attempt."
    )
    webhook_retry_factor: Annotated[Factor, Field(ge=1)] = Field(
        1.8, description="Growth of that delay with each further attempt."
    )
    webhook_fail_limit: Annotated[Positive, Former("KEYSPACE_WEBHOOK_FAIL_LIMIT")] = Field(
        10, description="Failures in a row that disable a webhook URL."
    )
    webhook_fail_period: Annotated[Positive, Former("KEYSPACE_WEBHOOK_FAIL_PERIOD")] = Field(
        120, description="Seconds in which these failures must happen."
    )
    webhook_disable_period: Annotated[Positive, Former("KEYSPACE_WEBHOOK_DISABLE_PERIOD")] = Field(
        300, description="Seconds for which a webhook URL is disabled."
    )

    @model_validator(mode="after")
    def _grace_follows_work(self) -> Self:
        if self.persisting_permission_lock2_period <= self.persisting_permission_lock1_period:
            raise refusal(
                f"{self.persisting_permission_lock2_period} s leave no grace after the "
                f"{self.persisting_permission_lock1_period} s of work",
                "make it longer than persisting_permission_lock1_period",
                at=("transactions", "persisting_permission_lock2_period"),
            )
        return self


class Settings(Redacting, BaseSettings):
    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )

    # First: the checks of other fields read them.
    limits: Limits = Limits()
    home: Annotated[Path, BeforeValidator(read_home)] = Field(
        Path(".angarium"),
        description="Folder for everything kept on disk.",
    )
    redis_url: Annotated[str, Former("REDIS_SERVER_URL")] = Field(
        "embedded",
        description="`embedded`, or a `redis://`, `rediss://`, `redis+cluster://` or "
        "`redis+sentinel://` URL.",
    )
    database_url: str = Field(
        default_factory=lambda data: f"sqlite:///{data.get('home', '')}/angarium.sqlite",
        description="`sqlite:///` or `postgresql://` URL of the database; a file in the home "
        "folder unless set.",
    )
    lake_url: str = Field(
        default_factory=lambda data: f"{data.get('home', '')}/lake",
        description="Folder or object store of the lake; in the home folder unless set.",
    )
    partitions: int = Field(
        1,
        ge=1,
        le=16_384,
        description="Parts the keys are spread over; fixed on first use, at least 2 on a cluster.",
    )
    prefix: str = Field(
        "", description="Put in front of every key as it is, such as `app:`, to share a server."
    )
    durability: Durability = Field(
        Durability.MEMORY,
        description="What an acknowledged write has reached: `memory`, `local` (disk) or "
        "`replica`.",
    )
    allow_private_addresses: bool = Field(
        False, description="Whether outbound requests may go to private and loopback addresses."
    )
    http: HttpSettings = HttpSettings()
    dispatch: DispatchSettings = DispatchSettings()
    routing: RoutingSettings = RoutingSettings()
    conversations: ConversationsSettings = ConversationsSettings()
    pickup: PickupSettings = PickupSettings()
    transactions: TransactionsSettings = TransactionsSettings()
    journal: JournalSettings = JournalSettings()
    redis: RedisSettings = RedisSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources = Sources.read(settings_cls, {})
        return (
            init_settings,
            InitSettingsSource(settings_cls, sources.from_environment()),
            InitSettingsSource(settings_cls, dict(sources.config)),
        )

    @field_validator("redis_url")
    @classmethod
    def _redis_url_is_known(cls, value: str) -> str:
        fix = "use embedded, redis://host:6379, redis+cluster://… or redis+sentinel://…/primary"
        return check(urls.redis_url_problem, fix)(value)

    @field_validator("database_url")
    @classmethod
    def _database_url_is_known(cls, value: str) -> str:
        fix = "use sqlite:///file or postgresql://user:password@host/database"
        return check(urls.database_url_problem, fix)(value)

    @field_validator("lake_url")
    @classmethod
    def _lake_url_is_known(cls, value: str) -> str:
        return check(urls.lake_url_problem, "use a folder or a URL such as s3://bucket/lake")(value)

    @field_validator("prefix")
    @classmethod
    def _prefix_fits_into_keys(cls, value: str, info: ValidationInfo) -> str:
        limits: Limits = info.data.get("limits", Limits())
        return key_text(value, limits.prefix_bytes_max)

    @model_validator(mode="after")
    def _a_cluster_needs_partitions(self) -> Self:
        if "+cluster://" in self.redis_url and self.partitions == 1:
            raise refusal(
                "one partition can't be used on a cluster, its keys carry no hash tag",
                "set it to at least 2, 16 is a good start",
                at=("partitions",),
            )
        return self

    @model_validator(mode="after")
    def _each_key_has_its_own_name(self) -> Self:
        clash = keyspace.name_clash(self)
        if clash is not None:
            setting, name = clash
            raise refusal(f"'{name}' is also the name of another key", "choose another", setting)
        return self


def load(**overrides: Any) -> Settings:
    """Settings to start with; a group is overridden by a dict of its members."""
    sources = Sources.read(Settings, overrides)
    sources.refuse_unknown()
    try:
        return Settings(**overrides)
    except ValidationError as error:
        # Without the original: its text could show what must stay secret.
        raise sources.invalid(error) from None
