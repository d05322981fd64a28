"""The engines that tests share: each is started once, when the first test asks for it."""

import asyncio
import gc
import os
import signal
import sys
import threading

import pytest
from hypothesis import settings

from phasewise.fake_engine.engine import FakeEngineConfig
from tests.fake_engine_thread import running_fake_engine
from tests.llama_engine import running_llama_cpp
from tests.open_connections import pytest_runtest_teardown  # noqa: F401 - a hook
from tests.real_engine import running_real_engine
from tests.real_pair import running_real_pair
from tests.redis_search import running_redis_search
from tests.redis_server import running_redis
from tests.repeat_when_starved import pytest_runtest_protocol, pytest_terminal_summary  # noqa: F401 - hooks

REAL_TIMEOUT_S = 1200
TASKS_TIMER = pytest.StashKey()

# How long an example takes says more about a busy machine than about the code.
settings.register_profile("phasewise", deadline=None)
# CI judges a change, so it tries the same examples every time, and fewer where a test does not say how
# many; new ones are looked for at developers' desks.
settings.register_profile("ci", parent=settings.get_profile("phasewise"), derandomize=True, max_examples=40)
settings.load_profile("ci" if os.environ.get("CI") else "phasewise")

# A shell that starts us in the background ignores SIGINT, and so would every process that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Under nohup it is SIGHUP.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Real tests share one engine, so one worker runs them all; the first of them waits for it to start.

    Those with llama.cpp, and those that need podman, Kubernetes or Envoy but no engine, are for others.
    First of all hooks, because pytest-xdist looks for groups in a hook of the same name.
    """
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.xdist_group(_group_of(item)))
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(REAL_TIMEOUT_S))


def _group_of(item):
    if item.path.parent.name in {"deploy", "discovery", "picker"}:
        return "around"
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    uses_llama_cpp = "llama_cpp_engine" in item.fixturenames or "llama_cpp" in params
    return "llama.cpp" if uses_llama_cpp else "vllm"


def pytest_collection_finish():
    """Ten thousand collected tests stay to the end: whoever collects garbage need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item, settings):
    """Shortly before a test is given up, say what each of its tasks waits for: it may be one that hangs."""
    if settings.timeout and settings.timeout > 2:
        item.stash[TASKS_TIMER] = timer = threading.Timer(settings.timeout - 1, print_tasks)
        timer.daemon = True
        timer.start()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item):
    """The test ended in time."""
    if (timer := item.stash.get(TASKS_TIMER, None)) is not None:
        timer.cancel()


def print_tasks():
    """The stack of every task of the main thread's event loop, down to the innermost coroutine."""
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and not isinstance(loop := frame.f_locals.get("self"), asyncio.AbstractEventLoop):
        frame = frame.f_back
    for task in asyncio.all_tasks(loop) if frame is not None else ():
        print(task, file=sys.stderr)
        waits = task.get_coro()
        while (at := getattr(waits, "cr_frame", None)) is not None:
            print(f"    {at.f_code.co_filename}:{at.f_lineno} {at.f_code.co_name}", file=sys.stderr)
            waits = waits.cr_await


@pytest.fixture(scope="session")
def real_engine(tmp_path_factory):
    """A real vLLM with the demo model and the step recorder."""
    with running_real_engine(tmp_path_factory.mktemp("real_engine") / "engine.log") as engine:
        yield engine


@pytest.fixture(scope="session")
def llama_cpp_engine(tmp_path_factory):
    """A real llama.cpp server with the demo model and two slots."""
    with running_llama_cpp(tmp_path_factory.mktemp("llama_cpp") / "server.log") as engine:
        yield engine


@pytest.fixture(scope="session")
def real_pair(tmp_path_factory):
    """Two real vLLM, a prefill and a decode engine, that hand KV over by NIXL."""
    with running_real_pair(tmp_path_factory.mktemp("real_pair")) as pair:
        yield pair


@pytest.fixture(scope="session")
def fake_engine():
    """A fake engine with steps of about a millisecond."""
    with running_fake_engine(FakeEngineConfig()) as engine:
        yield engine


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A real Redis; tests that share it use key prefixes of their own."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def own_redis(tmp_path):
    """A real Redis that one test may kill."""
    with running_redis(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def redis_search(tmp_path_factory):
    """A real Redis with vector search; tests that share it use key prefixes of their own."""
    with running_redis_search(tmp_path_factory.mktemp("redis_search")) as server:
        yield server


@pytest.fixture
def own_redis_search(tmp_path):
    """A real Redis with vector search that one test may kill."""
    with running_redis_search(tmp_path) as server:
        yield server
