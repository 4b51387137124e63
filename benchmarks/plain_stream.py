"""What a user would write by hand: a stream, a consumer group, and results into another stream.

Both modes have a producer and a worker, each a process of its own, with redis-py:

- *plain*: XADD in pipelines; XREADGROUP of up to 200, then in one pipeline a result, XACK and XDEL
  for each. Nothing is redelivered, counted or journaled, and a worker that dies keeps its messages.
- *scripts*: the limit. One script adds 200 messages, another moves 200 into the results. There is
  no worker's work in it, no acknowledgement, no state.

`python -m benchmarks.plain_stream producer|worker MODE PORT`; orders come by a list, as for the
others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

import redis
from benchmarks.end_to_end import wait_for
from benchmarks.fabric import DEADLINE_S
from benchmarks.publisher import payload

BATCH = 200
# Nobody asks again and again while others are measured: all wait in Redis.
BLOCK_S = 60
GROUP = "workers"
ADD = """
for i = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'payload', ARGV[i]) end
redis.call('RPUSH', KEYS[2], 1)
"""
MOVE = f"""
local found = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', {BATCH})
local ids = {{}}
for i, entry in ipairs(found) do
  redis.call('XADD', KEYS[2], '*', 'payload', entry[2][2])
  ids[i] = entry[1]
end
if #ids > 0 then redis.call('XDEL', KEYS[1], unpack(ids)) end
return #ids
"""


class PlainStream:
    """Use as a context manager; a `System` of `end_to_end`."""

    def __init__(self, server: ServerProcess, mode: str) -> None:
        self.name = {
            "plain": "XREADGROUP + XACK + XDEL by hand",
            "scripts": "bare batched scripts, the limit",
        }[mode]
        self._mode = mode
        self._witness: Any = server.client(decode_responses=True)
        self._processes = {
            role: RoleProcess(["-m", "benchmarks.plain_stream", role, mode, str(server.port)])
            for role in ("producer", "worker")
        }

    def __enter__(self) -> Self:
        try:
            for process in self._processes.values():
                process.__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.close()

    def reset(self) -> None:
        self._witness.delete(f"{self._mode}:results")

    def run(self, messages: int) -> None:
        results = f"{self._mode}:results"
        wanted = self._witness.xlen(results) + messages
        self._witness.rpush(f"{self._mode}:orders", messages)
        wait_for(lambda: self._witness.xlen(results) >= wanted, DEADLINE_S, self.name)

    def pids(self) -> Mapping[str, Sequence[int]]:
        return {role: [process.pid] for role, process in self._processes.items()}


def produce(client: Any, mode: str) -> None:
    add = client.register_script(ADD)
    published = 0
    while True:
        order = client.blpop([f"{mode}:orders"], timeout=BLOCK_S)
        if order is None:
            continue
        last = published + int(order[1])
        while published < last:
            numbers = range(published, min(published + BATCH, last))
            texts = [json.dumps(payload(number)) for number in numbers]
            published = numbers[-1] + 1
            if mode == "scripts":
                add(keys=[f"{mode}:messages", f"{mode}:go"], args=texts)
                continue
            pipeline = client.pipeline(transaction=False)
            for text in texts:
                pipeline.xadd(f"{mode}:messages", {"payload": text})
            pipeline.execute()


def work(client: Any, mode: str) -> None:
    if mode == "scripts":
        move = client.register_script(MOVE)
        while True:
            if client.blpop([f"{mode}:go"], timeout=BLOCK_S):
                move(keys=[f"{mode}:messages", f"{mode}:results"])
    messages, results = f"{mode}:messages", f"{mode}:results"
    while True:
        found = client.xreadgroup(GROUP, "one", {messages: ">"}, count=BATCH, block=BLOCK_S * 1000)
        if not found:
            continue
        pipeline = client.pipeline(transaction=False)
        for entry_id, fields in found[0][1]:
            result = json.loads(fields[b"payload"])
            pipeline.xadd(results, result)
            pipeline.xack(messages, GROUP, entry_id)
            pipeline.xdel(messages, entry_id)
        pipeline.execute()


def main(role: str, mode: str, port: str) -> None:
    client: Any = redis.Redis(port=int(port))
    if role == "worker" and mode == "plain":
        client.xgroup_create(f"{mode}:messages", GROUP, id="0", mkstream=True)
    print(json.dumps({"role": role, "ready": True}), flush=True)
    (produce if role == "producer" else work)(client, mode)


if __name__ == "__main__":
    main(*sys.argv[1:])
