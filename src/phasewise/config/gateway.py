"""The gateway's configuration: where it listens, whom it lets in, what it bears, and what it remembers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from phasewise.config.base import ByteSize, Frozen, Name, Port, Sha256
from phasewise.config.caching import CacheConfig
from phasewise.model.hand_over import SplitRule
from phasewise.model.request import DEFAULT_MAX_WAIT_S
from phasewise.model.slo import DEFAULT_SLO
from phasewise.model.worker import DEFAULT_SLOTS, Role

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
DEFAULT_CLASS = "default"

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class ApiKey(Frozen):
    """A client's key, known only by its hash, and what it may use."""

    sha256: Sha256
    tenant: Name = "default"
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    slo_class: Name = DEFAULT_CLASS
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    max_concurrent: Annotated[int, Field(ge=1)] | None = None


class SloClass(Frozen):
    """What requests of a class are promised, and how long one may wait for room before it is turned away."""

    name: Name = DEFAULT_CLASS
    ttft_s: Seconds = DEFAULT_SLO.ttft_s
    tpot_s: Seconds = DEFAULT_SLO.tpot_s
    max_wait_s: Seconds = DEFAULT_MAX_WAIT_S


class QueueConfig(Frozen):
    """Requests that wait for room on a worker."""

    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = 1_000
    aging_s: Seconds = 5.0


class RedisConfig(Frozen):
    """The store in which several gateways count limits together."""

    url: str = "redis://127.0.0.1:6379/0"
    deadline_s: Annotated[float, Field(gt=0, le=10)] = 0.1
    when_down: Literal["count_alone", "refuse"] = "count_alone"
    key_prefix: Name = "phasewise"


class TlsConfig(Frozen):
    """The certificate the gateway shows, and its key, as PEM files."""

    certificate: str
    key: str


class EdgeLimits(Frozen):
    """How large a request may be, and how long its client may take to send it or to read the answer."""

    body: ByteSize = "32MiB"
    head: ByteSize = "32KiB"
    head_s: Seconds = 10.0
    body_s: Seconds = 30.0
    read_s: Seconds = 60.0


class UpstreamConfig(Frozen):
    """How long a worker may take to connect, to begin its reply, and between two pieces of it."""

    connect_s: Seconds = 5.0
    first_byte_s: Seconds = 600.0
    idle_s: Seconds = 300.0


class HandOverConfig(Frozen):
    """When prompts are computed on prefill workers, and what the way from there to decode workers may take.

    `threshold_tokens` is for `when: threshold` alone. `timeout_s` is how long a decode worker may take to its
    first token, `lease_s` how long a prefill worker keeps KV that nobody has fetched, and `canary_s` how
    often a hand-over is tried where no request has proved one (None: never). KV is asked for within the first
    half of the lease; what comes within another half has not been released, whatever the engines were at.
    """

    when: SplitRule = SplitRule.AUTO
    threshold_tokens: Annotated[int, Field(ge=1)] = 512
    timeout_s: Seconds = 15.0
    lease_s: Annotated[int, Field(ge=6, le=3_600)] = 30
    canary_s: Annotated[float, Field(ge=1, le=86_400)] | None = 60.0

    @model_validator(mode="after")
    def _in_time(self) -> HandOverConfig:
        if self.timeout_s > self.lease_s / 2:
            raise ValueError(
                f"timeout_s is {self.timeout_s:g} and lease_s {self.lease_s}: a first token that comes after "
                "the lease may stand on another request's KV; raise lease_s to twice timeout_s"
            )
        return self


class LogConfig(Frozen):
    """What is written to standard error; never a prompt, an answer or a key."""

    format: Literal["text", "json"] = "text"
    requests: bool = False


class GatewayConfig(Frozen):
    """Where the gateway listens, whom it lets in and what it bears."""

    host: str = "127.0.0.1"
    port: Port = 8080
    policy: str = "prefix_affinity"
    api_keys: tuple[ApiKey, ...] = ()
    admin_key_sha256: Sha256 | None = None
    keep_timelines: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    slo_classes: tuple[SloClass, ...] = ()
    queue: QueueConfig = QueueConfig()
    redis: RedisConfig | None = None
    salt_secret_file: str | None = None
    resume: Literal["text", "off"] = "text"
    tls: TlsConfig | None = None
    limits: EdgeLimits = EdgeLimits()
    upstream: UpstreamConfig = UpstreamConfig()
    hand_over: HandOverConfig = HandOverConfig()
    cache: CacheConfig | None = None
    log: LogConfig = LogConfig()
    drain_s: Seconds = 120.0

    @model_validator(mode="after")
    def _no_open_door(self) -> GatewayConfig:
        if self.host not in LOOPBACK_HOSTS and not self.api_keys:
            raise ValueError("host is reachable from the network, so api_keys must hold at least one key")
        return self

    @model_validator(mode="after")
    def _no_key_twice(self) -> GatewayConfig:
        seen: dict[str, int] = {}
        for place, key in enumerate(self.api_keys):
            first = seen.setdefault(key.sha256, place)
            if first != place:
                raise ValueError(
                    f"api_keys[{first}] and api_keys[{place}] are the same key: give each key once"
                )
        return self

    @model_validator(mode="after")
    def _known_classes(self) -> GatewayConfig:
        known = [slo_class.name for slo_class in self.slo_classes]
        if len(set(known)) != len(known):
            raise ValueError("each entry of slo_classes needs a name of its own")
        for key in self.api_keys:
            if key.slo_class != DEFAULT_CLASS and key.slo_class not in known:
                raise ValueError(f"api_keys names {key.slo_class!r}, which slo_classes does not define")
        return self

    def slo_class(self, name: str) -> SloClass:
        """The class of that name; `default` need not be defined."""
        return next((it for it in self.slo_classes if it.name == name), SloClass(name=name))


class WorkerConfig(Frozen):
    """An engine as the gateway is told of it."""

    name: str
    url: str
    model: str
    role: Role = Role.MIXED
    pool: str = "default"
    steps_url: str | None = None
    slots: Annotated[int, Field(ge=1)] = DEFAULT_SLOTS


class GatewayFile(Frozen):
    """What a gateway process is started with."""

    version: Literal[1] = 1
    gateway: GatewayConfig
    workers: Annotated[tuple[WorkerConfig, ...], Field(min_length=1)]
