"""Tests that need a redis-server name it where there is none, and are left out."""

import pytest

from tests.redis_server import running_redis


def test_without_a_redis_server_a_test_is_left_out_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match="redis-server is not installed"), running_redis(tmp_path):
        pytest.fail("it cannot have started")
