"""What came back while scenes were played: times, and nothing of what they mean."""

from __future__ import annotations

from dataclasses import dataclass, field

from phasewise.calibrate.scenes import Scene


@dataclass(slots=True)
class Heard:
    """What came of one request: when it was sent, and when each token's chunk arrived."""

    prompt_tokens: int
    output_tokens: int
    sent_s: float = 0.0
    times_s: list[float] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every token came in a chunk of its own; else gaps between chunks are no steps."""
        return len(self.times_s) == self.output_tokens


@dataclass(frozen=True, slots=True)
class Played:
    """A scene as it went."""

    scene: Scene
    streams: tuple[Heard, ...]
    arrivals: tuple[Heard, ...]
