"""Async tests run on uvloop, one loop per test; nothing else is hidden here."""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import uvloop

from angarium.runtime.setting_sources import setting_fields
from angarium.settings import Settings
from tests.faults.profile import LONG
from tests.kit.cluster import ClusterProcess
from tests.kit.groups import group_of, order_of
from tests.kit.java import quick_java
from tests.kit.limits import LimitMemory
from tests.kit.server import ServerProcess
from tests.kit.variants import VariantRecorder, missing

# The same examples at each run, so that a red test is a change and not a draw; the long runs
# search for new ones, and print what replays a failure.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", print_blob=True, deadline=None)
hypothesis.settings.load_profile("search" if LONG else "steady")
quick_java()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


class HardLimit:
    """Ends a test process whose test outlasts its time limit by far, and prints where it was.

    The ordinary limit raises an error inside the test. A test that then hangs while it cleans up
    would hang the whole run; xdist reports the process that ended, and continues with a new one.
    """

    CLEANUP_S = 90.0

    def __init__(self, config: pytest.Config) -> None:
        # A copy, because pytest points the descriptor itself at a file while a test runs.
        self._stderr = os.dup(2)
        self._default_s = float(config.getoption("timeout") or config.getini("timeout"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0]) if marker else self._default_s
        faulthandler.dump_traceback_later(limit_s + self.CLEANUP_S, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


class ReplyVariants:
    """Fails a run of all tests in which some declared reply of a transition never occurred."""

    def __init__(self) -> None:
        self.recorder = VariantRecorder()
        self.recorder.install()
        self.missing: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A process of `-n` has ended: take what it recorded."""
        output = getattr(node, "workeroutput", {})  # a process that crashed has none
        self.recorder.produced |= {tuple(each) for each in output.get("variants", ())}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        config = session.config
        if hasattr(config, "workeroutput"):
            config.workeroutput["variants"] = [list(each) for each in self.recorder.produced]
            return
        selected = config.option.keyword or config.option.markexpr or config.option.maxfail
        all_tests = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not selected
        if all_tests and not config.option.collectonly:
            self.missing = missing(self.recorder.produced)
            if self.missing:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for each in self.missing:
            terminalreporter.write_line(f"no test produced the reply {each}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(HardLimit(config), "hard-limit")
    config.pluginmanager.register(ReplyVariants(), "reply-variants")
    config.pluginmanager.register(LimitMemory(), "limit-memory")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0])

    # Groups start in the order of collection, which is ours; xdist would sort by number of tests.
    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: order_of(group_of(item.nodeid.partition("::")[0])))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[ServerProcess]:
    """One server for the whole run; tests keep apart by their prefix."""
    with ServerProcess() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: ServerProcess) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterProcess]:
    with ClusterProcess() as cluster:
        yield cluster


@pytest.fixture(params=["single", "cluster"])
def any_redis_url(request: pytest.FixtureRequest) -> str:
    """Both shapes of Redis: what is atomic on one server must be so on a cluster too."""
    fixture = "redis_server" if request.param == "single" else "cluster"
    return str(request.getfixturevalue(fixture).url)


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder to be in, and an environment without any setting."""
    former = {name for entry in setting_fields(Settings) for name in entry.former_names}
    for name in list(os.environ):
        if name.upper().startswith("ANGARIUM_") or name in former:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
