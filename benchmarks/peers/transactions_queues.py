"""Python task queues for benchmarks/transactions.py; runs in an environment of its own.

`python transactions_queues.py NAME worker|producer` with PEER_URL set. A task carries how many
tasks there are; the worker writes `done` to the file PEER_DONE when it has seen that many. Each
queue is set up as its own documentation does for speed, with one worker process. Nothing of
Angarium is imported.
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import os
import sys

URL = os.environ.get("PEER_URL", "")
NAME = os.environ.get("PEER_NAME", "")
SELF = "transactions_queues"
CONCURRENCY = 100
THREADS = 8
seen = 0


def saw(total: int) -> None:
    global seen
    seen += 1
    if seen == total:
        seen = 0
        # A file, because some workers keep what their tasks print to themselves.
        with open(os.environ["PEER_DONE"], "a") as file:  # noqa: PTH123
            file.write("done\n")


async def produce(send) -> None:
    """As many at once as the worker runs at once, for queues whose producers are async."""
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        total = int(line)

        async def some(first: int, total: int = total) -> None:
            for _ in range(first, total, CONCURRENCY):
                await send(total)

        await asyncio.gather(*(some(first) for first in range(CONCURRENCY)))


def produce_plainly(send) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            send(int(line))


if NAME == "taskiq":
    from taskiq_redis import ListQueueBroker

    broker = ListQueueBroker(URL)

    @broker.task
    async def job(total: int) -> None:
        saw(total)

elif NAME == "arq":
    from arq.connections import RedisSettings

    async def arq_job(context, total: int) -> None:
        saw(total)

    class ArqSettings:
        functions = [arq_job]  # noqa: RUF012
        redis_settings = RedisSettings.from_dsn(URL)
        max_jobs = CONCURRENCY
        poll_delay = 0.01
        keep_result = 0

elif NAME == "dramatiq":
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    dramatiq.set_broker(RedisBroker(url=URL))

    @dramatiq.actor
    def dramatiq_job(total: int) -> None:
        saw(total)

elif NAME == "celery":
    from celery import Celery

    celery_app = Celery("one", broker=URL)
    celery_app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=CONCURRENCY)

    @celery_app.task(name="job")
    def celery_job(total: int) -> None:
        saw(total)

elif NAME == "streaq":
    from streaq import Worker

    worker = Worker(redis_url=URL, concurrency=CONCURRENCY)

    @worker.task()
    async def streaq_job(total: int) -> None:
        saw(total)


def rq_job(total: int) -> None:
    saw(total)


def commands() -> list[str]:
    """How each queue's own worker is started."""
    binaries = os.path.dirname(sys.executable)  # noqa: PTH120
    return {
        "taskiq": [f"{binaries}/taskiq", "worker", f"{SELF}:broker", "--workers", "1",
                   "--max-async-tasks", str(CONCURRENCY), "--log-level", "ERROR"],
        "arq": [f"{binaries}/arq", f"{SELF}.ArqSettings"],
        "dramatiq": [f"{binaries}/dramatiq", SELF, "--processes", "1", "--threads", str(THREADS)],
        "celery": [f"{binaries}/celery", "-A", f"{SELF}:celery_app", "worker", "--pool", "threads",
                   "--concurrency", str(THREADS), "--loglevel", "ERROR"],
        "streaq": [f"{binaries}/streaq", "run", f"{SELF}:worker"],
        "rq": [f"{binaries}/rq", "worker", "--url", URL, "--worker-class", "rq.SimpleWorker",
               "--quiet"],
    }[NAME]  # fmt: skip


async def produce_async() -> None:
    if NAME == "taskiq":
        await broker.startup()
        await produce(job.kiq)
    elif NAME == "arq":
        from arq import create_pool

        pool = await create_pool(ArqSettings.redis_settings)
        await produce(lambda total: pool.enqueue_job("arq_job", total))
    elif NAME == "streaq":
        async with worker:

            async def send(total: int) -> None:
                await streaq_job.enqueue(total)

            await produce(send)


def main() -> None:
    if sys.argv[1] == "worker":
        command = commands()
        os.execv(command[0], command)
    elif NAME == "rq":
        from rq import Queue

        from redis import Redis

        queue = Queue(connection=Redis.from_url(URL))
        produce_plainly(lambda total: queue.enqueue(rq_job, total, result_ttl=0))
    elif NAME == "dramatiq":
        produce_plainly(dramatiq_job.send)
    elif NAME == "celery":
        produce_plainly(celery_job.delay)
    else:
        asyncio.run(produce_async())


if __name__ == "__main__":
    # Under the module's own name, so that tasks are called the same on both sides.
    import transactions_queues

    transactions_queues.main()
