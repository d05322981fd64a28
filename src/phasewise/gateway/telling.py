"""Sends a client an answer that no worker made for it: whole, at once, paced, or piece by piece as it comes.

Which answer that is, is found_answers.py's to say; how the bytes look is replay.py's.
"""

from __future__ import annotations

import asyncio
import time

from phasewise.adapters.engine_report import EngineReport
from phasewise.gateway.answer import Answer
from phasewise.gateway.call import Call
from phasewise.gateway.replay import PLAIN_TYPE, STREAM_TYPE, Counts, End, Frames, answer_id, end_mark
from phasewise.gateway.server_timing import SERVER_TIMING, server_timing, timing_comment
from phasewise.model.request import Endpoint


class Telling:
    """One answer on its way to one client, with notes on what was sent."""

    def __init__(self, call: Call, model: str) -> None:
        self._call = call
        self._client = call.client
        self.request = call.timeline.request
        endpoint, created = Endpoint(call.path), int(time.time())
        self._frames = Frames(endpoint, call.request_id, model, created)
        self._unsent = b""
        # What a worker would need to know that goes on with it.
        self._answer = Answer()
        self._answer.engine_request_id = answer_id(endpoint, call.request_id)
        self._answer.created = created
        call.timeline.note_answer(self._answer)

    @property
    def output_tokens(self) -> int | None:
        """Those of the answer, if known."""
        return self._answer.report.output_tokens

    def put(self, pieces: list[str]) -> None:
        """Have pieces of text sent with what is sent next, all at one time."""
        if pieces:
            self._unsent += self._opening() + self._frames.content(pieces)
            self._answer.content_times_s.append(time.monotonic())

    async def send_escaped(self, text: bytes) -> None:
        """Send a piece of text as it stands between the quotes of its JSON."""
        opening = self._opening()
        self._answer.text_escaped += text
        self._answer.content_times_s.append(time.monotonic())
        await self._send(opening + self._frames.escaped(text))

    async def send_paced(self, pieces: list[str], gap_s: float) -> None:
        """Send pieces of text one after the other."""
        begun_s = time.monotonic()
        for number, piece in enumerate(pieces):
            await asyncio.sleep(begun_s + number * gap_s - time.monotonic())
            opening = self._opening()
            self._answer.content_times_s.append(time.monotonic())
            await self._send(opening + self._frames.content([piece]))

    async def finish(self, end: End, counts: Counts | None) -> None:
        """Send the end of a stream, and what was not sent yet."""
        call, client = self._call, self._client
        opening = b"" if client.started or self._unsent else self._frames.opening()
        self._note_end(end, counts)
        last = self._unsent + opening + self._frames.closing(end, None if call.hide_usage else counts)
        if call.wants_timing:
            last += timing_comment(call.timeline.so_far(time.monotonic()))
        await self._start()
        await client.finish(last + end_mark())

    async def send_whole(self, text: str, end: End, counts: Counts | None) -> None:
        """Send a plain reply."""
        call = self._call
        self._note_end(end, counts)
        body = self._frames.plain(text, end, counts)
        timing = (SERVER_TIMING, server_timing(*call.timeline.parts_so_far(time.monotonic())))
        await self._client.respond(200, [PLAIN_TYPE, *call.reply_headers, timing], body)

    def _opening(self) -> bytes:
        return b"" if self._answer.content_times_s else self._frames.opening()

    async def _send(self, data: bytes) -> None:
        await self._start()
        await self._client.send_part(data)

    async def _start(self) -> None:
        if not self._client.started:
            self._client.streaming = True
            await self._client.start(200, [STREAM_TYPE, *self._call.reply_headers])

    def _note_end(self, end: End, counts: Counts | None) -> None:
        answer = self._answer
        answer.finish_reason, answer.finished_s = end.finish_reason, time.monotonic()
        if counts is not None:
            answer.report = EngineReport(prompt_tokens=counts[0], output_tokens=counts[1])
