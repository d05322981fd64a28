"""The options that describe a load, which `bench`, `compare`, `plan` and `simulate` share.

A function takes them as `**options: Unpack[LoadArguments]`; its decorator `takes_load_options` names each of
them in its signature, for Typer, `help()` and notebooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, cast, get_type_hints

from phasewise.api.call import api_key_or_default, check_range, chosen, seed_or_random
from phasewise.benchmark.session import CacheState, RunSpec
from phasewise.benchmark.workload.arrivals import ClosedLoop, Load, OpenLoop, Replay, Spacing
from phasewise.benchmark.workload.drafts import Conversations
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import PRESETS, PresetName, Shape, with_lengths
from phasewise.benchmark.workload.traces import Trace
from phasewise.benchmark.workload.window_trace import traffic_in
from phasewise.core.errors import UsageError
from phasewise.core.slo import DEFAULT_SLO, Slo, parse_slo

DEFAULT_CONCURRENCY = 4

_Function = TypeVar("_Function", bound=Callable[..., Any])


class LoadArguments(TypedDict, total=False):
    """The fields of `LoadOptions` as keyword arguments, where choices are strings."""

    concurrency: int | None
    rate: float | None
    requests: int | None
    duration: float | None
    spacing: str
    burstiness: float
    speed: float
    preset: str
    prompt_tokens: int | None
    output_tokens: int | None
    shared_prefix_tokens: int | None
    shared_prefixes: int | None
    turns: int
    think: float
    trace: str | Path | None
    seed: int | None
    slo: str


class MeasurementArguments(LoadArguments, total=False):
    """The fields of `MeasurementOptions` as keyword arguments."""

    cache: str
    model: str | None
    api_key: str | None
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """A load and its objectives, under the names of the options that set them."""

    concurrency: int | None = None
    rate: float | None = None
    requests: int | None = None
    duration: float | None = None
    spacing: Spacing = Spacing.POISSON
    burstiness: float = 1.0
    speed: float = 1.0
    preset: PresetName = PresetName.CHAT
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    shared_prefix_tokens: int | None = None
    shared_prefixes: int | None = None
    turns: int = 1
    think: float = 1.0
    trace: Path | None = None
    seed: int | None = None
    slo: str = ""

    @classmethod
    def of(cls, options: LoadArguments, fewest_requests: int = 1) -> Self:
        """The options of a call; UsageError for a wrong value."""
        given: dict[str, Any] = dict(options)
        check_range("--requests", given.get("requests"), fewest_requests)
        for name, choices in (("spacing", Spacing), ("preset", PresetName), ("cache", CacheState)):
            if name in given:
                given[name] = chosen(f"--{name}", given[name], choices)
        if given.get("trace") is not None:
            given["trace"] = Path(given["trace"])
        return cls(**given)

    def objectives(self) -> Slo:
        """The --slo; what it leaves out is as in the default."""
        return parse_slo(self.slo, DEFAULT_SLO)

    def source(self, say: Callable[[str], None] = lambda words: None) -> Shape | Trace:
        """The trace, or the preset with the lengths that were given; `say` gets what a trace left out."""
        lengths = self.prompt_tokens, self.output_tokens, self.shared_prefix_tokens, self.shared_prefixes
        if self.trace is None:
            return with_lengths(PRESETS[self.preset], *lengths)
        if lengths != (None,) * 4:
            raise UsageError(
                "--trace was given together with --prompt-tokens, --output-tokens or a shared prefix",
                hint="a trace has its own lengths: remove one of them",
            )
        return traffic_in(self.trace, say)

    def load(self) -> Load:
        """An open loop if a rate was given, else a closed one; a trace without either keeps its times."""
        if self.rate is not None and self.concurrency is not None:
            raise UsageError("--rate and --concurrency were both given", hint="give only one of them")
        if self.rate is not None:
            return OpenLoop(self.rate, self.spacing, self.burstiness)
        if self.concurrency is None and self.trace is not None:
            return Replay(self.speed)
        return ClosedLoop(DEFAULT_CONCURRENCY if self.concurrency is None else self.concurrency)

    def conversations(self) -> Conversations | None:
        """Conversations of several turns; None for a single turn."""
        if self.turns < 1 or self.think < 0:
            raise UsageError(
                f"--turns {self.turns} and --think {self.think:g}",
                hint="use at least 1 turn, and at least 0 s",
            )
        return Conversations(self.turns, self.think) if self.turns > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementOptions(LoadOptions):
    """A load that is sent to a server, and how."""

    cache: CacheState = CacheState.COLD
    model: str | None = None
    api_key: str | None = None
    timeout: float = 600.0

    def run_spec(
        self,
        source: Shape | Trace,
        requests: int | None,
        admin_key: str | None = None,
        steps_url: str | None = None,
    ) -> RunSpec:
        """A measurement of a server under this load; the seed is random unless one was given."""
        return RunSpec(
            plan=PlanSpec(
                source=source,
                load=self.load(),
                requests=requests,
                duration_s=self.duration,
                conversations=self.conversations(),
            ),
            seed=seed_or_random(self.seed),
            cache=self.cache,
            model=self.model,
            api_key=api_key_or_default(self.api_key),
            admin_key=admin_key,
            timeout_s=self.timeout,
            steps_url=steps_url,
        )


def takes_load_options(
    options: type[LoadOptions],
    annotations: Mapping[str, Any] | None = None,
    without: Set[str] = frozenset(),
) -> Callable[[_Function], _Function]:
    """A decorator that names these options in the signature of a function, in place of its `**options`.

    `annotations` replace the types of options. Those `without` are rejected as any unknown argument is.
    """
    named = get_type_hints(MeasurementArguments) | dict(annotations or {})
    return takes(
        [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=named[field.name])
            for field in fields(options)
            if field.name not in without
        ]
    )


def takes(parameters: Sequence[Parameter]) -> Callable[[_Function], _Function]:
    """A decorator that names parameters in the signature of a function, in place of its `**`."""

    def decorate(function: _Function) -> _Function:
        own = signature(function, eval_str=True)
        first = [each for each in own.parameters.values() if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
        later = [each for each in own.parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
        whole = own.replace(parameters=sorted([*first, *parameters, *later], key=lambda each: each.kind))

        @wraps(function)
        def checked(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - what the function takes and returns
            whole.bind(*given, **named)
            return function(*given, **named)

        checked.__dict__["__signature__"] = whole
        return cast(_Function, checked)

    return decorate
