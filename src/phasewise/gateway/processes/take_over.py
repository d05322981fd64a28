"""Gives a gateway's listeners and shared memory to one that takes over, so that no connection fails.

Whoever takes over is of the same user: only that user can enter the folder with the sockets.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from phasewise.core.errors import ConfigError
from phasewise.core.value import value

MOST_LISTENERS = 16
"""Of one process."""
ANSWER_WITHIN_S = 5.0
IN_TURN_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05
_NAME = re.compile(r"listeners-(\d+)")


@value
class TakenOver:
    """What a running gateway has given: the listeners of each of its processes, by their columns.

    `turn` is a lock that only one that takes over can hold: until it serves, or has ended.
    """

    folder: Path
    board_fd: int
    listeners: dict[int, tuple[socket.socket, ...]]
    turn: int


class ListenerSharing:
    """Gives them to whoever asks."""

    def __init__(self, folder: Path, column: int, board_fd: int, listeners: Sequence[socket.socket]) -> None:
        self._path = folder / f"listeners-{column}"
        self._descriptors = [board_fd, *(it.fileno() for it in listeners)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)

    def start(self) -> None:
        """Answer."""
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        self._socket.listen()
        asyncio.get_running_loop().add_reader(self._socket, self._answer)

    def stop(self) -> None:
        """Answer no more. A second call changes nothing."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._path.unlink(missing_ok=True)

    def _answer(self) -> None:
        try:
            asker, _ = self._socket.accept()
        except OSError:
            return
        with asker, suppress(OSError):  # whoever asked may have gone
            socket.send_fds(asker, [b"1"], self._descriptors)


def ask_for_listeners(folder: Path, url: str) -> TakenOver:
    """What the gateway with this folder gives; ConfigError if it gives nothing."""
    turn = _turn(folder, url)
    board_fd, listeners = -1, dict[int, tuple[socket.socket, ...]]()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (name := _NAME.fullmatch(path.name)) is None:
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(ANSWER_WITHIN_S)
            try:
                asking.connect(str(path))
                _, descriptors, _, _ = socket.recv_fds(asking, 1, MOST_LISTENERS + 1)
            except OSError:
                continue  # it has died
        if not descriptors:
            continue
        if board_fd >= 0:
            os.close(board_fd)
        board_fd, *others = descriptors
        listeners[int(name[1])] = tuple(socket.socket(fileno=it) for it in others)
    if not listeners:
        raise ConfigError(
            f"the gateway at {url} does not give its listeners",
            hint="start without --take-over once it has ended",
        )
    return TakenOver(folder, board_fd, listeners, turn)


def _turn(folder: Path, url: str) -> int:
    """One takes over after the other, each from the one before it."""
    until_s = time.monotonic() + IN_TURN_WITHIN_S
    try:
        turn = os.open(folder / "take-over", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        raise ConfigError(f"the gateway at {url} has just ended", hint="start without --take-over") from None
    while True:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise ConfigError(
                    f"another gateway is taking over at {url} for {IN_TURN_WITHIN_S:g} s",
                    hint="end it, or wait until it serves, and try again",
                ) from None
            time.sleep(LOOK_EVERY_S)
        else:
            return turn
