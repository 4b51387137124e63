"""The application object: what is registered, what is refused, how functions are called."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import angarium
from angarium.runtime.application import Application, Caller, Handler, Kind, load_application
from angarium.runtime.errors import SettingInvalid
from tests.kit.eventually import Signal

PATIENCE_S = 30.0


def double(number: int) -> int:
    return 2 * number


async def double_later(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


class Doubler:
    async def __call__(self, number: int) -> int:
        return 2 * number


def handler(function: Callable[..., Any]) -> Handler:
    return Handler("worker", "worker", function, {})


@asynccontextmanager
async def calling(threads_max: int = 2) -> AsyncIterator[Caller]:
    caller = Caller(threads_max)
    try:
        yield caller
    finally:
        caller.close()


# Registering


def test_a_decorated_function_is_found_by_kind_and_stays_itself() -> None:
    app = Application()
    assert app.worker(concurrency=3)(double) is double
    assert app.inbox()(double) is double
    app.reply_sender()(double_later)
    found = app.handler("worker", "worker")
    assert (found.name, found.function, found.is_async) == ("", double, False)
    app.worker("emails")(double_later)
    assert list(app.handlers("worker")) == ["", "emails"]
    assert app.handler("reply_sender", "sender").is_async
    assert app.handler("inbox", "inbox").function is double


def test_only_options_that_were_given_are_kept() -> None:
    app = Application()
    app.worker(window=7)(double)
    app.step("pay", timeout_s=0.5)(double)
    app.step("ship")(double)
    assert app.handler("worker", "worker").options == {"window": 7}
    assert [each.retry.timeout_s for each in app.handlers("step").values()] == [0.5, None]


def test_handlers_of_a_kind_come_in_the_order_of_registration() -> None:
    app = Application()
    for name in ("z", "a", "m"):
        app.step(name)(double)
    app.reply_sender("b")(double)
    assert list(app.handlers("step")) == ["z", "a", "m"]
    assert app.handlers("inbox") == {}


def test_two_applications_do_not_meet() -> None:
    one, two = Application(), Application()
    one.worker()(double)
    assert two.handlers("worker") == {}


def test_the_same_name_twice_for_one_purpose_is_refused() -> None:
    app = Application()
    app.step("pay")(double)
    app.reply_sender("pay")(double)
    with pytest.raises(ValueError, match=r"@app\.step 'pay' is registered twice"):
        app.step("pay")(double_later)
    assert app.handlers("step")["pay"].function is double


@pytest.mark.parametrize("kind", ["worker", "reply_sender", "inbox"])
def test_a_decorator_without_parentheses_has_its_defaults(kind: Kind) -> None:
    bare, called = Application(), Application()
    assert getattr(bare, kind)(double) is double
    assert getattr(called, kind)()(double) is double
    assert bare.handlers(kind) == called.handlers(kind)


def test_a_step_without_its_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"@app\.step needs a name: @app\.step\(\"name\"\)"):
        Application().step(double)  # type: ignore[arg-type]


def test_what_can_not_be_called_is_refused() -> None:
    app = Application()
    with pytest.raises(TypeError, match=r"@app\.worker is for functions, not for 'text'"):
        app.worker()("text")  # type: ignore[type-var]
    assert app.handlers("worker") == {}


def test_a_role_without_its_function_is_refused_by_name() -> None:
    with pytest.raises(SettingInvalid, match=r"no @app\.inbox, which role 'inbox' needs") as caught:
        Application().handler("inbox", "inbox")
    assert caught.value.setting == "ANGARIUM_APP"


def test_a_role_that_takes_one_function_refuses_two_and_names_them() -> None:
    app = Application()
    app.reply_sender("mail")(double)
    app.reply_sender("chat")(double)
    with pytest.raises(SettingInvalid, match=r"takes one @app\.reply_sender, .* mail, chat"):
        app.handler("reply_sender", "sender")


# Calling


@pytest.mark.parametrize(
    "function",
    [
        double,
        double_later,
        Doubler(),
        functools.partial(double),
        functools.partial(double_later),
        lambda number: double_later(number),
    ],
)
async def test_every_kind_of_function_gives_its_result(function: Callable[..., Any]) -> None:
    async with calling() as caller:
        assert await caller.call(handler(function), 21) == 42


def test_async_functions_are_known_as_such() -> None:
    known: list[Callable[..., Any]] = [double_later, Doubler(), functools.partial(double_later)]
    assert all(handler(function).is_async for function in known)
    plain: list[Callable[..., Any]] = [double, functools.partial(double), lambda: double_later(1)]
    assert not any(handler(function).is_async for function in plain)


async def test_plain_functions_run_beside_the_loop_and_beside_one_another() -> None:
    meeting = threading.Barrier(2, timeout=PATIENCE_S)

    def meet() -> tuple[int, str]:
        return meeting.wait(), threading.current_thread().name

    async with calling() as caller:
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*(caller.call(handler(meet)) for _ in range(2)))
        assert sorted(order for order, _ in found) == [0, 1]
        assert all(name.startswith("angarium-handler") for _, name in found)


async def test_a_plain_function_sees_the_context_of_its_caller() -> None:
    message = contextvars.ContextVar("message", default="none")
    message.set("m1")
    async with calling() as caller:
        assert await caller.call(handler(message.get)) == "m1"


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_of_the_function_reaches_the_caller(is_async: bool) -> None:
    def fail() -> None:
        raise KeyError("mine")

    async def fail_later() -> None:
        fail()

    async with calling() as caller:
        with pytest.raises(KeyError, match="mine"):
            await caller.call(handler(fail_later if is_async else fail))


async def test_a_function_that_runs_out_of_items_fails_instead_of_hanging() -> None:
    nothing: Iterator[int] = iter(())
    async with calling() as caller, asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await caller.call(handler(lambda: next(nothing)))


async def test_a_function_that_closes_a_generator_badly_fails_alone() -> None:
    def leave() -> None:
        raise GeneratorExit

    async with calling() as caller, asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match="GeneratorExit"):
            await caller.call(handler(leave))


async def test_a_cancelled_call_leaves_its_thread_to_end_and_others_to_work() -> None:
    entered, left, release = Signal(), Signal(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow() -> None:
        loop.call_soon_threadsafe(entered.fire)
        release.wait(PATIENCE_S)
        loop.call_soon_threadsafe(left.fire)

    async with calling() as caller:
        task = asyncio.ensure_future(caller.call(handler(slow)))
        await entered.wait(deadline_s=PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await caller.call(handler(double), 2) == 4
        assert left.count == 0
        release.set()
        await left.wait(deadline_s=PATIENCE_S)


# Loading


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """To be in; the modules that are imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(textwrap.dedent(text))


def test_an_application_is_loaded_from_the_current_folder(folder: Path) -> None:
    write(folder, "shop/orders.py", "from angarium import Angarium\napp = Angarium()\n")
    loaded = load_application("shop.orders:app")
    assert isinstance(loaded, Application)
    assert load_application("shop.orders:app") is loaded
    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "is no application"),
        ("orders", "is no application"),
        (":app", "is no application"),
        ("orders:", "is no application"),
        (".orders:app", "is no application"),
        ("nowhere:app", "there is no module 'nowhere' in "),
        ("orders.py:app", "there is no module 'orders.py' in "),
        ("or/ders:app", "there is no module 'or/ders' in "),
        ("shop.nowhere:app", "there is no module 'shop.nowhere' in "),
        ("orders:missing", "'missing' in 'orders' is no Angarium object"),
        ("orders:number", "'number' in 'orders' is no Angarium object"),
        ("orders:Angarium", "'Angarium' in 'orders' is no Angarium object"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error_of_the_setting(
    folder: Path, path: str, problem: str
) -> None:
    write(folder, "orders.py", "from angarium import Angarium\nnumber = 7\n")
    write(folder, "shop/__init__.py", "")
    with pytest.raises(SettingInvalid) as caught:
        load_application(path)
    assert caught.value.setting == "ANGARIUM_APP"
    assert problem in caught.value.problem
    assert caught.value.fix


@pytest.mark.parametrize(
    ("line", "error"),
    [("import no_such_package", ModuleNotFoundError), ("1 / 0", ZeroDivisionError)],
)
def test_an_error_inside_the_module_is_not_taken_for_a_missing_module(
    folder: Path, line: str, error: type[Exception]
) -> None:
    write(folder, "broken.py", f"{line}\n")
    with pytest.raises(error):
        load_application("broken:app")


# The package


def test_the_package_offers_the_class_and_nothing_it_does_not_have() -> None:
    # The public class adds the clients of all modules, which the runtime does not import.
    assert issubclass(angarium.Angarium, Application)
    names: dict[str, object] = {}
    exec("from angarium import *", names)
    assert names["Angarium"] is angarium.Angarium
    with pytest.raises(AttributeError, match="no attribute 'Rider'"):
        angarium.Rider  # noqa: B018


def test_importing_the_package_alone_loads_nothing_of_it() -> None:
    program = "import angarium, sys; print('asyncio' in sys.modules, angarium.Angarium.__name__)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert said.stdout == b"False Angarium\n"
