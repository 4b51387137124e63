"""The application object: registers a user's functions by kind.

`Angarium` only registers functions; the roles that run them look them up by kind. It opens no
connection, so any script or test can import a module with handlers.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar, overload

from angarium.runtime.errors import SettingInvalid
from angarium.runtime.retry_policy import DEFAULT_POLICY, BackoffKind, ErrorTypes, RetryPolicy

Kind = Literal["worker", "step", "reply_sender", "inbox", "table", "stream"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Handler:
    """A user's function and the name it is registered with."""

    kind: Kind
    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    retry: RetryPolicy = DEFAULT_POLICY

    @cached_property
    def is_async(self) -> bool:
        call = getattr(self.function, "__call__", None)  # noqa: B004  an object with async __call__
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)


class Angarium:
    """One for each application: `app = Angarium()`, then decorate functions.

    A function may be registered for several kinds. A second function with the same kind and name
    is refused, because one of the two would never run.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[Kind, str], Handler] = {}

    @overload
    def worker(self, function: Function, /) -> Function: ...

    @overload
    def worker(
        self,
        queue: str = "",
        /,
        *,
        concurrency: int | None = None,
        window: int | None = None,
        retries: int | None = None,
        backoff: BackoffKind = "exponential",
        retry_on: ErrorTypes = Exception,
        timeout_s: float | None = None,
    ) -> Callable[[Function], Function]: ...

    def worker(
        self,
        queue: Any = "",
        /,
        *,
        concurrency: int | None = None,
        window: int | None = None,
        retries: int | None = None,
        backoff: BackoffKind = "exponential",
        retry_on: ErrorTypes = Exception,
        timeout_s: float | None = None,
    ) -> Any:
        """Process messages of a queue of the dispatch module; without a name, of the unnamed one.
        The function returns a dict or None."""
        policy = RetryPolicy(retries, backoff, retry_on=retry_on, timeout_s=timeout_s)
        options = {"concurrency": concurrency, "window": window}
        if callable(queue):
            return self._adder("worker", "", policy, **options)(queue)
        return self._adder("worker", queue, policy, **options)

    def step(
        self,
        step_type: str,
        *,
        retries: int | None = None,
        backoff: BackoffKind = "exponential",
        retry_on: ErrorTypes = Exception,
        timeout_s: float | None = None,
    ) -> Callable[[Function], Function]:
        """Run steps of this type in the transactions module."""
        policy = RetryPolicy(retries, backoff, retry_on=retry_on, timeout_s=timeout_s)
        return self._adder("step", step_type, policy)

    @overload
    def reply_sender(self, name: Function, /) -> Function: ...

    @overload
    def reply_sender(
        self,
        name: str = "default",
        *,
        retries: int | None = None,
        backoff: BackoffKind = "exponential",
        retry_on: ErrorTypes = Exception,
        timeout_s: float | None = None,
    ) -> Callable[[Function], Function]: ...

    def reply_sender(
        self,
        name: Any = "default",
        *,
        retries: int | None = None,
        backoff: BackoffKind = "exponential",
        retry_on: ErrorTypes = Exception,
        timeout_s: float | None = None,
    ) -> Any:
        """Send replies of the conversations module."""
        policy = RetryPolicy(retries, backoff, retry_on=retry_on, timeout_s=timeout_s)
        if callable(name):
            return self._adder("reply_sender", "default", policy)(name)
        return self._adder("reply_sender", name, policy)

    @overload
    def inbox(self, function: Function, /) -> Function: ...

    @overload
    def inbox(
        self,
        *,
        retries: int | None = None,
        backoff: BackoffKind = "exponential",
        retry_on: ErrorTypes = Exception,
        timeout_s: float | None = None,
    ) -> Callable[[Function], Function]: ...

    def inbox(
        self,
        function: Any = None,
        *,
        retries: int | None = None,
        backoff: BackoffKind = "exponential",
        retry_on: ErrorTypes = Exception,
        timeout_s: float | None = None,
    ) -> Any:
        """Handle messages that the routing module delivers to this instance."""
        policy = RetryPolicy(retries, backoff, retry_on=retry_on, timeout_s=timeout_s)
        add = self._adder("inbox", "inbox", policy)
        return add if function is None else add(function)

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
        """A copy of the application with each function replaced by `wrap` of its handler."""
        found = Angarium()
        found._handlers = {
            key: replace(each, function=wrap(each)) for key, each in self._handlers.items()
        }
        return found

    def handler(self, kind: Kind, role: str) -> Handler:
        """The only handler of a kind. Raises SettingInvalid if there is none or more than one."""
        found = self.handlers(kind)
        if not found:
            problem = f"the application has no @app.{kind}, which role {role!r} needs"
            raise SettingInvalid("ANGARIUM_APP", problem, "decorate a function and name its module")
        if len(found) > 1:
            problem = f"role {role!r} takes one @app.{kind}, and there are {', '.join(found)}"
            raise SettingInvalid("ANGARIUM_APP", problem, "leave one of them")
        return next(iter(found.values()))

    def _adder(
        self, kind: Kind, name: str, retry: RetryPolicy = DEFAULT_POLICY, **options: Any
    ) -> Callable[[Function], Function]:
        if not isinstance(name, str):
            # `@app.step` without parentheses would replace the function, which would never run.
            raise TypeError(f'@app.{kind} needs a name: @app.{kind}("name")')

        def add(function: Function) -> Function:
            if not callable(function):
                raise TypeError(f"@app.{kind} is for functions, not for {function!r}")
            if (kind, name) in self._handlers:
                raise ValueError(f"@app.{kind} {name!r} is registered twice")
            given = {key: value for key, value in options.items() if value is not None}
            self._handlers[kind, name] = Handler(kind, name, function, given, retry)
            return function

        return add


class HandlerExit(RuntimeError):
    """A user's function raised what ends a process or a task; only its own call has failed."""


class Caller:
    """Calls handlers from the event loop; plain functions run in threads of their own pool.

    A thread can't be interrupted: if a call is cancelled, its function runs to the end and the
    result is dropped.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads = ThreadPoolExecutor(threads_max, "angarium-handler")

    def call(self, handler: Handler, *args: Any) -> Coroutine[Any, Any, Any]:
        if handler.is_async:
            return _awaited(handler.function, args)
        return self._in_thread(handler, args)

    async def _in_thread(self, handler: Handler, args: tuple[Any, ...]) -> Any:
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()  # logs of the function contain its trace id
        result = await loop.run_in_executor(
            self._threads, context.run, _call, handler.function, args
        )
        return await _awaited(lambda: result, ()) if inspect.isawaitable(result) else result

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _awaited(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return await function(*args)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise HandlerExit(f"the function raised {error!r}") from error
    except Exception:
        raise
    except BaseException as error:
        raise HandlerExit(f"the function raised {error!r}") from error


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except StopIteration as error:
        # A future refuses StopIteration, so its caller would wait for ever.
        raise HandlerExit(f"the function raised {error!r}") from error
    except Exception:
        raise
    except BaseException as error:
        raise HandlerExit(f"the function raised {error!r}") from error


def load_application(path: str) -> Angarium:
    """The application at `module:name`; modules in the current folder can be imported."""

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
