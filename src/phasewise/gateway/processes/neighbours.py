"""The other processes of this gateway: their load on the engines, what they sent there, and whose turn a free
slot is.
"""

from __future__ import annotations

import asyncio
import marshal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from phasewise.core.worker import Worker, WorkerRef
from phasewise.gateway.processes.board import Board
from phasewise.scheduling.queue import DEFAULT_AGING_S, Turn

TURN, PREFIXES = b"turn", b"prefixes 1:"
"""What the messages begin with; another form of prefixes gets another number."""
LONGEST_MESSAGE = 1 << 17
PREFIXES_EVERY_S = 0.01
HASHES_AT_ONCE = 4_096
"""In a message, beside those of one more prompt: it then fits into a socket's buffer."""
MOST_UNSENT = 1_024
"""Of prompts that a process could not be sent yet, the newest are kept."""
TURN_AFTER_S = 0.002
"""So soon a process looks for free slots itself after it gave way: the other may wait for another model."""


class BoardNeighbours:
    """Implements the port Neighbours.

    `on_turn` is called when this process may take free slots, `on_served` with each prompt that a worker has
    computed for another process.
    """

    def __init__(self, board: Board, folder: Path) -> None:
        self.on_turn: Callable[[], None] = lambda: None
        self.on_served: Callable[..., None] = lambda *_prompt: None
        self._served: list[tuple[Any, ...]] = []
        self._unsent: dict[int, list[tuple[Any, ...]]] = {}
        self._board = board
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._path = self._address(board.column or 0)
        self._due = False
        self._waits = False
        self._aging_s = DEFAULT_AGING_S

    def start(self) -> None:
        """Listen to the others."""
        Path(self._path).unlink(missing_ok=True)
        self._socket.bind(self._path)
        asyncio.get_running_loop().add_reader(self._socket, self._woken)

    def stop(self) -> None:
        """Listen no more."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        Path(self._path).unlink(missing_ok=True)

    def know(self, workers: Iterable[Worker], aging_s: float) -> None:
        """From now on their loads are looked for, and waiting requests rise by one priority in this time."""
        self._aging_s = aging_s
        for worker in workers:
            self._board.worker_row(worker.name)

    def booked(self, worker: str, *change: int) -> None:
        """This process's load on a worker has changed."""
        self._board.add_load(worker, change)

    def loads(self) -> Mapping[str, Sequence[int]]:
        """Their loads."""
        return self._board.others_loads()

    def served(self, worker: WorkerRef, hashes: Sequence[int], *more: int) -> None:
        """A worker has computed a prompt; the others learn it soon."""
        if not self._board.others:
            return
        if not self._served:
            asyncio.get_running_loop().call_later(PREFIXES_EVERY_S, self._send_served)
        self._served.append((*worker, hashes, *more))

    def waiting(self, turn: Turn | None) -> None:
        """This request gets the next slot here."""
        if turn is not None:
            tenant = crc32(turn.tenant.encode())
            self._board.set_turn((tenant, turn.priority, _us(turn.since_s), _us(turn.granted_s)))
        elif self._waits:
            self._board.set_turn(())
        self._waits = turn is not None

    def give_way(self, now_s: float) -> bool:
        """Wake the process whose turn it is, if it is another's."""
        turns = self._board.turns if self._board.others else {}
        if not turns or (first := first_of(turns, _us(now_s), self._aging_s)) == self._board.column:
            return False
        with suppress(OSError):
            self._socket.sendto(TURN, self._address(first))
            if not self._due:
                self._due = True
                asyncio.get_running_loop().call_later(TURN_AFTER_S, self._take_turn)
            return True
        return False

    def _address(self, column: int) -> str:
        return str(self._folder / f"turn-{column}")

    def _woken(self) -> None:
        turn = False
        with suppress(BlockingIOError):
            while message := self._socket.recv(LONGEST_MESSAGE):
                if message.startswith(PREFIXES):
                    self._learn(message[len(PREFIXES) :])
                else:
                    turn = True
        if turn:
            self._take_turn()

    def _learn(self, written: bytes) -> None:
        for name, incarnation, *prompt in marshal.loads(written):  # noqa: S302 - a process of the same user
            self.on_served(WorkerRef(name, incarnation), *prompt)

    def _send_served(self) -> None:
        served, self._served = self._served, []
        unsent = {column: [*self._unsent.get(column, ()), *served] for column in self._board.others}
        self._unsent = {column: left for column, it in unsent.items() if (left := self._sent(column, it))}

    def _sent(self, column: int, prompts: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Send them, and return those that it does not take now."""
        first = 0
        while first < len(prompts):
            after, hashes = first, 0
            while after < len(prompts) and hashes < HASHES_AT_ONCE:
                hashes += len(prompts[after][2])
                after += 1
            try:
                message = PREFIXES + marshal.dumps(prompts[first:after])
                self._socket.sendto(message, self._address(column))
            except OSError:
                return prompts[first:][-MOST_UNSENT:]
            first = after
        return []

    def _take_turn(self) -> None:
        self._due = False
        self.on_turn()


def first_of(turns: Mapping[int, Sequence[int]], now_us: int, aging_s: float) -> int:
    """The process whose request gets the next slot.

    As within a process, the highest priority comes first, and a lower one rises while it waits; of several
    tenants the one that last got a slot longest ago; of one tenant's requests the one that waits longest.
    """
    highest = max(priority for _, priority, _, _ in turns.values())
    last_us: dict[int, int] = {}
    for tenant, _, _, granted_us in turns.values():
        last_us[tenant] = max(granted_us, last_us.get(tenant, 0))

    def rank(column: int) -> tuple[float, int, int]:
        tenant, priority, since_us, granted_us = turns[column]
        risen = (now_us - max(since_us, granted_us)) // (aging_s * 1e6)
        return -min(highest, priority + risen), last_us[tenant], since_us

    return min(turns, key=rank)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
