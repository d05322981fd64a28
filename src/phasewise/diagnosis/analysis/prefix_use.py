"""How prompts repeat earlier ones: what a prefix cache could have saved, and what it did save."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from phasewise.core.prefixes import MARK_SIZES_BYTES, TEXT_LIMIT_BYTES, TEXT_MARKS
from phasewise.core.timeline import Timeline
from phasewise.diagnosis.analysis.attribution import Logs

REMEMBERED_PER_MARK = 32
"""The number of prompts compared per common mark."""
FEWEST_COMPARED = 4
"""With fewer comparable marks than this, prompts do not count as similar."""


_Beginning = tuple[str, str]
"""A model and a mark: models do not share KV."""
_Cache = tuple[str, int]
"""A worker and its rank."""


@dataclass(frozen=True, slots=True)
class PrefixUse:
    """How prompts repeat earlier ones, as shares of all prompt tokens.

    `shared` stood at the beginning of an earlier prompt, `shared_here` of one that the same engine served,
    `kept` of one so recent that the engine's KV cache should still hold it; `cached` is what came from the
    cache. `repeated` is text that one earlier prompt held anywhere, not only at its beginning.
    """

    shared: float
    shared_here: float
    kept: float
    cached: float | None
    repeated: float | None = None


BYTES_PER_TOKEN = 4.0
"""Of English text, for requests whose tokens nobody has counted yet."""


@dataclass(slots=True)
class _Engine:
    """The tokens that an engine has computed so far, and the count at its last use of each prefix."""

    computed_tokens: int = 0
    last_used: dict[str, int] = field(default_factory=dict)

    def age_tokens(self, mark: str) -> int | None:
        """The tokens that it has computed since it used the prefix; None if it never did."""
        used = self.last_used.get(mark)
        return None if used is None else self.computed_tokens - used

    def serve(self, timeline: Timeline) -> None:
        """Count the tokens that the request makes it compute, and every prefix it uses."""
        uncached = (timeline.prompt_tokens or 0) - (timeline.cached_tokens or 0)
        self.computed_tokens += max(0, uncached) + (timeline.output_tokens or 0)
        self.last_used.update(dict.fromkeys(timeline.prefix_marks, self.computed_tokens))


def prefix_use(
    timelines: Sequence[Timeline], kv_tokens: Mapping[str, int] | None = None, logs: Logs | None = None
) -> PrefixUse | None:
    """What these prompts share with earlier ones; None if none has marks.

    `kv_tokens` is the capacity of each engine's KV cache, by the engine's name; an unknown one is taken as
    unlimited. Marks have fixed sizes, so shares are rounded down to them. Data-parallel ranks have a cache
    each: with several in `logs`, each counts as an engine, and requests of an unknown rank are left out.
    """
    placed = [
        (timeline, cache) for timeline in timelines if (cache := _cache_of(timeline, logs or {})) is not None
    ]
    marked = _marked([timeline for timeline, _ in placed])
    if not marked:
        return None
    seen: set[_Beginning] = set()
    engines: dict[_Cache, _Engine] = {}
    shared = shared_here = kept = total = 0.0
    for timeline, cache in sorted(placed, key=lambda each: each[0].started_unix_s):
        engine = engines.setdefault(cache, _Engine())
        if not _is_marked(timeline):
            engine.serve(timeline)
            continue
        capacity = (kv_tokens or {}).get(cache[0])
        total += _prompt_tokens(timeline)
        shared += _known_tokens(timeline, _sent_before(timeline.model, seen))
        shared_here += _known_tokens(timeline, _still_held(engine, None))
        kept += _known_tokens(timeline, _still_held(engine, capacity))
        seen.update(_beginnings(timeline))
        engine.serve(timeline)
    return PrefixUse(
        shared=shared / total,
        shared_here=shared_here / total,
        kept=kept / total,
        cached=cached_share(marked),
        repeated=_repeated(timelines),
    )


def warm_share(timelines: Sequence[Timeline]) -> float | None:
    """The share of prompt tokens that came from a cache though no earlier prompt of the window began with
    them.

    None without marks. A shared prefix may reach up to the next mark that differs, and in a conversation up
    to the end of the last answer, which has no mark: only tokens cached beyond that count.
    """
    marked = [timeline for timeline in _marked(timelines) if timeline.cached_tokens is not None]
    if not marked:
        return None
    seen: set[_Beginning] = set()
    turns: dict[_Beginning, int] = {}
    warm_tokens = total_tokens = 0.0
    for timeline in marked:
        *_, whole = beginnings = _beginnings(timeline)
        total_tokens += _prompt_tokens(timeline)
        known = max(_most_shared_tokens(timeline, seen), *(turns.get(each, 0) for each in beginnings))
        warm_tokens += max(0.0, (timeline.cached_tokens or 0) - known)
        seen.update(beginnings)
        turn_tokens = (timeline.prompt_tokens or 0) + (timeline.output_tokens or 0)
        turns[whole] = max(turns.get(whole, 0), turn_tokens)
    return warm_tokens / total_tokens


def _marked(timelines: Sequence[Timeline]) -> list[Timeline]:
    return sorted(filter(_is_marked, timelines), key=lambda timeline: timeline.started_unix_s)


def _is_marked(timeline: Timeline) -> bool:
    return bool(timeline.prefix_marks and timeline.prompt_bytes)


def _prompt_tokens(timeline: Timeline) -> float:
    """As the engine counted them; of a request that it has not answered, by the size of its text."""
    return timeline.prompt_tokens or (timeline.prompt_bytes or 0) / BYTES_PER_TOKEN


def _engine_of(timeline: Timeline) -> str:
    # With disaggregated prefill, the cache of the prefill engine counts.
    return timeline.reading_attempt.worker.name if timeline.reading_attempt is not None else ""


def _cache_of(timeline: Timeline, logs: Logs) -> _Cache | None:
    """The worker and rank whose cache served the request; None if the rank is unknown."""
    name = _engine_of(timeline)
    ranks = logs.get(name, ())
    if len(ranks) <= 1:
        return name, 0
    request_id = None if timeline.reading_attempt is None else timeline.reading_attempt.engine_request_id
    own = (rank for rank, log in enumerate(ranks) if request_id and log.finished(request_id) is not None)
    return next(((name, rank) for rank in own), None)


def _sized_marks(timeline: Timeline) -> Iterator[tuple[float, str]]:
    """Each mark with its tokens, by the prompt's own ratio of tokens to bytes."""
    tokens = _prompt_tokens(timeline)
    tokens_per_byte = tokens / (timeline.prompt_bytes or 1)
    for size_bytes, mark in zip(MARK_SIZES_BYTES, timeline.prefix_marks, strict=False):
        yield min(size_bytes * tokens_per_byte, tokens), mark


def _known_tokens(timeline: Timeline, is_known: Callable[[str, float], bool]) -> float:
    """The tokens of the longest known prefix."""
    return max((tokens for tokens, mark in _sized_marks(timeline) if is_known(mark, tokens)), default=0.0)


def _beginnings(timeline: Timeline) -> list[_Beginning]:
    return [(timeline.model, mark) for mark in timeline.prefix_marks]


def _sent_before(model: str, seen: set[_Beginning]) -> Callable[[str, float], bool]:
    return lambda mark, _: (model, mark) in seen


def _still_held(engine: _Engine, capacity_tokens: int | None) -> Callable[[str, float], bool]:
    """Whether the cache still holds the prefix: the least recently used one is evicted first."""

    def held(mark: str, tokens: float) -> bool:
        age = engine.age_tokens(mark)
        return age is not None and (capacity_tokens is None or age + tokens <= capacity_tokens)

    return held


def _most_shared_tokens(timeline: Timeline, seen: set[_Beginning]) -> float:
    """The most tokens that the prefix can share with an earlier prompt: up to the first unknown mark."""
    return next(
        (tokens for tokens, mark in _sized_marks(timeline) if (timeline.model, mark) not in seen),
        float(timeline.prompt_tokens or 0),
    )


def cached_share(timelines: Sequence[Timeline]) -> float | None:
    """The share of prompt tokens that came from a cache; None if no engine reported it."""
    reported = [
        timeline for timeline in timelines if timeline.prompt_tokens and timeline.cached_tokens is not None
    ]
    tokens = sum(timeline.prompt_tokens or 0 for timeline in reported)
    return sum(timeline.cached_tokens or 0 for timeline in reported) / tokens if tokens else None


def _repeated(timelines: Sequence[Timeline]) -> float | None:
    """The share of prompt tokens that the most similar earlier prompt contains; None without sketches."""
    sketched = sorted(
        (timeline for timeline in timelines if timeline.text_marks and timeline.prompt_bytes),
        key=lambda timeline: timeline.started_unix_s,
    )
    if not sketched:
        return None
    earlier = _Sketches()
    repeated_tokens = 0.0
    for timeline in sketched:
        repeated_tokens += _sketched_tokens(timeline) * earlier.share_known(timeline.text_marks)
        earlier.add(timeline.text_marks)
    return repeated_tokens / sum(map(_prompt_tokens, sketched))


def _sketched_tokens(timeline: Timeline) -> float:
    """The tokens that a sketch covers; it has a limit."""
    size_bytes = timeline.prompt_bytes or TEXT_LIMIT_BYTES
    return _prompt_tokens(timeline) * min(1.0, TEXT_LIMIT_BYTES / size_bytes)


class _Sketches:
    """The sketches of earlier prompts by their marks; per mark the latest few."""

    def __init__(self) -> None:
        self._sketches: list[tuple[str, ...]] = []
        self._holders: dict[str, deque[int]] = {}

    def add(self, sketch: tuple[str, ...]) -> None:
        """Remember a prompt's sketch."""
        for mark in sketch:
            self._holders.setdefault(mark, deque(maxlen=REMEMBERED_PER_MARK)).append(len(self._sketches))
        self._sketches.append(sketch)

    def share_known(self, sketch: tuple[str, ...]) -> float:
        """The share of a sketch that the most similar earlier one contains."""
        common = Counter(holder for mark in set(sketch) for holder in self._holders.get(mark, ()))
        return max(
            (count / _comparable(sketch, self._sketches[holder]) for holder, count in common.items()),
            default=0.0,
        )


def _comparable(sketch: tuple[str, ...], other: tuple[str, ...]) -> int:
    """The marks that the other sketch could contain: a full one keeps only the smallest."""
    if len(other) < TEXT_MARKS:
        return len(sketch)
    largest = max(other)
    return max(sum(mark <= largest for mark in sketch), min(FEWEST_COMPARED, len(sketch)))
