"""What the processors of this machine gave an engine: cores it kept busy, and how long it waited for one.

Linux counts, for every thread, how long it ran and how long it stood ready without a core. An engine's own
threads get in each other's way too: only what others took, a limit held back or a hypervisor stole counts as
waiting here. Which process is the engine is listening_process.py's; what it means is left to diagnosis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from phasewise.adapters.host_cpu import CpuTimes, busy_share, read_core_times, read_cpu_times
from phasewise.adapters.listening_process import PROC, ProcessStat, process_tree

CGROUPS = Path("/sys/fs/cgroup")
LEAST_WANTED_CORES = 0.05
"""An engine that wanted less than this is idle, and would only show the moments from waking to running."""
_FRONT_END = "apiserver"
"""What vLLM calls its API processes when there are several; a single one is the process that listens."""

Cores = frozenset[int]
Thread = tuple[int, int]


class CpuSource(StrEnum):
    """Where a wait for cores was read."""

    RUN_QUEUE = "run-queue waits of its threads"
    PRESSURE = "CPU pressure of the whole host"


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """How long a thread has run and stood ready to run, and the cores it may use."""

    ran_s: float
    ready_s: float
    cores: Cores


@dataclass(frozen=True, slots=True)
class CpuReading:
    """An engine's processes and its host at one moment; what the system does not tell is None or empty.

    `front_ends` are the API processes; empty where one process is front end and engine at once.
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

    `wait_share` is the part of the time that the engine's threads wanted to run in which somebody else kept
    them from it; None where that cannot be told, or the engine wanted next to nothing. `stalled_share` is how
    much of the whole time its processes stood still for it, if each is as slow as its most delayed thread: an
    engine that mostly waits for a device loses less than its threads wait.
    """

    cores_busy: float
    front_end_cores: float | None
    wait_share: float | None
    stalled_share: float | None
    source: CpuSource | None
    host_busy_share: float | None


def snapshot(pid: int, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> CpuReading | None:
    """Read a process with all its descendants; None when it is gone."""
    tree = process_tree(pid, proc)
    if not tree:
        return None
    return CpuReading(
        at_s=clock(),
        processes_s={stat.pid: stat.cpu_s for stat in tree},
        front_ends=_front_ends(tree),
        threads=dict(_threads(tree, proc)),
        host=read_cpu_times(proc / "stat"),
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
    wait = _thread_waits(before, after, window_s) or _host_wait(before, after, sum(used.values()), window_s)
    return CpuUse(
        cores_busy=sum(used.values()) / window_s,
        # The busiest: Python runs one thread of a process at a time, so each is full for itself.
        front_end_cores=max(front_ends) / window_s if front_ends else None,
        wait_share=None if wait is None else wait.share,
        stalled_share=None if wait is None else wait.stalled_share,
        source=None if wait is None else wait.source,
        host_busy_share=host_busy,
    )


@dataclass(frozen=True, slots=True)
class _Wait:
    share: float
    stalled_share: float | None
    source: CpuSource


def _thread_waits(before: CpuReading, after: CpuReading, window_s: float) -> _Wait | None:
    """By the threads' own waits, where the kernel counts them."""
    threads = {name: _since(before.threads.get(name), thread) for name, thread in after.threads.items()}
    wanted_s = sum(thread.ran_s + thread.ready_s for thread in threads.values())
    if wanted_s < LEAST_WANTED_CORES * window_s:
        return None
    taken = _Taken.between(before, after)
    waited_s, robbed_s = _waited_for_others(threads, taken), _robbed(threads, taken)
    longest_s: dict[int, float] = {}
    for name in threads:
        longest_s[name[0]] = max(waited_s[name] + robbed_s[name], longest_s.get(name[0], 0.0))
    lost_s, all_robbed_s = sum(waited_s.values()), sum(robbed_s.values())
    return _Wait(
        share=(lost_s + all_robbed_s) / (wanted_s + all_robbed_s),
        stalled_share=min(1.0, sum(longest_s.values()) / window_s),
        source=CpuSource.RUN_QUEUE,
    )


def _host_wait(before: CpuReading, after: CpuReading, used_s: float, window_s: float) -> _Wait | None:
    """By the pressure that all the host felt, where threads tell nothing and the engine did something."""
    told = any(thread.ran_s or thread.ready_s for thread in after.threads.values())
    if told or used_s < LEAST_WANTED_CORES * window_s:
        return None
    if before.pressed_s is None or after.pressed_s is None or before.host is None or after.host is None:
        return None
    others_s = max(0.0, after.host.busy_s - before.host.busy_s - used_s)
    pressed_share = min(1.0, (after.pressed_s - before.pressed_s) / window_s)
    return _Wait(pressed_share * others_s / (others_s + used_s), None, CpuSource.PRESSURE)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What each core did between two readings, and what a limit held back from the engine."""

    busy_s: Mapping[int, float]
    stolen_s: Mapping[int, float]
    throttled_s: float

    @classmethod
    def between(cls, before: CpuReading, after: CpuReading) -> _Taken:
        known = after.cores.keys() & before.cores.keys()
        return cls(
            busy_s={core: after.cores[core].busy_s - before.cores[core].busy_s for core in known},
            stolen_s={core: after.cores[core].stolen_s - before.cores[core].stolen_s for core in known},
            throttled_s=max(0.0, (after.throttled_s or 0.0) - (before.throttled_s or 0.0)),
        )


def _waited_for_others(threads: Mapping[Thread, ThreadTime], taken: _Taken) -> dict[Thread, float]:
    """How long each thread stood ready because others ran.

    A ready thread waits for whoever has the cores that it may use: its siblings, or others. Each gets the
    blame in proportion to what it ran there. Where siblings spread over cores without meeting, that is less
    than others deserve: the figure is a cautious one.
    """
    own_s = {cores: _ran_on(cores, threads.values()) for cores in {it.cores for it in threads.values()}}
    waited_s = {}
    for name, thread in threads.items():
        busy_s = sum(taken.busy_s.get(core, 0.0) for core in thread.cores)
        others_s = max(0.0, busy_s - own_s[thread.cores]) + taken.throttled_s
        siblings_s = max(0.0, own_s[thread.cores] - thread.ran_s)
        waited_s[name] = thread.ready_s * others_s / (others_s + siblings_s) if others_s > 0 else 0.0
    return waited_s


def _robbed(threads: Mapping[Thread, ThreadTime], taken: _Taken) -> dict[Thread, float]:
    """What a hypervisor took of each thread's cores while it ran: no run queue sees that."""
    robbed_s = {}
    for name, thread in threads.items():
        busy_s = sum(taken.busy_s.get(core, 0.0) for core in thread.cores)
        stolen_s = sum(taken.stolen_s.get(core, 0.0) for core in thread.cores)
        robbed_s[name] = thread.ran_s * stolen_s / busy_s if busy_s > 0 else 0.0
    return robbed_s


def _ran_on(cores: Cores, threads: Iterable[ThreadTime]) -> float:
    """How long these threads ran on some cores, each spread evenly over those it may use."""
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
    """The process that listens and its fellows, if what computes stands apart from them."""
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
                cores = _allowed_cores((task / "status").read_text())
            except (OSError, ValueError):
                # Gone meanwhile, or a kernel that does not count it.
                continue
            yield (stat.pid, int(task.name)), ThreadTime(int(ran) / 1e9, int(ready) / 1e9, cores)


def _allowed_cores(status: str) -> Cores:
    """Cores from a line such as `Cpus_allowed_list: 0-3,8`."""
    _, _, rest = status.partition("Cpus_allowed_list:")
    cores: set[int] = set()
    for part in filter(None, rest.partition("\n")[0].strip().split(",")):
        low, _, high = part.partition("-")
        cores.update(range(int(low), int(high or low) + 1))
    return frozenset(cores)


def _pressed_s(proc: Path) -> float | None:
    """For how long, since the boot, something on this host was ready and had no core."""
    try:
        some = (proc / "pressure" / "cpu").read_text().partition("\n")[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None


def _throttled_s(pid: int, proc: Path) -> float | None:
    """Core-seconds that the CPU limit of the process's control group held back; None without one."""
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
