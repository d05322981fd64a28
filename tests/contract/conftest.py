"""Every contract test runs twice: against the fake engine and against the real one."""

import pytest

from phasewise.clients.http_client import HttpClient, Timeouts


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
def engine(request):
    return request.getfixturevalue(f"{request.param}_engine")


@pytest.fixture
async def client(engine):
    client = HttpClient(engine.base_url, Timeouts(connect_s=5, head_s=60, idle_s=60))
    yield client
    client.close()


@pytest.fixture
async def steps_client(engine):
    client = HttpClient(engine.steps_url, Timeouts(connect_s=5, head_s=60, idle_s=60))
    yield client
    client.close()
