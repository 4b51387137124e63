"""Bearer tokens of the API, with their scopes and tenants.

A token comes from the settings, or from `angarium token create`, which stores its hash in Redis.
Tokens are 32 random bytes, so their hash needs neither a salt nor a slow function. A token allows
the operations of its scope and of all lower scopes; a token with a tenant only those of the tenant.

Without tokens the API and the gateway are open on loopback. Each records that it has had tokens.
After the first token, an empty list means that tokens were revoked, removed or lost, so every
request still needs one. This is recorded in two places, and each is sufficient: a file in the home
folder, which survives the loss of Redis, and a key in Redis, which processes with other home
folders read. A process that finds one of them missing writes it again. The record is never removed;
`ANGARIUM_ACCESS=open` opens both explicitly.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from angarium.runtime import keys, log
from angarium.runtime.errors import InputInvalid, NotFound, Overloaded, SettingInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition


class NewToken(NamedTuple):
    sha256: str
    record: bytes
    tokens_max: int


class OldToken(NamedTuple):
    sha256: str


STORE_TOKEN: Transition[Any] = Transition(
    "angarium.runtime",
    "store_token",
    keys={"tokens": keys.TOKENS, "seen": keys.TOKENS_SEEN},
    args=NewToken,
    replies={"stored": None, "full": None},
)
REVOKE_TOKEN: Transition[Any] = Transition(
    "angarium.runtime",
    "revoke_token",
    keys={"tokens": keys.TOKENS},
    args=OldToken,
    replies={"revoked": None, "unknown": None},
)
# Each includes those before it.
SCOPES = ("read", "write", "admin")
SETTING = "ANGARIUM_HTTP__TOKENS"
TOKEN_PREFIX = "ang_"  # so that people and scanners recognise a token
HASHED = "sha256="
TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAME_CHARS_MAX = 100


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a token allows; `tenant` None means all tenants. Does not contain the token itself."""

    name: str
    scope: str
    tenant: str | None = None
    created_ms: int = 0

    def allows(self, scope: str) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


class StoredToken(msgspec.Struct, frozen=True):
    """`id` is the beginning of the hash; `revoke` takes it."""

    id: str
    token: Token


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def checked(scope: str, tenant: str | None) -> None:
    if scope not in SCOPES:
        raise InputInvalid(f"a scope is one of {', '.join(SCOPES)}, not {scope[:40]!r}")
    if tenant is not None and not TENANT.fullmatch(tenant):
        raise InputInvalid("a tenant has 1 to 64 letters, digits or any of _.-")


def from_settings(entries: Sequence[str]) -> Mapping[str, Token]:
    """Hash → token, of entries such as `read:SECRET` or `write@acme:sha256=HASH`."""
    found: dict[str, Token] = {}
    for number, entry in enumerate(entries, 1):
        right, _, secret = entry.partition(":")
        scope, _, tenant = right.partition("@")
        try:
            checked(scope, tenant or None)
        except InputInvalid:
            # The error does not quote the entry, which is a secret.
            problem = f"entry {number} does not begin with {', '.join(SCOPES)} or SCOPE@TENANT"
            raise SettingInvalid(SETTING, problem, "write scope:token") from None
        hashed = secret.removeprefix(HASHED) if secret.startswith(HASHED) else digest(secret)
        if not secret or len(hashed) != 64:
            problem = f"entry {number} has no token after its scope"
            raise SettingInvalid(SETTING, problem, "write scope:token or scope@tenant:token")
        found[hashed] = Token(f"setting {number}", scope, tenant or None)
    return found


class TokenStore:
    """Tokens in Redis."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._name = runtime.keyspace.name(keys.TOKENS, 0)

    async def create(self, name: str, scope: str, tenant: str | None = None) -> str:
        """The new token. Only its hash is stored, so it can't be shown again."""
        checked(scope, tenant)
        if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
            raise InputInvalid(f"a name has 1 to {NAME_CHARS_MAX} printable letters")
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        record = Token(name, scope, tenant, time.time_ns() // 1_000_000)
        tokens_max = self._runtime.options.limits.tokens_max
        args = NewToken(digest(token), msgspec.json.encode(record), tokens_max)
        if await self._runtime.call(STORE_TOKEN, 0, args) == "full":
            raise Overloaded("tokens_max", tokens_max)
        return token

    async def all(self) -> Mapping[str, Token]:
        """Hash → token."""
        reply = await self._runtime.redis.call("HGETALL", self._name, key=self._name)
        return {
            hashed.decode(): msgspec.json.decode(record, type=Token)
            for hashed, record in zip(reply[::2], reply[1::2], strict=True)
        }

    async def listed(self) -> list[StoredToken]:
        found = [StoredToken(hashed[:12], token) for hashed, token in (await self.all()).items()]
        return sorted(found, key=lambda each: each.token.created_ms)

    async def revoke(self, id: str) -> None:
        """Revoke the token with this id, which `listed` returns."""

        found = [hashed for hashed in await self.all() if len(id) >= 8 and hashed.startswith(id)]
        if len(found) != 1:
            raise NotFound(f"there is no token {id[:64]!r}")
        await self._runtime.call(REVOKE_TOKEN, 0, OldToken(found[0]))


Surface = Literal["api", "gateway"]


class TokenSurface(NamedTuple):
    surface: str


REMEMBER_TOKENS: Transition[Any] = Transition(
    "angarium.runtime",
    "remember_tokens",
    keys={"seen": keys.TOKENS_SEEN},
    args=TokenSurface,
    replies={"remembered": None, "known": None},
)
FILE_TEXT = """This installation has had tokens, so every request needs one, also if none is left.
`angarium token create NAME --scope admin` creates a token of the API; tokens of the gateway are in
ANGARIUM_PICKUP__TOKENS. ANGARIUM_ACCESS=open opens both on loopback. Do not delete this file.
"""


class TokensSeen:
    """One for each process and surface (the API or the gateway)."""

    def __init__(self, runtime: Runtime, surface: Surface) -> None:
        self._runtime = runtime
        self._surface = surface
        self._name = runtime.keyspace.name(keys.TOKENS_SEEN, 0)
        self._path = file_path(runtime.settings.home, runtime.settings.prefix, surface)
        self._log = log.logger("angarium.access")
        self._warned = False
        self.ever = False

    async def look(self, *, has_tokens: bool) -> bool:
        """Whether a token exists or ever existed, in this or another process."""
        self.ever = self.ever or has_tokens or self._path.exists()
        known = await self._runtime.redis.call("HEXISTS", self._name, self._surface, key=self._name)
        self.ever = self.ever or bool(known)
        if self.ever:
            self.write_file()
            if not known:
                await self._runtime.call(REMEMBER_TOKENS, 0, TokenSurface(self._surface))
        return self.ever

    def write_file(self) -> None:
        if self._path.exists():
            return
        try:
            _write_atomically(self._path, FILE_TEXT)
        except OSError as error:
            # The key in Redis is enough, and this process knows it while it runs.
            if not self._warned:
                self._warned = True
                self._log.warning("tokens_seen_not_written", path=str(self._path), error=str(error))


def file_path(home: Path, prefix: str, surface: Surface) -> Path:
    """Each prefix has its own file, because a home folder may serve several prefixes."""
    part = f"-{hashlib.sha256(prefix.encode()).hexdigest()[:12]}" if prefix else ""
    return home / f"tokens-seen-{surface}{part}"


def _write_atomically(path: Path, text: str) -> None:
    """After a crash the file has all of its text, or does not exist."""

    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with scratch.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
