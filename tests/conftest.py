"""The engines that tests share: each is started once, when the first test asks for it."""

import os
import signal

import pytest
from hypothesis import settings

from phasewise.fake_engine.engine import FakeEngineConfig
from tests.fake_engine_thread import running_fake_engine
from tests.real_engine import running_real_engine
from tests.real_pair import running_real_pair
from tests.redis_search import running_redis_search
from tests.redis_server import running_redis

REAL_TIMEOUT_S = 600

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

    First of all hooks, because pytest-xdist looks for groups in a hook of the same name.
    """
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.xdist_group("real"))
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(REAL_TIMEOUT_S))


@pytest.fixture(scope="session")
def real_engine(tmp_path_factory):
    """A real vLLM with the demo model and the step recorder."""
    with running_real_engine(tmp_path_factory.mktemp("real_engine") / "engine.log") as engine:
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
