"""Keeps one process on each listener: starts it, starts it again if it dies, passes signals on.

It holds the listeners open itself, so that connections which wait for a process that died are served by its
successor. It runs no event loop and no thread, so that it can fork at any time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from phasewise.core.value import value
from phasewise.gateway.processes.board import Board
from phasewise.gateway.processes.siblings import ask_now

logger = logging.getLogger("phasewise.gateway")

AGAIN_AFTER_S = 1.0
"""A process that died this soon after its start is not started again before."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HANDLED = (*PASSED_ON, signal.SIGCHLD)


@value
class Place:
    """What one process of a gateway is given: its number among them, its column, its listeners.

    Of a supervised one, `lifeline` becomes readable when the supervisor is gone, and a byte written to
    `ready` says that it serves. `before` are the columns of processes that it takes over from, in its `turn`.
    `generation` is that of a process in whose place it was started.
    """

    number: int
    column: int
    listeners: tuple[socket.socket, ...]
    board_fd: int
    folder: Path
    before: tuple[int, ...] = ()
    lifeline: int | None = None
    ready: int | None = None
    turn: int | None = None
    generation: int | None = None


def listen(host: str, port: int, backlog: int) -> tuple[socket.socket, ...]:
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
        listener.listen(backlog)
        listeners.append(listener)
    return tuple(listeners)


def replace_others(board: Board, folder: Path, own: Sequence[int]) -> None:
    """Let all processes of the gateway before leave, those that were started since it was asked too."""
    for column in board.columns:
        if column not in own:
            ask_now(folder, column, "leave")


def end_turn(turn: int | None) -> None:
    """Another gateway may take over from this one now. The lock is the same in all forked processes."""
    if turn is not None:
        fcntl.flock(turn, fcntl.LOCK_UN)


@dataclass(slots=True)
class _Child:
    pid: int
    place: Place
    started_s: float


_Handlers = dict[signal.Signals, "Callable[[int, FrameType | None], Any] | int | None"]


class Supervisor:
    """Runs `serve` in a process for each of the listeners, until a signal ends them all."""

    def __init__(
        self,
        listeners: Sequence[tuple[socket.socket, ...]],
        board_fd: int,
        folder: Path,
        serve: Callable[[Place], None],
        before: tuple[int, ...] = (),
        turn: int | None = None,
    ) -> None:
        self._before = before
        self._turn = turn
        self._generation: int | None = None
        self._listeners = list(listeners)
        self._board_fd = board_fd
        self._board = Board(board_fd)
        self._folder = folder
        self._serve = serve
        self._children: dict[int, _Child] = {}
        self._again: dict[int, float] = {}
        self._stopping = False
        self._code = 0
        self._lifeline = os.pipe()
        self._ready = os.pipe()
        self._signals = socket.socketpair()
        self._ready_children = 0

    def run(self) -> int:
        """Serve until the end; the exit code."""
        for end in self._signals:
            end.setblocking(False)
        signal.set_wakeup_fd(self._signals[1].fileno())
        before = {number: signal.signal(number, lambda *_: None) for number in HANDLED}
        for number in range(len(self._listeners)):
            self._start(number, before)
        while self._children or self._again:
            self._look(before)
            if self._generation is None and self._ready_children >= len(self._listeners):
                self._generation = self._board.begin_generation()
                replace_others(self._board, self._folder, [it.place.column for it in self._children.values()])
                end_turn(self._turn)
        return self._code

    @property
    def _is_replaced(self) -> bool:
        """Whether another gateway has taken over: a process that ends now is not needed any more."""
        return self._generation is not None and self._board.generation != self._generation

    # --- children ---------------------------------------------------------------------------------------

    def _start(self, number: int, signals: _Handlers) -> None:
        column = self._board.free_column()
        if column is None:
            raise RuntimeError("there are more processes than columns")
        place = Place(
            number,
            column,
            self._listeners[number],
            self._board_fd,
            self._folder,
            () if self._generation else self._before,
            self._lifeline[0],
            self._ready[1],
            generation=self._generation,
        )
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._board.reserve(column, pid)
            self._children[pid] = _Child(pid, place, time.monotonic())
            return
        # A terminal sends Ctrl-C to its whole group, and the supervisor passes it on: once is enough.
        os.setpgrp()
        signal.set_wakeup_fd(-1)
        for each, handler in signals.items():
            signal.signal(each, handler)
        os.close(self._lifeline[1])
        for other, held in enumerate(self._listeners):
            for listener in held if other != number else ():
                listener.close()
        self._serve(place)
        sys.exit(0)

    def _look(self, signals: _Handlers) -> None:
        due_s = min(self._again.values(), default=None)
        timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        signals_fd, ready_fd = self._signals[0].fileno(), self._ready[0]
        readable, _, _ = select.select([signals_fd, ready_fd], [], [], timeout_s)
        if ready_fd in readable:
            self._ready_children += len(os.read(ready_fd, 64))
        if signals_fd in readable:
            for number in self._signals[0].recv(64):
                if number in PASSED_ON:
                    self._pass_on(signal.Signals(number))
            self._reap()
        for number, at_s in list(self._again.items()):
            if time.monotonic() >= at_s:
                del self._again[number]
                if not self._stopping and not self._is_replaced:
                    self._start(number, signals)

    def _pass_on(self, number: signal.Signals) -> None:
        if number is not signal.SIGHUP and not self._stopping:
            self._stopping = True
            self._again.clear()
            # Whoever connects from now on fails at once: nobody would answer.
            for listener in (it for held in self._listeners for it in held):
                listener.close()
        for pid in self._children:
            os.kill(pid, number)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            child = self._children.pop(pid, None)
            if child is None:
                continue
            self._board.clear(child.place.column)
            self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        if self._stopping or self._is_replaced:
            self._code = self._code or max(0, code)
            return
        if self._generation is None and code > 0:
            # It has said why: it cannot be started as it is configured.
            self._code = code
            self._pass_on(signal.SIGTERM)
            return
        why = f"exit code {code}" if code >= 0 else f"signal {-code}"
        logger.error("process %d of the gateway ended (%s): another takes its place", child.place.number, why)
        self._again[child.place.number] = max(child.started_s + AGAIN_AFTER_S, time.monotonic())
