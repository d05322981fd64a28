"""An open loop of independent users, who come whether or not they are served and may come back when rejected.

What the answers add up to is the scripts' matter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from random import Random

from phasewise.benchmark.generator import no_garbage_collection, now_s, wait_until
from phasewise.benchmark.workload.arrivals import OpenLoop, arrival_times_s
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.slo import Slo

from .streams import Answer, ask, chat_body, prompts

PATIENCE = Timeouts(connect_s=30.0, head_s=120.0, idle_s=120.0)
COMES_BACK = frozenset({429, 503})
MOST_RETRIES = 3
WITHOUT_HEADER_S = 1.0
"""How long a client waits that was not told when to come back."""
FINISH_WITHIN_S = 6.0
"""After the last arrival: what takes longer has missed its bounds."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What users ask for: prompts and answers between so many tokens, all lengths alike."""

    model: str
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]

    def bodies(self, seed: int) -> Iterator[bytes]:
        """Requests without end that share no beginning."""
        rng = Random(seed)
        while True:
            (prompt,) = prompts(1, rng.randint(*self.prompt_tokens), rng.getrandbits(32))
            yield chat_body(self.model, prompt, rng.randint(*self.output_tokens))


@dataclass(slots=True)
class User:
    """One request as its user sees it: counted from when it was first wanted, whatever was tried since."""

    wanted_s: float
    answers: list[Answer] = field(default_factory=list)

    def is_good(self, slo: Slo) -> bool:
        """Whether the whole answer came within its bounds."""
        last = self.answers[-1] if self.answers else None
        if last is None or not last.whole or last.first_s is None:
            return False
        return last.first_s - self.wanted_s <= slo.ttft_s and (last.tpot_s or 0.0) <= slo.tpot_s


@dataclass(frozen=True, slots=True)
class Offered:
    """All users of a run, those that were never served among them."""

    users: Sequence[User]
    counted_from_s: float
    duration_s: float

    def goodput_per_s(self, slo: Slo) -> float:
        """Requests per second that were served well, of those wanted after the lead-in."""
        good = sum(user.is_good(slo) for user in self.users if user.wanted_s >= self.counted_from_s)
        return good / self.duration_s

    def served_per_s(self) -> float:
        """Requests per second that were served at all, of the same."""
        served = sum(
            user.answers[-1].whole
            for user in self.users
            if user.answers and user.wanted_s >= self.counted_from_s
        )
        return served / self.duration_s

    @property
    def answers(self) -> list[Answer]:
        """Every answer to every try."""
        return [answer for user in self.users for answer in user.answers]

    @property
    def rejections(self) -> list[Answer]:
        """Tries that got an answer other than 200."""
        return [answer for answer in self.answers if answer.status not in {0, 200}]

    @property
    def broken(self) -> Counter[str]:
        """Tries that began and broke, by how."""
        kinds = (answer.failure or answer.error_event for answer in self.answers)
        return Counter(kind for kind in kinds if kind is not None)

    def lag_p99_s(self) -> float:
        """How late the generator sent first tries."""
        lags_s = sorted(user.answers[0].sent_s - user.wanted_s for user in self.users if user.answers)
        return lags_s[int(0.99 * (len(lags_s) - 1))] if lags_s else 0.0


async def offer(
    url: str,
    demand: Demand,
    rate_per_s: float,
    duration_s: float,
    seed: int,
    *,
    lead_in_s: float,
    retries: bool = False,
) -> Offered:
    """Users come at random at this rate; those that are rejected come back when told to, if they `retries`.

    Who comes in the lead-in finds empty engines or an empty line, and is not counted. At the end who waits to
    come back is let go, and answers that have begun may finish.
    """
    rng, end_s = Random(seed), lead_in_s + duration_s
    times_s = list(takewhile(lambda at_s: at_s < end_s, arrival_times_s(OpenLoop(rate_per_s), rng)))
    bodies = list(islice(demand.bodies(seed), len(times_s)))
    client, over = HttpClient(url, PATIENCE), asyncio.Event()
    users: list[User] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        with no_garbage_collection():
            started_s = now_s()
            for at_s, body in zip(times_s, bodies, strict=True):
                await wait_until(started_s + at_s)
                users.append(User(started_s + at_s))
                tasks.append(asyncio.create_task(_serve(client, body, users[-1], over, retries)))
            await wait_until(started_s + end_s)
            over.set()
            await asyncio.wait(tasks, timeout=FINISH_WITHIN_S)
    finally:
        await _let_go(tasks)
        client.close()
    return Offered(users, started_s + lead_in_s, duration_s)


async def keep_full(url: str, demand: Demand, clients: int, duration_s: float, seed: int) -> float:
    """Requests per second that so many clients get through, each asking again as soon as it is served."""
    client = HttpClient(url, PATIENCE)
    bodies = demand.bodies(seed)
    ended_s: list[float] = []

    async def ask_again_and_again() -> None:
        for body in bodies:
            if (await ask(client, body)).whole:
                ended_s.append(now_s())

    started_s = now_s()
    tasks = [asyncio.create_task(ask_again_and_again()) for _ in range(clients)]
    await asyncio.sleep(duration_s)
    await _let_go(tasks)
    client.close()
    # The first of each client are cut off: they began together, and so they end together.
    counted_from_s = started_s + duration_s / 2
    return sum(at_s >= counted_from_s for at_s in ended_s) / (duration_s / 2)


async def _serve(client: HttpClient, body: bytes, user: User, over: asyncio.Event, retries: bool) -> None:
    for _ in range(1 + MOST_RETRIES):
        answer = await ask(client, body)
        user.answers.append(answer)
        if not retries or answer.status not in COMES_BACK:
            return
        wait_s = WITHOUT_HEADER_S if answer.retry_after is None else float(answer.retry_after)
        try:
            await asyncio.wait_for(over.wait(), wait_s)
        except TimeoutError:
            continue
        return


async def _let_go(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
