"""Settings of the runtime: HTTP, Redis, the journal, durability."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from angarium.runtime.limits import MIB
from angarium.runtime.setting_group import Group, Port, Positive
from angarium.runtime.setting_values import read_list


class AccessMode(StrEnum):
    AUTO = "auto"  # open on loopback until there is a token, and never again
    OPEN = "open"  # open on loopback, whatever tokens there are or were
    TOKENS = "tokens"  # nobody comes in without a token, not even before the first one


class HttpSettings(Group):
    host: str = Field("127.0.0.1", description="Address the API and the dashboard listen on.")
    port: Port = Field(8400, description="Port of the API and the dashboard; 0 takes a free one.")
    tokens: Annotated[tuple[SecretStr, ...], BeforeValidator(read_list)] = Field(
        (),
        description="Bearer tokens of the API as `scope:token` or `scope@tenant:token`, the token "
        "as it is or as `sha256=` and its hash; more are made by `angarium token create`.",
    )


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
