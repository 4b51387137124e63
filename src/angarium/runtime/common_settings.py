"""Settings of the runtime: HTTP, Redis, the journal, durability."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from angarium.runtime.limits import MIB
from angarium.runtime.setting_group import Group, Port, Positive
from angarium.runtime.setting_values import read_list


class AccessMode(StrEnum):
    AUTO = "auto"  # open on loopback until the first token exists; closed from then on
    OPEN = "open"  # open on loopback, also if tokens exist
    TOKENS = "tokens"  # every request needs a token, also before the first one exists


class HttpSettings(Group):
    host: str = Field("127.0.0.1", description="Address the API and the dashboard listen on.")
    port: Port = Field(8400, description="Port of the API and the dashboard; 0 takes a free one.")
    tokens: Annotated[tuple[SecretStr, ...], BeforeValidator(read_list)] = Field(
        (),
        description="Bearer tokens of the API as `scope:token` or `scope@tenant:token`; the token "
        "is plain text or `sha256=` and its hash. `angarium token create` adds more.",
    )


class RedisSettings(Group):
    call_timeout_ms: Positive = Field(
        5_000, description="Milliseconds a call may take before its connection is closed."
    )
    unavailable_timeout_ms: Positive = Field(
        10_000, description="Milliseconds a call waits for an unreachable Redis before it fails."
    )
    connections_max: Positive = Field(
        8, description="Connections to each Redis server for calls that need their own connection."
    )


class JournalSettings(Group):
    enabled: bool = Field(True, description="Whether transitions are written to the journal.")
    bytes_max: Positive = Field(
        256 * MIB,
        description="Bytes of the journal of a partition. Beyond this size the oldest entries are "
        "dropped and counted, even if a reader has not read them.",
    )
