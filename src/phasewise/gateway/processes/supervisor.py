"""Keeps the processes of a gateway: starts them, starts them again if they die, replaces them one by one.

It holds the listeners, so that connections which wait for a process that died or leaves are served by the
next. It has no event loop and no threads. Processes are started by exec, with the code that is on disk then.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from phasewise.core.errors import ConfigError
from phasewise.fleet.local.run_files import write_private
from phasewise.gateway.processes.order import (
    ProcessOrder,
    RestartProgress,
    error_file,
    progress_file,
    socket_file,
)
from phasewise.gateway.processes.totals import add_ended

logger = logging.getLogger("phasewise.gateway")

BACKLOG = 4096
AGAIN_AFTER_S = 1.0
"""A process that died this soon after its start is not started again before."""
SERVES_WITHIN_S = 120.0
"""A successor that does not serve by then is given up."""
STOPS = (signal.SIGTERM, signal.SIGINT)
HANDLED = (*STOPS, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)
COMMAND = (sys.executable, "-P", "-m", "phasewise.gateway.processes.child")
"""-P: nothing is imported from the folder in which somebody happened to start the gateway."""
FIRST_PASSED_DESCRIPTOR = 3


def listen(host: str, port: int) -> tuple[socket.socket, ...]:
    """Listeners that share an address with others; a name may stand for several addresses."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listeners.append(listener)
    return tuple(listeners)


def passed_listeners(environment: Mapping[str, str]) -> tuple[socket.socket, ...]:
    """Those that systemd has opened for this process; () if it was not started by a socket unit."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return ()
    count = int(environment.get("LISTEN_FDS", "0"))
    passed = range(FIRST_PASSED_DESCRIPTOR, FIRST_PASSED_DESCRIPTOR + count)
    return tuple(socket.socket(fileno=descriptor) for descriptor in passed)


@dataclass(slots=True)
class _Child:
    order: ProcessOrder
    popen: subprocess.Popen[bytes]
    started_s: float
    serves: bool = False
    leaves: bool = False

    @property
    def is_successor(self) -> bool:
        return self.order.successor_of is not None and not self.serves

    @property
    def is_late(self) -> bool:
        """Whether it is given up."""
        return self.is_successor and time.monotonic() >= self.started_s + SERVES_WITHIN_S


class ProcessSupervisor:
    """Runs a process for each of the `listeners` as in `order`, until a signal ends them all."""

    def __init__(self, listeners: Sequence[tuple[socket.socket, ...]], order: ProcessOrder) -> None:
        self._listeners = listeners
        self._lifeline, self._lifeline_end = os.pipe()
        self._reports, reports_end = os.pipe()
        self._order = replace(order, lifeline=self._lifeline, reports=reports_end)
        self._folder = Path(order.folder)
        self._signals, self._signals_end = socket.socketpair()
        self._children: dict[int, _Child] = {}
        self._due_s: dict[int, float] = {}
        self._started = 0
        self._to_replace: deque[int] = deque()
        self._progress = RestartProgress()
        self._reload_is_due = False
        self._have_served = False
        self._stopping = False
        self._code = 0
        self._error: ConfigError | None = None

    def run(self) -> int:
        """Serve until the end; the exit code. Raises ConfigError if they cannot be started as configured."""
        for end in (self._signals, self._signals_end):
            end.setblocking(False)
        signal.set_wakeup_fd(self._signals_end.fileno())
        for each in HANDLED:
            signal.signal(each, lambda *_: None)
        for number in range(len(self._listeners)):
            self._start(number)
        while self._children or self._due_s:
            self._wait()
            for child in list(self._children.values()):
                if (code := child.popen.poll()) is not None:
                    self._ended(child, code)
            for number in [number for number, at_s in self._due_s.items() if time.monotonic() >= at_s]:
                del self._due_s[number]
                self._start(number)
            self._replace_next()
        if self._error is not None:
            raise self._error
        return self._code

    def _start(self, number: int, successor_of: int | None = None) -> None:
        self._started += 1
        listeners = tuple(listener.fileno() for listener in self._listeners[number])
        order = replace(
            self._order,
            process=self._started,
            number=number,
            listeners=listeners,
            successor_of=successor_of,
            reads_source=successor_of is not None and not self._progress.replaced,
        )
        path = self._folder / f"order-{order.process}"
        try:
            order.write(path)
            popen = subprocess.Popen(  # noqa: S603 - a command of our own
                (*COMMAND, str(path)),
                stdin=subprocess.DEVNULL,
                pass_fds=(*listeners, order.lifeline, order.reports),
                env={name: text for name, text in os.environ.items() if not name.startswith("LISTEN_")},
                # A terminal sends Ctrl-C to its whole group, and it is passed on: once is enough.
                process_group=0,
            )
        except OSError as error:
            if not self._have_served:
                raise
            logger.error("process %d of the gateway could not be started: %s", number, error.strerror)
            self._give_up(f"process {number} could not be started ({error.strerror})")
            if self._serving(number) is None:
                self._due_s[number] = time.monotonic() + AGAIN_AFTER_S
            return
        self._children[order.process] = _Child(order, popen, time.monotonic())

    def _wait(self) -> None:
        """Until there is something to do."""
        successors = [child for child in self._children.values() if child.is_successor]
        due_s = [*self._due_s.values(), *(child.started_s + SERVES_WITHIN_S for child in successors)]
        timeout_s = max(0.0, min(due_s) - time.monotonic()) if due_s else None
        readable, _, _ = select.select([self._signals.fileno(), self._reports], [], [], timeout_s)
        if self._reports in readable:
            for line in os.read(self._reports, 4_096).split():
                self._serves(int(line))
        if self._signals.fileno() in readable:
            for number in self._signals.recv(64):
                self._heed(signal.Signals(number))
        for child in successors:
            if child.is_late:
                child.popen.kill()

    def _serves(self, process: int) -> None:
        if (child := self._children.get(process)) is None:
            return
        if child.is_successor:
            logger.info("process %d of the gateway is replaced", child.order.number)
            if child.order.number not in self._to_replace:  # else this was asked for again since
                self._record_progress(replaced=self._progress.replaced + 1)
            if (before := self._children.get(child.order.successor_of or 0)) is not None:
                before.leaves = True
                before.popen.send_signal(signal.SIGUSR2)
        child.serves = True
        self._have_served = self._have_served or all(map(self._serving, range(len(self._listeners))))
        if self._reload_is_due:
            self._reload()

    def _heed(self, number: signal.Signals) -> None:
        if number in STOPS:
            self._stop(number)
        elif number is signal.SIGHUP:
            self._reload()
        elif number is signal.SIGUSR2 and not self._stopping:
            self._to_replace = deque(range(len(self._listeners)))
            asked = self._progress.asked + 1
            self._record_progress(asked=asked, replaced=0, of=len(self._listeners), error="")

    def _stop(self, number: signal.Signals) -> None:
        if not self._stopping:
            self._stopping = True
            self._due_s.clear()
            self._give_up("the gateway stops")
            # Whoever connects from now on fails at once: nobody would answer.
            for listener in (each for held in self._listeners for each in held):
                listener.close()
        for child in self._children.values():
            child.popen.send_signal(number)

    def _reload(self) -> None:
        """One process reads the configuration, and the others follow; never while processes are replaced."""
        serving = [child for number in range(len(self._listeners)) if (child := self._serving(number))]
        self._reload_is_due = not serving or self._is_replacing
        if not self._reload_is_due:
            serving[0].popen.send_signal(signal.SIGHUP)

    def _serving(self, number: int) -> _Child | None:
        """The process that serves there."""
        children = (child for child in self._children.values() if child.order.number == number)
        return next((child for child in children if child.serves and not child.leaves), None)

    # --- processes that end -------------------------------------------------------------------------------

    def _ended(self, child: _Child, code: int) -> None:
        process, number = child.order.process, child.order.number
        del self._children[process]
        why = f"exit code {code}" if code >= 0 else f"signal {-code}"
        if child.is_late:
            why = f"not serving within {SERVES_WITHIN_S:g} s"
        error = self._error_of(process)
        self._clear_up(process)
        if self._stopping:
            self._code = self._code or max(0, code)
            return
        if child.leaves:
            return
        if child.is_successor:
            self._give_up(f"process {number} was not replaced: {error or f'its successor ended ({why})'}")
            logger.error("%s: the gateway goes on as it was", self._progress.error)
        elif not self._have_served and code > 0:
            # It has said why: it cannot be started as it is configured.
            self._stop(signal.SIGTERM)
            self._code, self._error = code, error
            return
        else:
            logger.error("process %d of the gateway ended (%s): another takes its place", number, why)
        if not any(other.order.number == number and not other.leaves for other in self._children.values()):
            self._due_s[number] = max(child.started_s + AGAIN_AFTER_S, time.monotonic())

    def _error_of(self, process: int) -> ConfigError | None:
        try:
            message, hint = orjson.loads(error_file(self._folder, process).read_bytes())
        except (OSError, ValueError):
            return None
        return ConfigError(message, hint=hint)

    def _clear_up(self, process: int) -> None:
        with suppress(OSError):  # a full disk: what it had counted stays in its own file
            add_ended(self._folder, process)
        for path in (socket_file(self._folder, process), error_file(self._folder, process)):
            path.unlink(missing_ok=True)
        (self._folder / f"order-{process}").unlink(missing_ok=True)

    # --- processes that are replaced ----------------------------------------------------------------------

    @property
    def _is_replacing(self) -> bool:
        return bool(self._to_replace) or any(child.is_successor for child in self._children.values())

    def _replace_next(self) -> None:
        """Start the successor of the next process that is to be replaced, once the one before it serves."""
        if self._stopping or any(child.is_successor for child in self._children.values()):
            return
        if not self._to_replace:
            if self._reload_is_due:
                self._reload()
            return
        number = self._to_replace[0]
        if (child := self._serving(number)) is not None:
            self._to_replace.popleft()
            self._start(number, successor_of=child.order.process)

    def _give_up(self, why: str) -> None:
        if not self._progress.is_done:
            self._record_progress(error=why)
        self._to_replace.clear()

    def _record_progress(self, **fields: Any) -> None:  # noqa: ANN401 - what RestartProgress has
        self._progress = replace(self._progress, **fields)
        with suppress(OSError):
            write_private(progress_file(self._folder), orjson.dumps(self._progress))
