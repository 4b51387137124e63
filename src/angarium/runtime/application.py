"""The application object: a user's functions, and what each of them is for.

`Angarium` only collects; the roles that run the functions find them here by kind. It opens
nothing and needs no server, so a module with handlers can be imported by any script or test.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from angarium.runtime.errors import SettingInvalid

Kind = Literal["worker", "step", "reply_sender", "inbox", "table", "stream"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Handler:
    """One function of the user's, under the name it was registered with."""

    kind: Kind
    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]

    @property
    def is_async(self) -> bool:
        call = getattr(self.function, "__call__", None)  # noqa: B004  an object with async __call__
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)


class Angarium:
    """One for each application: `app = Angarium()`, then decorate.

    The same function may serve several purposes; the same name twice for one purpose is
    refused, because one of the two would silently never run.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[Kind, str], Handler] = {}

    def worker(
        self, *, concurrency: int | None = None, window: int | None = None
    ) -> Callable[[Function], Function]:
        """Process messages of the dispatch module: message in, result (a dict, or None) out."""
        return self._adder("worker", "worker", concurrency=concurrency, window=window)

    def step(
        self, step_type: str, *, timeout_s: float | None = None
    ) -> Callable[[Function], Function]:
        """Run steps of this type in the transactions module."""
        return self._adder("step", step_type, timeout_s=timeout_s)

    def reply_sender(self, name: str = "default") -> Callable[[Function], Function]:
        """Send replies of the conversations module."""
        return self._adder("reply_sender", name)

    def inbox(self) -> Callable[[Function], Function]:
        """Take messages that the routing module delivers to this instance."""
        return self._adder("inbox", "inbox")

    def table(self, name: str, *, of: str) -> Callable[[Function], Function]:
        """Make a table of the lake: a DataFrame of the new rows of table `of` in, rows out."""
        return self._adder("table", name, of=of)

    def stream(
        self, key: str = "", *, of: str, into: str | None = None
    ) -> Callable[[Function], Function]:
        """Send rows made of the new rows of table `of` to a Redis stream, or `into` dispatch."""
        if bool(key) == bool(into):
            raise TypeError("@app.stream needs the key of a stream, or into='dispatch'")
        return self._adder("stream", key or f"into_{into}", of=of, into=into)

    def handlers(self, kind: Kind) -> Mapping[str, Handler]:
        """Name → handler, in the order of registration."""
        return {name: each for (other, name), each in self._handlers.items() if other == kind}

    def wrapped(self, wrap: Callable[[Handler], Callable[..., Any]]) -> Angarium:
        """The same functions, each behind what `wrap` makes of it."""
        found = Angarium()
        found._handlers = {
            whose: replace(each, function=wrap(each)) for whose, each in self._handlers.items()
        }
        return found

    def handler(self, kind: Kind, role: str) -> Handler:
        """The only one of its kind; a role that can't run without it is refused by name."""
        found = self.handlers(kind)
        if not found:
            problem = f"the application has no @app.{kind}, which role {role!r} needs"
            raise SettingInvalid("ANGARIUM_APP", problem, "decorate a function and name its module")
        if len(found) > 1:
            problem = f"role {role!r} takes one @app.{kind}, and there are {', '.join(found)}"
            raise SettingInvalid("ANGARIUM_APP", problem, "leave one of them")
        return next(iter(found.values()))

    def _adder(self, kind: Kind, name: str, **options: Any) -> Callable[[Function], Function]:
        if not isinstance(name, str):
            # `@app.step` alone would swallow the function, which then silently never runs.
            raise TypeError(f"@app.{kind} needs parentheses: @app.{kind}(…)")

        def add(function: Function) -> Function:
            if not callable(function):
                raise TypeError(f"@app.{kind} is for functions, not for {function!r}")
            if (kind, name) in self._handlers:
                raise ValueError(f"@app.{kind} {name!r} is registered twice")
            given = {key: value for key, value in options.items() if value is not None}
            self._handlers[kind, name] = Handler(kind, name, function, given)
            return function

        return add


class Caller:
    """Calls handlers from the event loop; plain functions run in threads of its own.

    A thread can't be interrupted: a caller that is cancelled goes on, the function runs to its
    end and its result is dropped.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads = ThreadPoolExecutor(threads_max, "angarium-handler")

    async def call(self, handler: Handler, *args: Any) -> Any:
        if handler.is_async:
            return await handler.function(*args)
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()  # the log of a function names its message either way
        result = await loop.run_in_executor(
            self._threads, context.run, _call, handler.function, args
        )
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except (StopIteration, GeneratorExit) as error:
        # No future takes the one, and whoever awaits would wait for ever; the other would end the
        # task that awaits, and with it all that stand beside it.
        raise RuntimeError(f"the function raised {type(error).__name__}") from error


def load_application(path: str) -> Angarium:
    """The object that `module:name` leads to, with the current folder importable."""
    module_name, _, name = path.partition(":")
    if not module_name or not name or module_name.startswith("."):
        raise SettingInvalid("ANGARIUM_APP", f"{path!r} is no application", "use module:app")
    folder = os.getcwd()  # noqa: PTH109  as the interpreter itself spells it in sys.path
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if not (module_name == missing or module_name.startswith(f"{missing}.")):
            raise
        problem = f"there is no module {module_name!r} in {folder} or among the packages"
        raise SettingInvalid("ANGARIUM_APP", problem, "check the name and the folder") from None
    found = getattr(module, name, None)
    if not isinstance(found, Angarium):
        problem = f"{name!r} in {module_name!r} is no Angarium object"
        raise SettingInvalid("ANGARIUM_APP", problem, f"write `{name} = Angarium()` there")
    return found
