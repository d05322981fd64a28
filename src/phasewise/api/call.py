"""How a call of the Python API runs: its event loop, its keys and the checks of its arguments."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from threading import current_thread, main_thread
from typing import Any, TypeVar

from phasewise.clients import event_loop
from phasewise.clients.key_file import key_or_its_file
from phasewise.core import known_keys
from phasewise.core.errors import UsageError
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.run_files import engine_key_at, find_admin_key

_T = TypeVar("_T")
_Choice = TypeVar("_Choice", bound=StrEnum)


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of the work. Where an event loop runs already, as in a notebook, it runs in a thread of its
    own while the caller waits.
    """
    known_keys.find = lambda url: engine_key_at(url, phasewise_home(os.environ))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return event_loop.run(work)
    return _in_thread(work)


def _in_thread(work: Coroutine[Any, Any, _T]) -> _T:
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def cancellable() -> _T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        started.set_result((asyncio.get_running_loop(), task))
        return await work

    with _raising_on_ctrl_c(), ThreadPoolExecutor(1, "phasewise") as pool:
        done = pool.submit(event_loop.run, cancellable())
        try:
            return done.result()
        except KeyboardInterrupt:
            loop, task = started.result()
            loop.call_soon_threadsafe(task.cancel)
            try:
                return done.result()  # a diagnosis ends its window early
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None


@contextmanager
def _raising_on_ctrl_c() -> Iterator[None]:
    """Within the block Ctrl-C raises at once: asyncio would cancel the caller's task, which does not run."""
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def api_key_or_default(api_key: str | None) -> str | None:
    """The key for the requests of a load: as given, else PHASEWISE_API_KEY."""
    return api_key or os.environ.get("PHASEWISE_API_KEY")


def admin_key_or_default(admin_key: str | None, url: str) -> str | None:
    """A gateway's admin key: as given, else PHASEWISE_ADMIN_KEY, else that of a gateway on this machine."""
    named = key_or_its_file(admin_key or os.environ.get("PHASEWISE_ADMIN_KEY"))
    return named or find_admin_key(url, phasewise_home(os.environ))


def seed_or_random(seed: int | None) -> int:
    """The seed as given, else a random one."""
    check_range("--seed", seed, 0)
    return secrets.randbelow(2**31) if seed is None else seed


def chosen(option: str, value: str, choices: type[_Choice]) -> _Choice:
    """A value by its name; ConfigError for one that does not exist."""
    try:
        return choices(value)
    except ValueError:
        raise UsageError(f"{option} {value!r}", hint=f"accepted: {', '.join(choices)}") from None


def check_range(option: str, value: float | None, least: float, most: float | None = None) -> None:
    """UsageError for a value outside its range; None is the default and always fits."""
    if value is None or (value >= least and (most is None or value <= most)):
        return
    accepted = f"at least {least:g}" if most is None else f"{least:g} to {most:g}"
    raise UsageError(f"{option} {value:g}", hint=f"accepted: {accepted}")
