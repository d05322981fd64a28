"""The upstream, the load generator and the peers' start commands, taken from the gateway bench's folder.

The folder is no part of this repository and is only read: it is copied to a temporary one and compiled there,
and its fixed ports are exchanged for free ones. Starting what it describes is arms.py's.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BESIDE = Path("shared") / "gateway-bench"
PROGRAMS = ("fakeup", "sseload")
THEIR_UPSTREAM_PORT = 9000
INSTALL = {
    "vllm-router": "python3 -m venv {venvs}/vllm-router && "
    "{venvs}/vllm-router/bin/pip install vllm-router==0.1.16",
    "sglang-router": "python3 -m venv {venvs}/sglang-router && "
    "{venvs}/sglang-router/bin/pip install sglang-router==0.3.2",
    "litellm": "python3 -m venv {venvs}/litellm && "
    "{venvs}/litellm/bin/pip install 'litellm[proxy]==1.108.4' opentelemetry-api",
    "nginx": "apt-get install nginx-light",
}
"""How each peer that may be asked for gets onto a machine."""


class CannotMeasure(Exception):
    """Something that every measurement needs is not on this machine; the text says what."""


class PeerMissing(Exception):
    """A peer is not installed; the text says how to install it."""


@dataclass(frozen=True, slots=True)
class Command:
    """How a gateway is started, and where it then listens."""

    port: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]


class Tools:
    """A compiled copy of the bench in a folder of ours."""

    def __init__(self, source: Path, folder: Path, venvs: Path) -> None:
        for needed in ("gcc", "taskset"):
            if shutil.which(needed) is None:
                raise CannotMeasure(f"{needed} is not installed; try: apt-get install gcc util-linux")
        self.folder = folder
        self.upstream_port = free_port()
        self._venvs = venvs
        # nginx's workers run as another user, and keep large bodies in files below this folder.
        folder.chmod(0o755)
        _copy(source, folder)
        (folder / "run").mkdir()
        for program in PROGRAMS:
            _compile(folder, program)
        self._peers = _read_peers(folder, venvs)

    @property
    def upstream(self) -> Command:
        """The fake engine that all gateways stand before."""
        argv = (str(self.folder / "fakeup"), "--port", str(self.upstream_port))
        return Command(self.upstream_port, argv, {})

    @property
    def sseload(self) -> str:
        """The load generator's path."""
        return str(self.folder / "sseload")

    def peer(self, name: str) -> Command:
        """A peer's start command with ports that are free now; its configuration file is adapted in place."""
        how = INSTALL[name].format(venvs=self._venvs)
        if name not in self._peers:
            raise PeerMissing(f"the bench's peers.py does not know it; if it did: {how}")
        port, argv, environment = self._peers[name]
        if shutil.which(argv[0]) is None:
            raise PeerMissing(f"{argv[0]} does not exist; try: {how}")
        ports = {THEIR_UPSTREAM_PORT: self.upstream_port, port: free_port()}
        if "--prometheus-port" in argv:
            ports[int(argv[argv.index("--prometheus-port") + 1])] = free_port()
        for argument in argv:
            if argument.startswith(str(self.folder / "cfg")):
                configuration = Path(argument)
                configuration.write_text(with_ports(configuration.read_text(), ports))
        return Command(ports[port], tuple(with_ports(argument, ports) for argument in argv), environment)


def find_bench(given: Path | None, repository: Path = REPOSITORY) -> Path:
    """The bench's folder: the one given, or one beside this repository or the one it was cloned from."""
    if given is not None:
        candidates = [given]
    else:
        homes = (repository, *_cloned_from(repository))
        candidates = [parent / BESIDE for home in homes for parent in home.parents]
    for candidate in candidates:
        if all((candidate / f"{program}.c").is_file() for program in PROGRAMS):
            return candidate
    where = given or f"../{BESIDE}"
    raise CannotMeasure(f"no gateway bench at {where}; name its folder with --bench-folder")


def with_ports(text: str, ports: Mapping[int, int]) -> str:
    """A text with every port that stands in it as a whole number exchanged."""
    return re.sub(r"\d+", lambda found: str(ports.get(int(found[0]), found[0])), text)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _cloned_from(repository: Path) -> Iterator[Path]:
    """The repository's origin where that is a folder of this machine, and where a worktree's history lies."""
    for question in (("remote", "get-url", "origin"), ("rev-parse", "--git-common-dir")):
        try:
            reported = subprocess.run(
                ["git", *question], cwd=repository, capture_output=True, text=True, check=False
            ).stdout.strip()
        except OSError:
            return
        folder = (repository / reported.removeprefix("file://")).resolve()
        if reported and folder.is_dir():
            yield folder


def _copy(source: Path, folder: Path) -> None:
    """Contents only: what may be read there must be writable here."""
    for path in source.rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)


def _compile(folder: Path, program: str) -> None:
    done = subprocess.run(
        ["gcc", "-O2", "-o", program, f"{program}.c"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotMeasure(f"{program}.c does not compile: {done.stderr.strip()[-500:]}")


def _read_peers(folder: Path, venvs: Path) -> dict[str, tuple[int, list[str], dict[str, str]]]:
    """The bench's own table; it looks for environments where VENVS says."""
    os.environ["VENVS"] = str(venvs)
    table = runpy.run_path(str(folder / "peers.py"))["PEERS"]
    return {name: (port, argv, environment) for name, (port, argv, environment, _) in table.items()}
