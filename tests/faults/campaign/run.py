"""A campaign from its beginning to its verdict.

Roles as processes, a load through every module, the schedule of faults; then everything is healed,
and whatever was accepted has to come to its end. Nothing is judged before that, except by the clock
of the journal: how long a module stood still.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from angarium.client import Client
from angarium.dispatch import keys
from angarium.runtime.database.database import Database
from angarium.runtime.errors import AngariumError
from angarium.runtime.journal import Journal, decode_entry
from angarium.settings import load
from angarium.transactions.archive import TABLE
from tests.faults.campaign.app import NEW, OLD
from tests.faults.campaign.balance import Account, Balance, descending
from tests.faults.campaign.fleet import Fleet
from tests.faults.campaign.injector import Injector
from tests.faults.campaign.load import Load, Pace, Recipients
from tests.faults.campaign.outside import Outside
from tests.faults.campaign.report import Report, Row
from tests.faults.campaign.schedule import FLEET, MEMBERS, Fault, Shape, draw
from tests.faults.campaign.servers import Servers
from tests.kit.history import History

READER = "campaign"
ENTRIES_PER_READ = 1_000
LOOK_S = 1.0
# The longest wait is that for a dead deliverer's messages, 30 s; this is some of them.
STILL_S_MAX = 100.0
APPLICATION = ("worker", "node", "inbox", "conversations")
LONG_S = 60.0  # stopping and starting a role takes seconds of a processor
# Leases and claims that a pause can outlast, and more retries than a campaign can use up.
SETTINGS = {
    "ANGARIUM_APP": "tests.faults.campaign.app:app",
    "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
    "ANGARIUM_REDIS__CALL_TIMEOUT_MS": "2000",
    "ANGARIUM_REDIS__UNAVAILABLE_TIMEOUT_MS": "20000",
    "ANGARIUM_DISPATCH__ACK_PORT": "0",
    "ANGARIUM_DISPATCH__ACK_TIMEOUT_MS": "4000",
    "ANGARIUM_DISPATCH__DELIVERIES_MAX": "1000",
    # So few that a module that stands still fills its queue; whoever is refused tries again.
    "ANGARIUM_LIMITS__TRANSACTION_QUEUE_ITEMS_MAX": "30",
    "ANGARIUM_DISPATCH__INBOX_MESSAGES_MAX": "40",
    "ANGARIUM_ROUTING__STALE_AFTER_MS": "4000",
    "ANGARIUM_ROUTING__DELIVERY_TIMEOUT_MS": "3000",
    "ANGARIUM_CONVERSATIONS__MESSAGE_TTL": "3600000",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGE_TTL": "3600000",
    "ANGARIUM_CONVERSATIONS__SENT_MESSAGE_TTL": "1000",
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL": "3000",
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL_MARGIN": "500",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGES_INTERVAL": "500",
    "ANGARIUM_CONVERSATIONS__AWAITED_FIRST_TURN": "500",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGES_BY_TURN": "200",
    "ANGARIUM_PICKUP__LEASE_MS": "3000",
    "ANGARIUM_PICKUP__GRACE_MS": "1000",
    "ANGARIUM_PICKUP__SENDING_MS": "3000",
    "ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP": "1000",
    "ANGARIUM_TRANSACTIONS__NODE_TIMEOUT_MS": "3000",
    "ANGARIUM_TRANSACTIONS__NODE_CONCURRENCY": "100",
    "ANGARIUM_TRANSACTIONS__DELAY_BEFORE_ARCHIVING": "1",
    "ANGARIUM_TRANSACTIONS__PERSISTING_PERMISSION_LOCK1_PERIOD": "4",
    "ANGARIUM_TRANSACTIONS__PERSISTING_PERMISSION_LOCK2_PERIOD": "6",
    "ANGARIUM_TRANSACTIONS__MAX_WEBHOOK_RETRIES": "100",
    "ANGARIUM_TRANSACTIONS__WEBHOOK_RETRY_DELAY_MS": "1000",
    "ANGARIUM_TRANSACTIONS__WEBHOOK_RETRY_FACTOR": "1.1",
    "ANGARIUM_TRANSACTIONS__WEBHOOK_FAIL_LIMIT": "1000000",
}


class Campaign:
    def __init__(
        self, seed: int, faults: int, span_s: float, shape: Shape, folder: Path, pace: Pace
    ) -> None:
        self._seed = seed
        self._shape = shape
        self._schedule: list[Fault] = draw(seed, faults, span_s, shape)
        self._span_s = span_s
        self._folder = folder
        self._pace = pace

    async def run(self) -> Report:
        async with AsyncExitStack() as stack:
            self._servers = stack.enter_context(Servers(self._shape, self._folder))
            files = (self._folder / "sent.jsonl", self._folder / "outbound.jsonl")
            self._inbound, self._outbound = (stack.enter_context(History(each)) for each in files)
            self._outside = await stack.enter_async_context(Outside(self._outbound).run())
            self._client = await stack.enter_async_context(Client(self._settings()))
            await Journal(self._client.runtime).register(READER)
            for pipeline in (OLD, NEW):
                await self._client.transactions.load(pipeline)
            self._env = {
                **SETTINGS,
                **self._servers.settings,
                "ANGARIUM_HOME": str(self._folder / "home"),
                "CAMPAIGN_OUTSIDE": self._outside.url,
                "CAMPAIGN_HISTORY": str(self._folder),
            }
            fleet = Fleet(self._env, self._folder, self._servers.proxied_port)
            self._fleet = await stack.enter_async_context(fleet)
            return await self._play()

    def _settings(self) -> Any:
        given = {
            name.removeprefix("ANGARIUM_").lower(): value
            for name, value in self._servers.settings.items()
        }
        patient = {"call_timeout_ms": 2_000, "unavailable_timeout_ms": 20_000}
        return load(
            **given,
            home=self._folder / "home",
            redis=patient,
            conversations={"message_ttl": 3_600_000},
        )

    async def _play(self) -> Report:
        fleet = self._fleet
        api, relay = (f"http://127.0.0.1:{fleet.of(role)[0].port}" for role in ("api", "relay"))
        self._outside.api_url = api
        self._load = Load(
            self._client, self._pace, self._inbound, self._outbound, self._outside.url
        )
        gateways = [f"ws://127.0.0.1:{each.port}/" for each in fleet.of("gateway")]
        self._recipients = Recipients(self._load.users, gateways, self._load.over)
        self._injector = Injector(fleet, self._servers)
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(fleet.watch()),
                group.create_task(self._recipients.run()),
            ]
            loading = group.create_task(self._load.run(api, relay))
            began_s = time.monotonic()
            # The new version comes in the middle third, one process after the other.
            deployment = group.create_task(self._deploy())
            await self._injector.run(self._schedule)
            await deployment
            assert not any(each.disk_is_full for each in fleet.members), "a fault was not undone"
            self._load.over.set()
            await loading
            seconds = time.monotonic() - began_s
            await self._drain()
            drained_s = time.monotonic() - began_s - seconds
            for task in background:
                task.cancel()
        return await self._judge(seconds, drained_s)

    async def _deploy(self) -> None:
        """The roles that run the application's code; in a long run all of them."""
        await asyncio.sleep(self._span_s / 3)
        roles = FLEET if self._span_s > LONG_S else APPLICATION
        await self._fleet.deploy(roles, self._span_s / 3 / MEMBERS)

    # To its end

    async def _drain(self) -> None:
        """Until everything has ended, or nothing moves any more."""
        last, moved_s = -1, time.monotonic()
        while time.monotonic() - moved_s < STILL_S_MAX:
            await asyncio.sleep(LOOK_S)
            try:
                balance = await self._balance()
                if await self._at_rest(balance):
                    return
            except AngariumError:
                continue
            # What repeats for ever, like leases, is not progress; ends are.
            ends = sum(sum(each.ended.values()) for each in balance.accounts.values())
            ends += sum(self._outside.told.values())
            if ends != last:
                last, moved_s = ends, time.monotonic()

    async def _at_rest(self, balance: Balance) -> bool:
        started = balance.accounts["transactions", "transaction"]
        dispatched = balance.accounts["dispatch", "message"]
        return (
            len(dispatched.begun) >= len(self._load.sent.messages)
            and balance.open_lives == 0
            and len(started.begun) >= len(dispatched.begun)
            and set(started.begun) <= set(self._outside.told)
            and set(started.begun) <= await self._archived()
        )

    async def _balance(self) -> Balance:
        balance, journal = Balance(), Journal(self._client.runtime)
        for partition in range(self._client.runtime.settings.partitions):
            position = "0-0"
            while entries := await journal.read(partition, position, ENTRIES_PER_READ):
                for entry_id, fields in entries:
                    balance.read(partition, decode_entry(entry_id, fields))
                position = entries[-1][0].decode()
        return balance

    async def _archived(self) -> set[str]:
        database = await Database.open(self._servers.database_url)
        try:
            async with database.connect() as connection:
                return set((await connection.scalars(sa.select(TABLE.c.id))).all())
        except sa.exc.SQLAlchemyError:
            return set()  # no table yet, or the database is not back
        finally:
            await database.close()

    async def _results(self) -> Counter[str]:
        """Name of a message → how often its result stands in the stream."""
        found: Counter[str] = Counter()
        runtime = self._client.runtime
        for partition in range(runtime.settings.partitions):
            name, after = runtime.keyspace.name(keys.MESSAGES_PROCESSED, partition), "-"
            while page := await runtime.redis.call(
                "XRANGE", name, after, "+", "COUNT", ENTRIES_PER_READ, key=name
            ):
                for _, fields in page:
                    found[dict(zip(fields[::2], fields[1::2], strict=True))[b"name"].decode()] += 1
                after = f"({page[-1][0].decode()}"
        return found

    # The verdict

    async def _judge(self, seconds: float, drained_s: float) -> Report:
        balance = await self._balance()
        rows = [
            self._dispatch(balance, await self._results()),
            self._transactions(balance),
            self._webhooks(balance),
            self._archive(balance, await self._archived()),
            self._conversations(balance),
            self._pickup(balance),
            self._routed(balance),
            self._delivered(balance),
        ]
        problems = list(self._fleet.deaths)
        problems += [stop for each in self._fleet.members for stop in each.bad_stops]
        for name in ("missing_numbers", "rewound_numbers"):
            if count := getattr(balance, name):
                problems.append(f"journal: {count} {name.replace('_', ' ')}")
        for (module, account), each in balance.accounts.items():
            if each.bad:
                found = dict(each.outcomes)
                problems.append(f"{module} {account}: ends other than well: {found} {each.bad[:3]}")
            if each.unannounced:
                problems.append(f"{module} {account}: ended, never begun: {each.unannounced[:3]}")
        if problems or not all(row.ok for row in rows):
            await self._keep_evidence()
        starts = sum(len(each.refused_starts) for each in self._fleet.members)
        words = Counter(w for each in self._fleet.members for w in each.refused_starts)
        notes = [f"{starts} starts refused, {words.most_common(2)}"] if starts else []
        notes.append(f"{self._load.sent.refused} refused or unanswered at relay and outbound list")
        return Report(
            self._seed, self._shape, seconds, drained_s, dict(self._injector.done), rows,
            balance.events, problems, notes, self._injector.log,
        )  # fmt: skip

    async def _keep_evidence(self) -> None:
        """The whole journal and all sightings, beside the logs of the roles."""
        journal = Journal(self._client.runtime)
        with (self._folder / "journal.jsonl").open("wb") as file:
            for partition in range(self._client.runtime.settings.partitions):
                position = "0-0"
                while entries := await journal.read(partition, position, ENTRIES_PER_READ):
                    for entry_id, fields in entries:
                        entry = decode_entry(entry_id, fields)
                        for event in entry.events:
                            line = (partition, entry.at_ms, entry.module, entry.actor, event)
                            file.write(msgspec.json.encode(line) + b"\n")
                    position = entries[-1][0].decode()
        sightings = msgspec.json.encode(self._recipients.sightings)
        (self._folder / "sightings.json").write_bytes(sightings)

    def _dispatch(self, balance: Balance, results: Counter[str]) -> Row:
        account = balance.accounts["dispatch", "message"]
        sent = self._load.sent.messages
        lost = [*account.unfinished, *(name for name in sent if name not in results)]
        doubled = [*account.doubled, *(name for name, count in results.items() if count > 1)]
        return _row("dispatch", len(sent), account, lost, doubled)

    def _transactions(self, balance: Balance) -> Row:
        account = balance.accounts["transactions", "transaction"]
        dispatched = balance.accounts["dispatch", "message"].ended
        missing = max(0, len(dispatched) - len(account.begun))
        more = max(0, len(account.begun) - len(dispatched))
        lost = [*account.unfinished, *("a start",) * missing]
        doubled = [*account.doubled, *("a start",) * more]
        return _row("transactions", len(account.begun), account, lost, doubled)

    def _webhooks(self, balance: Balance) -> Row:
        begun, told = balance.accounts["transactions", "transaction"].begun, self._outside.told
        again = sum(count - 1 for count in told.values())
        lost = [each for each in begun if each not in told]
        return Row("webhooks", len(begun), lost, again=again)

    def _archive(self, balance: Balance, archived: set[str]) -> Row:
        ended = balance.accounts["transactions", "transaction"].ended
        return Row("archive", len(ended), [each for each in ended if each not in archived])

    def _conversations(self, balance: Balance) -> Row:
        account = balance.accounts["conversations", "reply"]
        requests = balance.accounts["conversations", "request"]
        lost = [*account.unfinished, *requests.unfinished]
        doubled = [*account.doubled, *requests.doubled, *balance.replies_twice_in_pickup()]
        order = balance.replies_out_of_order()
        return _row("conversations", len(account.begun), account, lost, doubled, order)

    def _pickup(self, balance: Balance) -> Row:
        account = balance.accounts["pickup", "message"]
        seen = {each for found in self._recipients.seen.values() for each in found}
        unseen = [each for each in account.begun if each not in seen]
        lost = list(dict.fromkeys([*account.unfinished, *unseen]))
        places = {
            letter: place
            for letters in balance.letters.values()
            for place, (letter, _) in enumerate(letters)
        }
        order = [
            late
            for user in self._recipients.live
            for late in descending((id, places.get(id, -1)) for id in self._recipients.seen[user])
        ]
        row = _row("pickup", len(account.begun), account, lost, account.doubled, order)
        return Row(
            row.module, row.operations, row.lost, row.doubled, row.out_of_order,
            self._recipients.again, row.stall_ms,
        )  # fmt: skip

    def _routed(self, balance: Balance) -> Row:
        account = balance.accounts["routing", "inbound"]
        files = [self._folder / "sent.jsonl", *self._folder.glob("inbox-*.jsonl")]
        verdict = History.read(*files).check()
        wrong = [*verdict.unexpected.names, *verdict.wrong_key.names]
        return Row(
            "routing, inbound", verdict.operations, [*account.unfinished, *verdict.lost.names],
            [*account.doubled, *wrong], verdict.out_of_order.names, verdict.doubled.count,
            account.stall_ms,
        )  # fmt: skip

    def _delivered(self, balance: Balance) -> Row:
        account = balance.accounts["routing", "outbound"]
        verdict = History.read(self._folder / "outbound.jsonl").check()
        return Row(
            "routing, outbound", verdict.operations, [*account.unfinished, *verdict.lost.names],
            [*account.doubled, *verdict.unexpected.names], (), verdict.doubled.count,
            account.stall_ms,
        )  # fmt: skip


def _row(
    module: str,
    operations: int,
    account: Account,
    lost: list[str],
    doubled: list[str],
    out_of_order: list[str] | None = None,
) -> Row:
    return Row(
        module, operations, lost, doubled, out_of_order or [], account.retries, account.stall_ms
    )
