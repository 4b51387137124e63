"""`angarium lake run --app` killed with -9 while users' jobs write: every row of theirs once.

A kill comes as soon as something new of a job is seen: rows of its table, or entries of its stream.
So it hits what follows: the note that they were sent, the next job, the next batch.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redis
from angarium.lake.query import ask
from angarium.lake.tables import Lake
from angarium.settings import Settings
from tests.faults.lake_processes import Driver
from tests.faults.profile import rounds
from tests.faults.test_lake_tables import lake_run
from tests.kit.eventually import NeverTrue, eventually
from tests.kit.sample import sample_settings

pytestmark = [pytest.mark.faults, pytest.mark.timeout(rounds(600, 1_800))]
KILLS_OF_EACH = rounds(1, 10)
RESULTS = 400
DEADLINE_S = 300.0


class Jobs:
    """What the application of lake_jobs.py has made so far."""

    def __init__(self, settings: Settings) -> None:
        self._client: Any = redis.Redis.from_url(settings.redis_url)
        self._prefix = settings.prefix
        self._lake = Lake.of(settings)
        self.results = 0
        self._client.delete("out")

    def put(self) -> None:
        pipe = self._client.pipeline(transaction=False)
        for number in range(self.results, self.results + RESULTS):
            fields = {"message_id": f"m{number}", "consumer_id": "w"}
            pipe.xadd(f"{self._prefix}messages:processed", fields)
        pipe.execute()
        self.results += RESULTS

    def table(self) -> Counter[str]:
        if self._lake.open("doubled") is None:
            return Counter()
        return Counter(row[0] for row in ask(self._lake, "select message_id from doubled").rows)

    def stream(self) -> Counter[str]:
        return Counter(fields[b"message_id"].decode() for _, fields in self._client.xrange("out"))

    def messages(self) -> Counter[str]:
        inbox = self._client.xrange(f"{self._prefix}messages:inbox")
        found = (fields[b"payload"].decode() for _, fields in inbox)
        return Counter(text[: len(text) // 2] for text in found)


async def until(driver: Driver, true: Callable[[], bool]) -> None:
    def there() -> bool:
        driver.keep_up()
        return true()

    try:
        await eventually(there, DEADLINE_S)
    except NeverTrue as error:
        raise NeverTrue(f"{error}\n{driver.tail()}") from error


async def test_jobs_killed_while_they_write_have_every_row_once(
    redis_url: str, tmp_path: Path
) -> None:
    settings = sample_settings(redis_url, home=tmp_path, lake_url=str(tmp_path / "lake"))
    jobs, chance = Jobs(settings), random.Random(22)
    made = (jobs.table, jobs.stream, jobs.messages)
    driver = lake_run(settings, tmp_path / "log", "--app", "tests.faults.lake_jobs:app", env={})
    jobs.put()
    driver.start()
    try:
        for look in made * KILLS_OF_EACH:
            before = look().total()
            jobs.put()
            enough = before + chance.randint(1, RESULTS)
            await until(driver, lambda look=look, n=enough: look().total() >= n)  # type: ignore[misc]
            driver.kill()
        for look in made:
            await until(driver, lambda look=look: look().total() >= jobs.results)  # type: ignore[misc]
    finally:
        driver.close()
    expected = Counter(f"m{number}" for number in range(jobs.results))
    for look in made:
        assert look() == expected, look
    print(f"\n{jobs.results} results, {len(made) * KILLS_OF_EACH} kills: each once in all three")
