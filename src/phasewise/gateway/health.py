"""Checks every worker once a second: whether it answers, and which incarnation it is.

It writes the results into the cluster view and calls back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import orjson

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.step_feed import default_steps_url, parse_steps
from phasewise.core.engine_metrics import PROCESS_START
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.worker import UNKNOWN_MODEL, Worker
from phasewise.gateway.guard import ErrorGuard
from phasewise.gateway.progress_watch import ProgressWatch
from phasewise.gateway.upstream.engines import Connect
from phasewise.scheduling.world import ClusterView, Health, WorkerChange

logger = logging.getLogger("phasewise.gateway")

POLL_INTERVAL_S = 1.0
PROBE_TIMEOUTS = Timeouts(connect_s=1.0, head_s=2.0, idle_s=2.0)
SILENCES_TO_DOWN = 3
"""Timeouts in a row. A busy engine may miss a deadline; any other failure means down at once."""

_STARTED = re.compile(rb"^" + PROCESS_START.encode() + rb"\s+(\S+)", re.MULTILINE)
_STEPS_HEAD_ONLY = "/steps?since=9007199254740991&limit=1"


class HealthWatcher:
    """Watches the workers of one cluster view from `start` to `stop`.

    `on_look` is called with the worker's name after every check. `on_silence` is called with its name and a
    time while its checks time out: requests that have waited for that long get no answer. `on_models` is
    called with its name and its list of models whenever it comes back. `progress` looks
    further at workers that have answered.
    """

    def __init__(
        self,
        cluster: ClusterView,
        connect: Connect,
        interval_s: float = POLL_INTERVAL_S,
        *,
        timeouts: Timeouts = PROBE_TIMEOUTS,
        on_look: Callable[[str], None] = lambda _name: None,
        on_silence: Callable[[str, float], None] = lambda _name, _for_s: None,
        on_models: Callable[[str, bytes], None] = lambda _name, _reply: None,
        progress: ProgressWatch | None = None,
    ) -> None:
        self._cluster = cluster
        self._interval_s = interval_s
        self._silence_s = SILENCES_TO_DOWN * timeouts.head_s
        self._on_look = on_look
        self._on_silence = on_silence
        self._on_models = on_models
        self._progress = progress
        self._guard = ErrorGuard("checking workers")
        self._connect = lambda worker: connect(worker, timeouts)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reported_no_socket = False

    async def start(self) -> None:
        """Check every worker once, then go on in the background.

        If none is up, those that timed out are checked again, as often as silence means down: one missed
        deadline says nothing, and requests would be rejected for it.
        """
        probes = [_Probe(state.worker, self._connect) for state in self._cluster.snapshot()]
        await asyncio.gather(*(self._look(probe) for probe in probes))
        for _ in range(SILENCES_TO_DOWN - 1):
            silent = [] if self._any_is_up() else [probe for probe in probes if probe.misses_deadlines]
            await asyncio.gather(*(self._look(probe) for probe in silent))
        # Spread over the interval: many checks at once would stall the streams.
        step_s = self._interval_s / max(1, len(probes))
        for index, probe in enumerate(probes, start=1):
            self._tasks[probe.name] = asyncio.create_task(self._watch(probe, index * step_s))

    def follow(self, change: WorkerChange) -> None:
        """Watch other workers from now on; new ones are checked at once."""
        for name in change.gone:
            self._tasks.pop(name).cancel()
            if self._progress is not None:
                self._progress.forget(name)
        for worker in change.new:
            probe = _Probe(worker, self._connect)
            self._tasks[probe.name] = asyncio.create_task(self._watch(probe, 0.0))

    async def stop(self) -> None:
        """Stop the checks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._progress is not None:
            await self._progress.stop()

    def _any_is_up(self) -> bool:
        return any(state.health is Health.UP for state in self._cluster.snapshot())

    async def _watch(self, probe: _Probe, first_after_s: float) -> None:
        try:
            await asyncio.sleep(first_after_s)
            while True:
                await self._look(probe)
                await asyncio.sleep(self._interval_s)
        finally:
            probe.close()

    async def _look(self, probe: _Probe) -> None:
        # Without the guard an error would freeze the worker's health for ever.
        with self._guard:
            await self._see(probe)
        with self._guard:
            self._on_look(probe.name)

    async def _see(self, probe: _Probe) -> None:
        try:
            await probe.check()
        except UpstreamError as error:
            self._report_if_no_socket(error)
            if probe.believes_down(error.kind):
                self._cluster.mark_down(probe.name, error.message)
                if error.kind is FailureKind.TIMED_OUT:
                    self._on_silence(probe.name, self._silence_s)
            return
        health = self._cluster.state(probe.name).health
        # A restart ends a standstill; otherwise only progress does.
        if (
            await probe.has_restarted()
            if health.stands_still
            else health is not Health.UP or not probe.is_certain
        ):
            self._cluster.mark_up(probe.name, await probe.incarnation(), probe.model, probe.steps_url)
            with suppress(UpstreamError):
                self._on_models(probe.name, await probe.models())
        if self._progress is not None:
            await self._progress.look(probe.name)

    def _report_if_no_socket(self, error: UpstreamError) -> None:
        if error.kind is FailureKind.NO_SOCKET and not self._reported_no_socket:
            self._reported_no_socket = True
            hint = "raise the limit of open files (ulimit -n); two are needed per stream"
            logger.warning("this process can open no more connections: %s. hint: %s", error.message, hint)


async def first_model(engine: HttpClient) -> str:
    """The first model that an engine serves; UpstreamError if it does not say."""
    reply = await engine.fetch("GET", "/v1/models")
    try:
        return str(orjson.loads(reply.body)["data"][0]["id"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        lacks, hint = _why_no_models(reply.status)
        message = f"{engine.base_url}/v1/models {lacks} (HTTP {reply.status})"
        raise UpstreamError(FailureKind.PROTOCOL, message, hint=hint) from None


def _why_no_models(status: int) -> tuple[str, str | None]:
    """What this status says of the server, and what to do; nothing is to be done about one that starts."""
    if status in {401, 403}:
        return "requires an API key", "a gateway file gives each worker its key with `api_key_file`"
    if status >= 500:
        return "is not ready", None
    return "does not answer with a list of models", "check that this is an OpenAI-compatible engine's address"


async def find_recorder(engine_url: str) -> str | None:
    """The address of the engine's step recorder, if one answers where it listens by default."""
    steps_url = default_steps_url(engine_url)
    if steps_url is None:
        return None
    client = HttpClient(steps_url, PROBE_TIMEOUTS)
    try:
        reply = await client.fetch("GET", "/steps?limit=1")
    except UpstreamError:
        return None
    finally:
        client.close()
    return steps_url if reply.status == 200 else None


class _Probe:
    """The health checks of one worker."""

    def __init__(self, worker: Worker, connect: Callable[[Worker], HttpClient]) -> None:
        self.name = worker.name
        self.model = worker.model
        self.steps_url = worker.steps_url
        self._worker = worker
        self._connect = connect
        self._engine = connect(worker)
        self._recorder = self._connected_recorder()
        self._silences = 0
        self._times_seen_up = 0
        self._incarnation = ""
        self._signs: dict[str, str] = {}
        self.is_certain = True

    async def check(self) -> None:
        """Raise UpstreamError unless the engine reports healthy and its model is known."""
        reply = await self._engine.fetch("GET", "/health")
        self._silences = 0
        if reply.status != 200:
            raise UpstreamError(FailureKind.SERVER_ERROR, f"/health answered {reply.status}")
        if self.model == UNKNOWN_MODEL:
            model = await first_model(self._engine)
            if self.steps_url is None:
                self.steps_url = await find_recorder(self._worker.url)
                self._recorder = self._connected_recorder()
            self.model = model

    async def models(self) -> bytes:
        """What it says of its models."""
        return (await self._engine.fetch("GET", "/v1/models")).body

    def _connected_recorder(self) -> HttpClient | None:
        if self.steps_url is None:
            return None
        return self._connect(replace(self._worker, url=self.steps_url.rstrip("/").removesuffix("/steps")))

    def believes_down(self, kind: FailureKind) -> bool:
        """Whether a failed check of this kind, after those before it, means that the worker is down."""
        if kind is FailureKind.NO_SOCKET:
            return False
        if kind is not FailureKind.TIMED_OUT:
            return True
        self._silences += 1
        return self._silences >= SILENCES_TO_DOWN

    @property
    def misses_deadlines(self) -> bool:
        """Whether its last checks timed out, and too few of them to believe it down."""
        return 0 < self._silences < SILENCES_TO_DOWN

    async def incarnation(self) -> str:
        """An id of this incarnation of the engine, from the best sign that it exposes.

        Only a changed sign means a new incarnation. An engine that gives no sign it gave before, perhaps
        because it is busy, counts as unchanged and is checked again.
        """
        signs, earlier = await self._read_signs(), self._signs
        self._times_seen_up += 1
        compared = [sign == earlier[name] for name, sign in signs.items() if name in earlier]
        self.is_certain = bool(compared) or not earlier
        if not all(compared) or not earlier:
            self._signs = signs
            name, sign = next(iter(signs.items()), ("seen", str(self._times_seen_up)))
            self._incarnation = f"{name}-{sign}"
        else:
            self._signs = earlier | signs
        return self._incarnation

    async def has_restarted(self) -> bool:
        """Whether a sign shows another incarnation than before."""
        signs = await self._read_signs()
        return any(sign != self._signs[name] for name, sign in signs.items() if name in self._signs)

    async def _read_signs(self) -> dict[str, str]:
        """Signs that differ between two incarnations of the engine, the best first."""
        signs: dict[str, str] = {}
        with suppress(UpstreamError):
            if self._recorder is not None:
                header, _ = parse_steps((await self._recorder.fetch("GET", _STEPS_HEAD_ONLY)).body)
                signs["boot"] = header.boot
        with suppress(UpstreamError):
            metrics = await self._engine.fetch("GET", "/metrics")
            if metrics.status == 200 and (started := _STARTED.search(metrics.body)):
                signs["start"] = started[1].decode(errors="replace")
        return signs

    def close(self) -> None:
        """Drop the connections."""
        self._engine.close()
        if self._recorder is not None:
            self._recorder.close()
