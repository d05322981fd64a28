"""How much CPU time an engine got on this machine: the cores it kept busy, and how long it waited for one.

Linux counts, for every thread, how long it ran and how long it was ready without a core. An engine's own
threads also delay each other: only what other processes took, a limit withheld or a hypervisor stole counts
as waiting here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from phasewise.clients.host import CpuTimes, busy_share, read_core_times, read_cpu_times

# --- Which process of this machine listens on a port, and which processes belong to it.
#
# An engine is its front end and the processes that it started. Command lines hold keys and are never kept.

PROC = Path("/proc")
_HERE = frozenset({"0.0.0.0", "127.0.0.1", "::", "::1", "::ffff:127.0.0.1"})  # noqa: S104 - read, not bound
"""Local addresses at which loopback is answered."""
FORWARDERS = frozenset(
    {
        *("docker-proxy", "rootlessport", "conmon", "ssh", "sshd", "kubectl", "socat"),
        *("haproxy", "nginx", "envoy", "caddy", "traefik", "slirp4netns"),
    }
)
"""Programs that listen on behalf of others: their CPU use says nothing about the engine behind them."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One process as the system reports it."""

    pid: int
    name: str
    cpu_s: float
    started_unix_s: float


def loopback_port(url: str) -> int | None:
    """The port of an address on this machine's loopback; None for other addresses."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return None
    return (parts.port or (443 if parts.scheme == "https" else 80)) if here else None


def listening_processes(ports: Collection[int]) -> dict[int, int]:
    """The process behind each port, where we may see it: one look at the machine for all of them."""
    found = listeners(ports, _HERE)
    stats = {port: read_stat(pid) for port, pid in found.items()}
    return {
        port: stat.pid for port, stat in stats.items() if stat is not None and stat.name not in FORWARDERS
    }


def listeners(ports: Collection[int], addresses: Collection[str] | None = None) -> dict[int, int]:
    """The processes that listen on these ports, at some addresses or at any, as far as we may see them.

    A child of the listening process may hold the same socket: the result is the parent.
    """
    try:
        held = [(each.pid, each) for each in psutil.net_connections(kind="tcp") if each.pid is not None]
    except (OSError, psutil.Error):
        return {}
    found = {}
    for pid, socket in held:
        port = _listens_at(socket, addresses)
        if port in ports:
            found[port] = _eldest(pid, port)
    return found


def _listens_at(socket: Any, addresses: Collection[str] | None) -> int:  # noqa: ANN401 - psutil hides its name
    """The port of a socket that listens at one of these addresses, else 0."""
    listens = socket.status == psutil.CONN_LISTEN and (addresses is None or socket.laddr.ip in addresses)
    return int(socket.laddr.port) if listens else 0


def _eldest(pid: int, port: int) -> int:
    with suppress(psutil.Error):
        parent = psutil.Process(pid).parent()
        if parent is not None and any(
            _listens_at(each, None) == port for each in parent.net_connections("tcp")
        ):
            return _eldest(parent.pid, port)
    return pid


def process_tree(root: int) -> tuple[ProcessStat, ...]:
    """A process and all its descendants, itself first; empty when it is gone."""
    first = read_stat(root)
    try:
        children = psutil.Process(root).children(recursive=True)
    except (OSError, psutil.Error):
        return ()
    others = (read_stat(child.pid) for child in children)
    return () if first is None else (first, *(stat for stat in others if stat is not None))


def read_stat(pid: int) -> ProcessStat | None:
    """What the system counts of a process; None when it is gone or not ours to look at."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return ProcessStat(
                pid=pid,
                name=process.name(),
                cpu_s=times.user + times.system,
                started_unix_s=process.create_time(),
            )
    except (OSError, psutil.Error):
        return None


def command_line(pid: int) -> list[str]:
    """The words that a process was started with; none when it is gone or not ours to look at."""
    try:
        return psutil.Process(pid).cmdline()
    except (OSError, psutil.Error):
        return []


def cores_of(pid: int) -> int | None:
    """How many cores a process may use; None when it is gone, or the system does not say."""
    try:
        return len(psutil.Process(pid).cpu_affinity() or ())
    except (OSError, AttributeError, psutil.Error):
        return None


CGROUPS = Path("/sys/fs/cgroup")
LEAST_WANTED_CORES = 0.05
"""An engine that wanted less than this is idle: only its wake-up delays would show."""
_FRONT_END = "apiserver"
"""vLLM's name for its API processes when there are several; a single one is the listening process."""

Cores = frozenset[int]
Thread = tuple[int, int]


class CpuSource(StrEnum):
    """The source of a wait for cores."""

    RUN_QUEUE = "run-queue waits of its threads"
    PRESSURE = "CPU pressure of the whole host"


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """How long a thread ran and was ready to run, and the cores that it may use."""

    ran_s: float
    ready_s: float
    cores: Cores


@dataclass(frozen=True, slots=True)
class CpuReading:
    """An engine's processes and its host at one moment; what the system does not report is None or empty.

    `front_ends` are the API processes; empty where one process is both front end and engine.
    """

    at_s: float
    processes_s: Mapping[int, float]
    front_ends: frozenset[int]
    threads: Mapping[Thread, ThreadTime]
    host: CpuTimes | None
    cores: Mapping[int, CpuTimes]
    pressed_s: float | None
    throttled_s: float | None


@dataclass(frozen=True, slots=True)
class CpuUse:
    """What happened between two readings.

    `wait_share` is the share of the engine threads' wanted run time in which others kept them from running;
    None where that is unknown or the engine was nearly idle. `stalled_share` is the share of the whole time
    that this stalled its processes, if each is as slow as its most delayed thread: an engine that mostly
    waits for a device loses less than its threads wait.
    """

    cores_busy: float
    front_end_cores: float | None
    wait_share: float | None
    stalled_share: float | None
    source: CpuSource | None
    host_busy_share: float | None


def snapshot(pid: int, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> CpuReading | None:
    """Read a process with all its descendants; None when it is gone."""
    tree = process_tree(pid)
    if not tree:
        return None
    return CpuReading(
        at_s=clock(),
        processes_s={stat.pid: stat.cpu_s for stat in tree},
        front_ends=_front_ends(tree),
        threads=dict(_threads(tree, proc)),
        host=read_cpu_times(),
        cores=read_core_times(proc / "stat"),
        pressed_s=_pressed_s(proc),
        throttled_s=_throttled_s(pid, proc),
    )


def between(before: CpuReading, after: CpuReading) -> CpuUse:
    """What the engine got between two readings of the same process."""
    window_s = max(after.at_s - before.at_s, 1e-6)
    used = {pid: used_s - before.processes_s.get(pid, 0.0) for pid, used_s in after.processes_s.items()}
    front_ends = [used[pid] for pid in after.front_ends if pid in used]
    host_busy = None
    if before.host is not None and after.host is not None:
        host_busy = busy_share(before.host, after.host)
    wait = (
        _thread_waits(before, after, window_s)
        or _host_wait(before, after, sum(used.values()), window_s)
        or _Wait(None, None, None)
    )
    return CpuUse(
        cores_busy=sum(used.values()) / window_s,
        # The busiest one: Python runs one thread of a process at a time, so each process saturates alone.
        front_end_cores=max(front_ends) / window_s if front_ends else None,
        wait_share=wait.share,
        stalled_share=wait.stalled_share,
        source=wait.source,
        host_busy_share=host_busy,
    )


@dataclass(frozen=True, slots=True)
class _Wait:
    share: float | None
    stalled_share: float | None
    source: CpuSource | None


def _thread_waits(before: CpuReading, after: CpuReading, window_s: float) -> _Wait | None:
    """From the threads' own waits, where the kernel counts them."""
    threads = {name: _since(before.threads.get(name), thread) for name, thread in after.threads.items()}
    wanted_s = sum(thread.ran_s + thread.ready_s for thread in threads.values())
    if wanted_s < LEAST_WANTED_CORES * window_s:
        return None
    waited_s = robbed_s = 0.0
    longest_s: dict[int, float] = {}
    for (pid, _), (thread_waited_s, thread_robbed_s) in _lost(threads, before, after).items():
        waited_s += thread_waited_s
        robbed_s += thread_robbed_s
        longest_s[pid] = max(thread_waited_s + thread_robbed_s, longest_s.get(pid, 0.0))
    return _Wait(
        share=(waited_s + robbed_s) / (wanted_s + robbed_s),
        stalled_share=min(1.0, sum(longest_s.values()) / window_s),
        source=CpuSource.RUN_QUEUE,
    )


def _host_wait(before: CpuReading, after: CpuReading, used_s: float, window_s: float) -> _Wait | None:
    """From the pressure of the whole host, where threads report nothing and the engine was active."""
    reported = any(thread.ran_s or thread.ready_s for thread in after.threads.values())
    if reported or used_s < LEAST_WANTED_CORES * window_s:
        return None
    if before.pressed_s is None or after.pressed_s is None or before.host is None or after.host is None:
        return None
    others_s = max(0.0, after.host.busy_s - before.host.busy_s - used_s)
    pressed_share = min(1.0, (after.pressed_s - before.pressed_s) / window_s)
    return _Wait(pressed_share * others_s / (others_s + used_s), None, CpuSource.PRESSURE)


def _lost(
    threads: Mapping[Thread, ThreadTime], before: CpuReading, after: CpuReading
) -> dict[Thread, tuple[float, float]]:
    """How long each thread was ready while others ran, and how long a hypervisor had its cores while it ran.

    A ready thread waits for the threads on the cores that it may use: its siblings or others. Each side is
    charged in proportion to what it ran there. Where siblings run on separate cores, this charges others too
    little, so the figure is a lower bound. What a hypervisor takes, no run queue shows.
    """
    known = after.cores.keys() & before.cores.keys()
    cores_busy_s = {core: after.cores[core].busy_s - before.cores[core].busy_s for core in known}
    cores_stolen_s = {core: after.cores[core].stolen_s - before.cores[core].stolen_s for core in known}
    throttled_s = max(0.0, (after.throttled_s or 0.0) - (before.throttled_s or 0.0))
    core_sets = {thread.cores for thread in threads.values()}
    own_s = {cores: _ran_on(cores, threads.values()) for cores in core_sets}
    lost_s = {}
    for name, thread in threads.items():
        busy_s = sum(cores_busy_s.get(core, 0.0) for core in thread.cores)
        stolen_s = sum(cores_stolen_s.get(core, 0.0) for core in thread.cores)
        others_s = max(0.0, busy_s - own_s[thread.cores]) + throttled_s
        siblings_s = max(0.0, own_s[thread.cores] - thread.ran_s)
        lost_s[name] = (
            thread.ready_s * others_s / (others_s + siblings_s) if others_s > 0 else 0.0,
            thread.ran_s * stolen_s / busy_s if busy_s > 0 else 0.0,
        )
    return lost_s


def _ran_on(cores: Cores, threads: Iterable[ThreadTime]) -> float:
    """How long these threads ran on some cores, each spread evenly over the cores that it may use."""
    return sum(
        thread.ran_s * len(cores & thread.cores) / len(thread.cores) for thread in threads if thread.cores
    )


def _since(before: ThreadTime | None, after: ThreadTime) -> ThreadTime:
    if before is None:
        return after
    return ThreadTime(
        max(0.0, after.ran_s - before.ran_s), max(0.0, after.ready_s - before.ready_s), after.cores
    )


def _front_ends(tree: tuple[ProcessStat, ...]) -> frozenset[int]:
    """The listening process and its peers, if the engine core is a separate process."""
    root, *others = tree
    fellows = {stat.pid for stat in others if _FRONT_END in stat.name.lower()}
    return frozenset({root.pid, *fellows}) if len(others) > len(fellows) else frozenset()


def _threads(tree: Iterable[ProcessStat], proc: Path) -> Iterable[tuple[Thread, ThreadTime]]:
    for stat in tree:
        try:
            tasks = list((proc / str(stat.pid) / "task").iterdir())
        except OSError:
            continue
        for task in tasks:
            try:
                ran, ready, *_ = (task / "schedstat").read_text().split()
                cores = frozenset(os.sched_getaffinity(int(task.name)))
            except (OSError, ValueError):
                # The thread has ended, or the kernel does not count it.
                continue
            yield (stat.pid, int(task.name)), ThreadTime(int(ran) / 1e9, int(ready) / 1e9, cores)


def _pressed_s(proc: Path) -> float | None:
    """For how long, since boot, some task on this host was ready without a core."""
    try:
        some = (proc / "pressure" / "cpu").read_text().partition("\n")[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None


def _throttled_s(pid: int, proc: Path) -> float | None:
    """Core-seconds that the CPU limit of the process's control group withheld; None without one."""
    try:
        rows = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for row in rows:
        _, controllers, path = row.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = CGROUPS / ("cpu" if controllers else "") / path.lstrip("/")
        try:
            fields = [line.split() for line in (folder / "cpu.stat").read_text().splitlines()]
            counts = {name: int(count) for name, count in fields}
        except (OSError, ValueError):
            continue
        if "throttled_usec" in counts:
            return counts["throttled_usec"] / 1e6
        if "throttled_time" in counts:
            return counts["throttled_time"] / 1e9
    return None
