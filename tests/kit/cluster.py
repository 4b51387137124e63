"""A real cluster of three (or more) primaries, with replicas if wanted.

All 16,384 slots are assigned by commands alone. Timings are short, so that a failover takes a
few seconds. `SlotMove` is a migration in steps: between `start` and `finish` the old owner
answers ASK for keys it has not, and after it MOVED.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Self

from redis.crc import key_slot

import redis
from tests.kit.eventually import wait_until
from tests.kit.server import UNREACHABLE, ServerProcess

SLOTS = 16_384
NODE_TIMEOUT_MS = 1_000
DEADLINE_S = 30.0
MIGRATE_KEYS_MAX = 100
MIGRATE_TIMEOUT_MS = 5_000


class ClusterProcess:
    """Use as `with ClusterProcess() as cluster:`. `nodes` are the primaries it started with."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        replicas: bool = False,
        aof: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._config = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
            "cluster-announce-ip": "127.0.0.1",
            "cluster-allow-replica-migration": "no",
            # A replica may take over however long its primary has been silent.
            "cluster-replica-validity-factor": "0",
            **(config or {}),
        }
        self._aof = aof
        self._count = nodes
        self._with_replicas = replicas
        self._stack = contextlib.ExitStack()
        self.nodes: list[ServerProcess] = []
        self.replicas: list[ServerProcess] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.nodes = [self._serve(stack) for _ in range(self._count)]
            if self._with_replicas:
                self.replicas = [self._serve(stack) for _ in range(self._count)]
            self._form()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://{hosts}"

    @property
    def servers(self) -> list[ServerProcess]:
        return [*self.nodes, *self.replicas]

    def client(self, *, decode_responses: bool = False) -> Any:
        """redis-py's cluster client, an independent witness; the caller closes it."""
        return redis.RedisCluster(
            host="127.0.0.1", port=self._live()[0].port, decode_responses=decode_responses
        )

    def node_of(self, key: str | bytes) -> ServerProcess:
        return self.owner_of(slot_of(key))

    def owner_of(self, slot: int) -> ServerProcess:
        """Who serves the slot now, as the nodes that are alive say."""
        return self._by_port(_owners(self._live()[0])[slot])

    def move_slot(self, slot: int, to: ServerProcess) -> None:
        """Move a slot with its keys; returns when every node knows."""
        with self.migrating(slot, to):
            pass

    @contextlib.contextmanager
    def migrating(self, slot: int, to: ServerProcess) -> Iterator[SlotMove]:
        """The slot is on its way inside the block, and has arrived after it."""
        move = SlotMove(self, slot, to)
        move.start()
        yield move
        move.finish()

    def failover(self, node: ServerProcess, deadline_s: float = DEADLINE_S) -> ServerProcess:
        """kill -9 a primary and wait until its replica serves its slots; returns the replica."""
        slot = next(s for s, port in _owners(node).items() if port == node.port)
        node.kill()

        def successor() -> ServerProcess | None:
            owners = {_owners(server).get(slot) for server in self._live()}
            taken = len(owners) == 1 and node.port not in owners
            return self._by_port(owners.pop()) if taken else None

        found = wait_until(successor, deadline_s, ignoring=UNREACHABLE)
        assert found is not None
        self.wait_ok(deadline_s)
        return found

    def wait_ok(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait until every live node says that the cluster is fine and knows all slots."""
        wait_until(lambda: all(map(_is_ok, self._live())), deadline_s, ignoring=UNREACHABLE)

    # Forming

    def _serve(self, stack: contextlib.ExitStack) -> ServerProcess:
        return stack.enter_context(ServerProcess(aof=self._aof, config=self._config))

    def _form(self) -> None:
        share = SLOTS / len(self.nodes)
        for index, node in enumerate(self.nodes):
            # Distinct epochs from the start save the nodes a round of conflict resolution.
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            first, last = round(index * share), round((index + 1) * share) - 1
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
        for server in self.servers[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", server.port)
        everybody = len(self.servers)
        wait_until(lambda: all(_known(s) == everybody for s in self.servers), DEADLINE_S)
        for primary, replica in zip(self.nodes, self.replicas, strict=False):
            replica.ask("CLUSTER", "REPLICATE", node_id(primary))
        for replica in self.replicas:
            replica.wait_for("link", lambda info: info.get("master_link_status") == "up")
        self.wait_ok()

    def _live(self) -> list[ServerProcess]:
        return [server for server in self.servers if server.alive]

    def _by_port(self, port: int | None) -> ServerProcess:
        return next(server for server in self.servers if server.port == port)


class SlotMove:
    """One slot on its way from its owner to another primary."""

    def __init__(self, cluster: ClusterProcess, slot: int, to: ServerProcess) -> None:
        self._cluster = cluster
        self.slot = slot
        self.source = cluster.owner_of(slot)
        self.to = to

    def start(self) -> None:
        self._set(self.to, "IMPORTING", node_id(self.source))
        self._set(self.source, "MIGRATING", node_id(self.to))

    def keys(self, count_max: int = MIGRATE_KEYS_MAX) -> int:
        """Move up to so many keys; returns how many it were."""
        keys = self.source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, count_max)
        if keys:
            head = ("127.0.0.1", self.to.port, "", 0, MIGRATE_TIMEOUT_MS)
            self.source.ask("MIGRATE", *head, "KEYS", *keys)
        return len(keys)

    def finish(self) -> None:
        """Move the rest and tell everybody. The new owner first: a slot is never nobody's."""
        while self.keys():
            pass
        others = [n for n in self._cluster.nodes if n.alive and n not in (self.to, self.source)]
        for node in (self.to, self.source, *others):
            self._set(node, "NODE", node_id(self.to))
        live = self._cluster._live()
        wait_until(lambda: all(_owners(s).get(self.slot) == self.to.port for s in live))

    def _set(self, node: ServerProcess, *state: str) -> None:
        node.ask("CLUSTER", "SETSLOT", self.slot, *state)


def slot_of(key: str | bytes) -> int:
    return int(key_slot(key.encode() if isinstance(key, str) else key))


def node_id(server: ServerProcess) -> str:
    return str(server.ask("CLUSTER", "MYID"))


def _info(server: ServerProcess) -> dict[str, str]:
    lines = str(server.ask("CLUSTER", "INFO")).split()
    return dict(line.split(":", 1) for line in lines)


def _known(server: ServerProcess) -> int:
    return int(_info(server)["cluster_known_nodes"])


def _is_ok(server: ServerProcess) -> bool:
    info = _info(server)
    return info["cluster_state"] == "ok" and len(_owners(server)) == SLOTS


def _owners(server: ServerProcess) -> dict[int, int]:
    """Slot to port of its primary, as this server sees it."""
    rows = server.ask("CLUSTER", "SLOTS")
    return {slot: row[2][1] for row in rows for slot in range(row[0], row[1] + 1)}
