"""Each installation has one database: its identity is recorded in Redis, beside the layout.

Two processes with different databases would divide what the installation has stored between them,
and neither would find all of it. The database holds a random id; the first process that uses it
records the id and a readable place in Redis. A process with another database gets SettingInvalid,
which names both places. A file that is moved keeps its id.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

from angarium.runtime import keys, log
from angarium.runtime.database.backend import SETTING
from angarium.runtime.database.database import Database, insert_once
from angarium.runtime.errors import DatabaseUnavailable, SettingInvalid
from angarium.runtime.runtime import Runtime

VERSIONS = Path(__file__).parent / "versions"
FIELD = "database"
FIX = "use the recorded one; if it is lost for good, run: angarium pickup adopt-database"


async def open_database(runtime: Runtime) -> Database:
    """The installation's database. Raises SettingInvalid if Redis records another one."""
    database = await Database.open(runtime.settings.database_url)
    try:
        await _compare(runtime, await _identity(database))
    except BaseException:
        await database.close()
        raise
    return database


async def check_database(runtime: Runtime, *, records: bool) -> None:
    """For processes that open the database later. `records`: this process may be the first."""
    if not records and await _recorded(runtime) is None:
        return
    try:
        await (await open_database(runtime)).close()
    except DatabaseUnavailable as error:
        log.logger("angarium.database").warning("database_not_checked", error=str(error))


async def adopt_database(runtime: Runtime) -> str:
    """Record the configured database in place of the former one; returns its place."""
    database = await Database.open(runtime.settings.database_url)
    try:
        found = await _identity(database)
    finally:
        await database.close()
    name, place = _layout(runtime), place_of(runtime.settings.database_url)
    await runtime.redis.call("HSET", name, FIELD, f"{found} {place}", key=name)
    return place


def place_of(url: str) -> str:
    """Where the database is, for people; without user and password."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return f"{url.removeprefix('sqlite:///')} on {socket.gethostname()}"
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


async def _identity(database: Database) -> str:
    import sqlalchemy as sa

    await database.migrate("database", VERSIONS)
    table = sa.table("angarium_database", sa.column("number"), sa.column("id"))
    query = sa.select(table.c.id).where(table.c.number == 1)
    async with database.connect() as connection:
        found = (await connection.execute(query)).scalar()
    if found is None:
        whole = sa.Table(
            "angarium_database",
            sa.MetaData(),
            sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("id", sa.String),
        )
        async with database.begin() as connection:
            await insert_once(connection, whole, [{"number": 1, "id": secrets.token_hex(16)}])
            found = (await connection.execute(query)).scalar_one()
    return str(found)


async def _compare(runtime: Runtime, found: str) -> None:
    name, place = _layout(runtime), place_of(runtime.settings.database_url)
    await runtime.redis.call("HSETNX", name, FIELD, f"{found} {place}", key=name)
    recorded = await _recorded(runtime)
    if recorded is not None and recorded[0] != found:
        problem = f"this installation's database is {recorded[1]}, and the setting names {place}"
        raise SettingInvalid(SETTING, problem, FIX)


async def _recorded(runtime: Runtime) -> tuple[str, str] | None:
    name = _layout(runtime)
    value = await runtime.redis.call("HGET", name, FIELD, key=name)
    if value is None:
        return None
    known, _, place = value.decode().partition(" ")
    return known, place


def _layout(runtime: Runtime) -> str:
    return runtime.keyspace.global_name(keys.LAYOUT)
