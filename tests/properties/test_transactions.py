"""Transactions under any interleaving of nodes, crashes, clients and time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from angarium.transactions import keys
from angarium.transactions.errors import TransactionFinished
from angarium.transactions.leases import WebhookResult
from angarium.transactions.model import (
    TakenTransaction,
    Transaction,
    TransactionStart,
    encode_step_types,
)
from tests.faults.profile import LONG, rounds
from tests.kit.clock import FakeClock
from tests.kit.cluster import ClusterProcess
from tests.kit.server import ServerProcess
from tests.transactions.harness import Harness, harness

NODES = ("n0", "n1", "n2")
# Old code, new code and both: two nodes have each step.
STEPS = {"n0": {"echo"}, "n1": {"echo", "add"}, "n2": {"add"}}
FIRST_STEP = {"one": "echo", "child": "echo", "sum": "add", "brief": "add"}
NODE = st.sampled_from(NODES)
PICK = st.integers(0, 10_000)
FINAL = ("success", "failed", "aborted", "cancelled", "timeout", "internal-error")
ACCEPTING, TERMINAL = {"started"}, {"completed", "cancelled", "expired"}
HOOK = "https://example.org/"


class TransactionLifecycles(RuleBasedStateMachine):
    """The model: accepted transactions, their known statuses, and the runs of each node.

    The runs of a crashed node are in `stale`. The model writes under them later.
    """

    url: str
    seen: ClassVar[Counter[str]] = Counter()

    @initialize(fair=st.booleans())
    def begin(self, fair: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        given = {"delay_before_archiving": 60, "node_fair_owners": fair}
        self.context = harness(self.url, clock=self.clock, transactions=given)
        self.here: Harness = self.do(self.context.__aenter__())
        self.do(self.here.define("child", {"type": "echo"}))
        self.do(self.here.define("sum", {"type": "add"}, {"type": "echo"}))
        self.do(self.here.define("brief", {"type": "add"}, timeout_ms=5_000))
        self.accepted: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.archived: set[str] = set()
        self.running: dict[str, list[TakenTransaction]] = {node: [] for node in NODES}
        self.stale: list[TakenTransaction] = []
        self.calling: set[str] = set()
        self.steps: Counter[str] = Counter()

    def do(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    # Clients

    @rule(
        external=st.sampled_from([None, "a", "b"]),
        hook=st.booleans(),
        pipeline=st.sampled_from(["one", "sum", "brief"]),
        owner=st.sampled_from(["default", "other"]),
    )
    def start(self, external: str | None, hook: bool, pipeline: str, owner: str) -> None:
        asked = TransactionStart(
            pipeline,
            owner="default" if external else owner,
            external_id=external,
            webhook=HOOK if hook else None,
        )
        started = self.do(self.here.store.start(asked))
        if external is not None and external in self.accepted.values():
            first = next(id for id, name in self.accepted.items() if name == external)
            assert started.duplicate
            assert started.transaction_id == first
            return
        assert not started.duplicate
        self.accepted[started.transaction_id] = external or ""

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        id = self._pick(pick)
        if id is None or id in self.archived:
            return
        try:
            status = self.do(self.here.store.cancel(id))
        except TransactionFinished:
            assert id in self.ended
            return
        assert id not in self.ended
        if status == "cancelled":
            self._end(id, "cancelled")

    @rule(pick=PICK, switch=st.sampled_from(["go", "stay"]))
    def set_switch(self, pick: int, switch: str) -> None:
        id = self._pick(pick)
        if id is None or id in self.archived or id in self.ended:
            return
        self.do(self.here.store.set_switch(id, switch, "1"))

    # Nodes

    @rule(node=NODE, count=st.integers(1, 3), hook=st.booleans())
    def start_and_take(self, node: str, count: int, hook: bool) -> None:
        for _ in range(count):
            self.start(None, hook, "one", "default")
        self.take(node, 5)

    @rule(node=NODE, count=st.integers(1, 5))
    def take(self, node: str, count: int) -> None:
        for taken in self.do(
            self.here.take(node, count, step_types=encode_step_types(STEPS[node]))
        ):
            assert taken.id not in self.ended, "a node took a transaction that has ended"
            if not taken.cancel and taken.remaining_ms > 0 and not self.steps[taken.id]:
                assert FIRST_STEP[taken.pipeline] in STEPS[node], "a node without the step took it"
            holders = [t for running in self.running.values() for t in running if t.id == taken.id]
            assert not holders, "a live node still runs it"
            self.running[node].append(taken)

    @rule(node=NODE, pick=PICK, status=st.sampled_from(FINAL), lost=st.booleans())
    def complete(self, node: str, pick: int, status: str, lost: bool) -> None:
        taken = self._pop(node, pick)
        if taken is None:
            return
        call = self.here.store.complete
        for _ in range(2 if lost else 1):  # the reply was lost, so the call is repeated
            assert self.do(call(taken, status, b"1", "")) == "completed"
        self._end(taken.id, status)

    @rule(node=NODE)
    def complete_all(self, node: str) -> None:
        self.take(node, 10)
        while self.running[node]:
            self.complete(node, 0, "success", False)

    @rule(node=NODE, pick=PICK)
    def checkpoint(self, node: str, pick: int) -> None:
        if self.running[node]:
            taken = self.running[node][pick % len(self.running[node])]
            status = self.do(self.here.store.checkpoint(taken.id, taken.run, 1, b"1 0 7"))
            assert status in ("saved", "cancelled")
            self.steps[taken.id] = 1

    @rule(node=NODE, pick=PICK, ms=st.sampled_from([None, 0, 5_000]), then_wake=st.booleans())
    def sleep(self, node: str, pick: int, ms: int | None, then_wake: bool) -> None:
        taken = self._pop(node, pick)
        if taken is None:
            return
        frame = b"%d 1 " % self.steps[taken.id]
        status = self.do(self.here.store.sleep(taken.id, taken.run, frame, ms, "go"))
        assert status in ("sleeping", "awake", "cancelled")
        if status == "cancelled":
            self.running[node].append(taken)
        if then_wake:
            self.wake(6)

    @rule(node=NODE, pick=PICK, count=st.integers(1, 2), finish=st.booleans())
    def call_children(self, node: str, pick: int, count: int, finish: bool) -> None:
        taken = self._pop(node, pick)
        if taken is None:
            return
        if taken.id in self.calling or "." in taken.id:
            self.running[node].append(taken)
            return
        data, step = [b"1"] * count, self.steps[taken.id]
        frame = b"%d 0 1" % step
        status = self.do(
            self.here.store.call_children(taken.id, taken.run, step, frame, "child", data)
        )
        if status == "cancelled":
            self.running[node].append(taken)
            return
        assert status == "called"
        self.calling.add(taken.id)
        for number in range(1, count + 1):
            self.accepted[f"{taken.id}.{step}-{number}"] = ""
        if finish:
            self.complete_all(node)

    @rule(node=NODE, pick=PICK)
    def hand_back(self, node: str, pick: int) -> None:
        taken = self._pop(node, pick)
        if taken is not None:
            status = self.do(self.here.store.return_to_queue(taken.id, taken.run))
            assert status == "returned"

    @rule(node=NODE, pick=PICK, step=st.sampled_from([0, 1]), lost=st.booleans())
    def hand_over(self, node: str, pick: int, step: int, lost: bool) -> None:
        """The transaction comes to a step that its node lacks."""
        taken = self._pop(node, pick)
        if taken is None:
            return
        step = max(step, self.steps[taken.id])
        step_type = "echo" if step else FIRST_STEP[taken.pipeline]
        for _ in range(2 if lost else 1):
            call = self.here.store.hand_over(taken.id, taken.run, step, b"%d 0 1" % step, step_type)
            status = self.do(call)
            assert status in ("waits", "cancelled")
        if status == "cancelled":
            self.running[node].append(taken)
        else:
            self.steps[taken.id] = step

    @rule(seconds=st.sampled_from([0, 6]))
    def expire(self, seconds: int) -> None:
        """A transaction that waits for a step past its deadline ends."""
        self.do(self.clock.advance(seconds))
        waiting = {id for id, state in self.do(self._states()).items() if _waits(state)}
        for partition in self.here.store.partitions:
            for node in NODES:
                self.do(self.here.store.touch_node(partition, node))
            self.do(self.here.store.expire_waiting(partition))
        for id, state in self.do(self._states()).items():
            if state is not None and state.status == "timeout" and id not in self.ended:
                assert id in waiting
                TransactionLifecycles.seen["wait timed out"] += 1
                self._end(id, "timeout")

    @rule(node=NODE, pick=PICK, late=st.booleans(), busy=st.booleans())
    def crash(self, node: str, pick: int, late: bool, busy: bool) -> None:
        """One node is silent, while the others send heartbeats."""
        if busy:
            self.start_and_take(node, 2, hook=False)
        TransactionLifecycles.seen["crash"] += bool(self.running[node])
        self.stale += self.running[node]
        self.running[node] = []
        self.do(self.clock.advance(10))
        for partition in self.here.store.partitions:
            for other in NODES:
                if other != node:
                    self.do(self.here.store.touch_node(partition, other))
        other = NODES[(NODES.index(node) + 1) % 3]
        self.do(self.here.recover(other, tuple(t.id for t in self.running[other])))
        if late:
            self.write_under_a_lost_run(pick, "success")

    @rule(pick=PICK, status=st.sampled_from(FINAL))
    def write_under_a_lost_run(self, pick: int, status: str) -> None:
        if not self.stale:
            return
        taken = self.stale[pick % len(self.stale)]
        answer = self.do(self.here.store.complete(taken, status, b"2", ""))
        TransactionLifecycles.seen["late"] += 1
        # A client may have cancelled it meanwhile, which is the status that this run reports too.
        same = status == "cancelled" == self.ended.get(taken.id)
        assert answer in ("stale_run", "not_running", "no_state") or (
            same and answer == "completed"
        )

    # Time

    @rule(seconds=st.sampled_from([1, 6]))
    def wake(self, seconds: int) -> None:
        self.do(self.clock.advance(seconds))
        for partition in self.here.store.partitions:
            for node in NODES:
                self.do(self.here.store.touch_node(partition, node))
        self.do(self.here.wake())

    @rule(stored=st.booleans())
    def archive(self, stored: bool) -> None:
        self.do(self.clock.advance(61))
        for partition in self.here.store.partitions:
            for node in NODES:
                self.do(self.here.store.touch_node(partition, node))
            due = self.do(self.here.leases.to_archive(partition, "a", [], 100)).transactions
            ids = [each.id for each in due]
            assert set(ids) <= set(self.ended)
            if stored:
                self.do(self.here.leases.to_archive(partition, "a", ids, 0))
                self.archived |= set(ids)

    @rule(taken=st.booleans(), busy=st.booleans())
    def send_webhooks(self, taken: bool, busy: bool) -> None:
        if busy:
            self.start_and_take("n0", 1, hook=True)
            self.complete_all("n0")
        for partition in self.here.store.partitions:
            due = self.do(self.here.leases.webhooks(partition, "w", [], 100)).webhooks
            for each in due:
                assert each.transaction.id in self.ended
                assert each.transaction.id not in self.archived, (
                    "archived before its webhook was sent"
                )
            problem = "" if taken else "status 500"
            results = [WebhookResult(e.transaction.id, e.version, problem) for e in due]
            self.do(self.here.leases.webhooks(partition, "w", results, 0))

    # What must hold

    @invariant()
    def each_is_where_its_history_says(self) -> None:
        if not hasattr(self, "here"):
            return
        states = self.do(self._states())
        for id, state in states.items():
            if id in self.archived:
                assert state is None
                continue
            assert state is not None, f"{id} is lost"
            assert state.status.final == (id in self.ended), (id, state.status, self.ended)
            if id in self.ended:
                assert state.status == self.ended[id]
        for running in self.running.values():
            for taken in running:
                state = states[taken.id]
                assert state is not None
                assert (state.status, str(state.run)) == ("running", taken.run)

    @invariant()
    def each_queued_one_is_in_one_place(self) -> None:
        if not hasattr(self, "here"):
            return
        queued, waiting = self.do(self._entries())
        for id, state in self.do(self._states()).items():
            if state is not None and state.status == "queued":
                in_queues, in_places = queued.count(id), waiting.count(id)
                assert in_queues + in_places == 1, (id, in_queues, in_places)
                assert bool(in_places) == _waits(state)
            else:
                assert id not in waiting, "waits though it is not queued"

    async def _entries(self) -> tuple[list[str], list[str]]:
        """Ids in the queues, and ids that wait for a step."""
        queued: list[str] = []
        waiting: list[str] = []
        ask = self.here.runtime.redis.call
        for partition in self.here.store.partitions:
            name_of = self.here.runtime.keyspace.name
            for key in (keys.QUEUE_ADMIN, keys.QUEUE_OUT, keys.QUEUE_IN):
                name = name_of(key, partition, "default")
                queued += [id.decode() for id in await ask("LRANGE", name, 0, -1, key=name)]
            for queue in ("in|default", "out|default"):
                name = name_of(keys.FAIR_QUEUE, partition, queue)
                found = [id.decode() for id in await ask("ZRANGE", name, 0, -1, key=name)]
                turns = name_of(keys.OWNER_TURNS, partition, queue)
                assert found or not await ask("EXISTS", turns, key=turns), f"{turns} is left"
                queued += found
            index = name_of(keys.WAITING_PLACES, partition)
            here: list[str] = []
            for place in await ask("ZRANGE", index, 0, -1, key=index):
                name = name_of(keys.WAITING, partition, place.decode())
                found = [id.decode() for id in await ask("ZRANGE", name, 0, -1, key=name)]
                assert found, f"{place} is empty and still listed"
                here += found
            name = name_of(keys.WAITING_DEADLINES, partition)
            deadlines = [id.decode() for id in await ask("ZRANGE", name, 0, -1, key=name)]
            assert sorted(deadlines) == sorted(here)
            waiting += here
        return queued, waiting

    async def _states(self) -> dict[str, Transaction | None]:
        found = await asyncio.gather(*(self.here.store.find(id) for id in self.accepted))
        return dict(zip(self.accepted, found, strict=True))

    def teardown(self) -> None:
        if not hasattr(self, "here"):
            return
        self._account()
        self.do(self.context.__aexit__(None, None, None))
        self.loop.close()

    def _account(self) -> None:
        """The journal has each transaction once as accepted and once as ended. Counters agree."""
        events = self.do(self.here.events())
        names = Counter(each.event for each in events)
        accepted = Counter(each.subject for each in events if each.event in ACCEPTING)
        ended = Counter(each.subject for each in events if each.event in TERMINAL)
        assert accepted == Counter(dict.fromkeys(self.accepted, 1))
        assert ended == Counter(dict.fromkeys(self.ended, 1))
        counters = self.do(self.here.counters())
        names.pop("pipeline_stored", None)
        assert counters == dict(names)
        TransactionLifecycles.seen += names

    def _pick(self, pick: int) -> str | None:
        ids = sorted(self.accepted)
        return ids[pick % len(ids)] if ids else None

    def _pop(self, node: str, pick: int) -> TakenTransaction | None:
        running = self.running[node]
        return running.pop(pick % len(running)) if running else None

    def _end(self, id: str, status: str) -> None:
        assert id not in self.ended
        self.ended[id] = status
        if status == "cancelled":
            # Its waiting children are cancelled too.
            for child in self.accepted:
                if child.startswith(f"{id}.") and child not in self.ended:
                    state = self.do(self.here.store.find(child))
                    if state is not None and state.status == "cancelled":
                        self.ended[child] = "cancelled"


def _waits(state: Transaction | None) -> bool:
    return state is not None and state.waits_for_step is not None


def _run(url: str, examples: int, *wanted: str) -> None:
    TransactionLifecycles.url = url
    TransactionLifecycles.seen = Counter()
    run_machine(
        TransactionLifecycles,
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None),
    )
    # A short run must produce the frequent events; a long one must produce all.
    for what in ("late", "crash", "recovered", "step_awaited", *(wanted if LONG else ())):
        assert TransactionLifecycles.seen[what] > 0, f"the runs never produced {what}"


def test_any_interleaving_ends_each_transaction_once(redis_server: ServerProcess) -> None:
    _run(
        redis_server.url,
        rounds(60, 400),
        "woken",
        "resumed",
        "archived",
        "webhook_delivered",
        "wait timed out",
    )


def test_any_interleaving_ends_each_transaction_once_on_a_cluster(
    cluster: ClusterProcess,
) -> None:
    _run(cluster.url, rounds(15, 150))
