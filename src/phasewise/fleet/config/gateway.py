"""The gateway's configuration: its address, API keys, limits and caches."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from phasewise.core.kv_transfer import SplitRule
from phasewise.core.request import DEFAULT_MAX_WAIT_S
from phasewise.core.slo import DEFAULT_SLO
from phasewise.core.worker import DEFAULT_SLOTS, Role

SHA256_PATTERN, NAME_PATTERN = r"^[0-9a-f]{64}$", r"^[a-z0-9][a-z0-9-]{0,40}$"
# --- The base of all configuration: frozen models that reject unknown keys, and shared formats.

BYTE_SIZE_PATTERN = r"^\d+(\.\d+)?(KiB|MiB|GiB)$"
ENGINE_PATH_PATTERN = r"^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$"
URL_PATTERN = r"^https?://[^\s@?#]+$"
ORIGIN_PATTERN, HOST_PATTERN = r"^(\*|[a-z][a-z0-9+.-]*://[^\s/?#@]+)$", r"^([A-Za-z0-9._-]+|[0-9A-Fa-f:.]+)$"
ACCEPTED_BY_PATTERN = {
    SHA256_PATTERN: "accepted: 64 hexadecimal digits, as sha256sum prints them",
    NAME_PATTERN: "accepted: up to 41 lower-case letters, digits and hyphens, not starting with a hyphen",
    URL_PATTERN: "accepted: an address such as http://127.0.0.1:4318/v1/traces, without a user or a query",
    ORIGIN_PATTERN: 'accepted: an origin such as https://chat.example, without a path, or "*" for all',
    HOST_PATTERN: "accepted: a name or an address such as gateway.example, without a port",
    ENGINE_PATH_PATTERN: "accepted: a plain path such as /v1/score, without a slash at its end",
    BYTE_SIZE_PATTERN: "accepted: a number and a unit, such as 512MiB or 1.5GiB",
}
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
ByteSize = Annotated[str, Field(pattern=BYTE_SIZE_PATTERN)]
Origin = Annotated[str, Field(pattern=ORIGIN_PATTERN)]
Host = Annotated[str, Field(pattern=HOST_PATTERN)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Frozen(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- The configuration of the answer cache, which is off unless `gateway.cache` is set.

Share = Annotated[float, Field(gt=0, lt=1)]


class CacheRedis(Frozen):
    """The Redis in which gateways share answers; semantic matches need its vector search."""

    url: str = "redis://127.0.0.1:6379/0"
    key_prefix: Name = "phasewise"


class OnnxEmbedderConfig(Frozen):
    """A model on this machine: a known name, or a folder with model.onnx and tokenizer.json."""

    kind: Literal["onnx"] = "onnx"
    model: str = "minilm-l6"


class HttpEmbedderConfig(Frozen):
    """A server of OpenAI's /v1/embeddings. `url` ends before /v1; a file holds the key."""

    kind: Literal["http"]
    url: str
    model: str
    api_key_file: str | None = None


class JudgeConfig(Frozen):
    """What judges, after the model has answered, whether a stored answer would have served too.

    `model`: a model of this fleet says yes or no, in one token; if it is not set, the fleet's only model.
    `score`: a cross-encoder of this fleet scores the two questions, and `min_score` or more is a yes. `share`
    is the share of the time in which a judge's request may be in progress.
    """

    kind: Literal["model", "score"] = "model"
    model: str | None = None
    min_score: float = 0.5
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    deadline_s: Annotated[float, Field(gt=0, le=600)] = 30.0


class SemanticConfig(Frozen):
    """Answers to questions with other words and the same meaning.

    Matches are served only where they are proven to be wrong in less than a share of `max_wrong_answers`,
    with this `confidence`, the judge's own errors counted in. Matches below `min_similarity` are ignored. The
    model still answers `audit_share` of what could be served, so that a change is noticed.
    """

    embedder: Annotated[OnnxEmbedderConfig | HttpEmbedderConfig, Field(discriminator="kind")] = (
        OnnxEmbedderConfig()
    )
    min_similarity: Share = 0.85
    max_wrong_answers: Share = 0.01
    confidence: Share = 0.95
    audit_share: Share = 0.05
    judge: JudgeConfig = JudgeConfig()

    @field_validator("embedder", mode="before")
    @classmethod
    def _on_this_machine(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the file holds
        return {"kind": "onnx", **value} if isinstance(value, dict) else value


class CacheConfig(Frozen):
    """Answers that are kept and served again. In `shadow` mode nothing is served, only reported.

    `deadline_s` is the longest that a request waits for the cache. `keep` limits the store in this process,
    which is used if `redis` is not set.
    """

    mode: Literal["shadow", "serve"] = "shadow"
    redis: CacheRedis | None = None
    keep: ByteSize = "256MiB"
    ttl_s: Annotated[float, Field(gt=0, le=31_536_000)] = 86_400.0
    deadline_s: Annotated[float, Field(gt=0, le=10)] = 0.1
    max_temperature: Annotated[float, Field(ge=0, le=2)] = 0.5
    semantic: SemanticConfig | None = None


LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
DEFAULT_CLASS = "default"

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class ApiKey(Frozen):
    """A client's key, stored as its hash, and what it may use.

    `weight` is its tenant's share of the engines when several tenants wait for a slot.
    """

    sha256: Sha256
    tenant: Name = "default"
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    weight: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    slo_class: Name = DEFAULT_CLASS
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    max_concurrent: Annotated[int, Field(ge=1)] | None = None

    @property
    def has_limits(self) -> bool:
        """Whether its requests are counted."""
        limits = (self.requests_per_minute, self.tokens_per_minute, self.max_concurrent)
        return any(limit is not None for limit in limits)


class SloClass(Frozen):
    """The objectives of a class of requests, and how long one may wait for a free slot."""

    name: Name = DEFAULT_CLASS
    ttft_s: Seconds = DEFAULT_SLO.ttft_s
    tpot_s: Seconds = DEFAULT_SLO.tpot_s
    max_wait_s: Seconds = DEFAULT_MAX_WAIT_S


class QueueConfig(Frozen):
    """Requests that wait for a free slot on a worker."""

    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = 1_000
    aging_s: Seconds = 5.0


class RedisConfig(Frozen):
    """The store in which several gateways count limits together."""

    url: str = "redis://127.0.0.1:6379/0"
    deadline_s: Annotated[float, Field(gt=0, le=10)] = 0.1
    when_down: Literal["count_alone", "reject"] = "count_alone"
    key_prefix: Name = "phasewise"


class TlsConfig(Frozen):
    """The gateway's certificate and its key, as PEM files."""

    certificate: str
    key: str


class EdgeLimits(Frozen):
    """How large a request may be, and how long its client may take to send it or to read the answer.

    `memory` is what the process may hold before it rejects requests; None: its container's limit, if any.
    """

    body: ByteSize = "32MiB"
    bodies: ByteSize = "512MiB"
    memory: ByteSize | None = None
    head: ByteSize = "32KiB"
    head_s: Seconds = 10.0
    body_s: Seconds = 30.0
    read_s: Seconds = 60.0


class UpstreamConfig(Frozen):
    """How long a worker may take to connect, to begin its reply, and between two pieces of it."""

    connect_s: Seconds = 5.0
    first_byte_s: Seconds = 600.0
    idle_s: Seconds = 300.0


class KvTransferConfig(Frozen):
    """When prompts are computed on prefill workers, and how long a KV transfer to decode workers may take.

    `threshold_tokens` is for `when: threshold` only. `timeout_s` is how long a decode worker may take until
    its first token, and `lease_s` how long a prefill worker keeps KV that was not fetched. KV is requested
    within the first half of the lease, so that what arrives within the second half was not released before.
    """

    when: SplitRule = SplitRule.AUTO
    threshold_tokens: Annotated[int, Field(ge=1)] = 512
    timeout_s: Seconds = 15.0
    lease_s: Annotated[int, Field(ge=6, le=3_600)] = 30

    @model_validator(mode="after")
    def _in_time(self) -> KvTransferConfig:
        if self.timeout_s > self.lease_s / 2:
            raise ValueError(
                f"timeout_s is {self.timeout_s:g} and lease_s {self.lease_s}: a first token after the lease "
                "may come from another request's KV; raise lease_s to twice timeout_s"
            )
        return self


class LogConfig(Frozen):
    """What is written to standard error; never a prompt, an answer or a key."""

    format: Literal["text", "json"] = "text"
    requests: bool = False


class TracesConfig(Frozen):
    """Where OpenTelemetry traces go: OTLP over HTTP.

    `sample` is the share of requests that is chosen when they arrive. Slow and failed ones are kept too, up
    to `slow_per_s`.
    """

    endpoint: Annotated[str, Field(pattern=URL_PATTERN)]
    sample: Annotated[float, Field(ge=0, le=1)] = 0.01
    slow_per_s: Annotated[int, Field(ge=0, le=10_000)] = 100


EnginePath = Annotated[str, Field(pattern=ENGINE_PATH_PATTERN)]
# fmt: off
_NEVER_FORWARDED = frozenset(
    {
        "invocations", "inference", "cohere", "sleep", "sleeping", "wake", "pause", "paused", "resume",
        "abort", "reset", "rpc", "weight", "weights", "scale", "scaling", "profile", "profiling", "lora",
        "fault", "shutdown", "slots", "props", "realtime", "release",
    }
)
# fmt: on
"""Words of paths that control an engine, or that reach any other of its paths."""
_NEVER_FORWARDED_NAMES = ("server_info", "world_size", "kv_event")


class GatewayConfig(Frozen):
    """The gateway's address, API keys and limits."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {
                "properties": {"host": {"not": {"enum": [*sorted(LOOPBACK_HOSTS)]}}},
                "required": ["host"],
            },
            "then": {"properties": {"api_keys": {"minItems": 1}}, "required": ["api_keys"]},
        }
    )

    host: str = "127.0.0.1"
    port: Port = 8080
    policy: str = "prefix_affinity"
    api_keys: tuple[ApiKey, ...] = ()
    admin_key_sha256: Sha256 | None = None
    metrics_key_sha256: Sha256 | None = None
    keep_timelines: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    slo_classes: tuple[SloClass, ...] = ()
    queue: QueueConfig = QueueConfig()
    redis: RedisConfig | None = None
    salt_secret_file: str | None = None
    resume: Literal["text", "off"] = "text"
    unknown_fields: Literal["drop", "pass"] = "drop"
    cors: tuple[Origin, ...] = ()
    trusted_hosts: tuple[Host, ...] = ()
    engine_paths: tuple[EnginePath, ...] = ()
    tls: TlsConfig | None = None
    limits: EdgeLimits = EdgeLimits()
    upstream: UpstreamConfig = UpstreamConfig()
    kv_transfer: KvTransferConfig = KvTransferConfig()
    cache: CacheConfig | None = None
    log: LogConfig = LogConfig()
    traces: TracesConfig | None = None
    processes: Annotated[int, Field(ge=1, le=16)] = 1
    drain_s: Seconds = 120.0
    reload_on_change: bool = False
    quarantine_s: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    record_decisions: str | None = None

    @field_validator("engine_paths")
    @classmethod
    def _no_controls(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            words = re.split(r"[^a-z0-9]+", path.lower())
            named = any(name in path.lower() for name in _NEVER_FORWARDED_NAMES)
            if named or not _NEVER_FORWARDED.isdisjoint(words):
                raise ValueError(
                    f"engine_paths has {path}, which controls engines: only paths of inference are forwarded"
                )
        return paths

    @model_validator(mode="after")
    def _one_process_records(self) -> GatewayConfig:
        if self.record_decisions is not None and self.processes > 1:
            raise ValueError("record_decisions records one process: set processes to 1")
        return self

    @model_validator(mode="after")
    def _limits_are_counted_together(self) -> GatewayConfig:
        if self.processes > 1 and self.redis is None:
            for place, key in enumerate(self.api_keys):
                if key.has_limits:
                    raise ValueError(
                        f"api_keys[{place}] has limits, which {self.processes} processes can only count "
                        "together in Redis: add redis, or set processes to 1"
                    )
        return self

    @model_validator(mode="after")
    def _no_open_door(self) -> GatewayConfig:
        if self.host not in LOOPBACK_HOSTS and not self.api_keys:
            raise ValueError("host is reachable from the network, so api_keys must have at least one key")
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
            raise ValueError("names in slo_classes must be unique")
        for key in self.api_keys:
            if key.slo_class != DEFAULT_CLASS and key.slo_class not in known:
                raise ValueError(f"api_keys names {key.slo_class!r}, which slo_classes does not define")
        return self

    def slo_class(self, name: str) -> SloClass:
        """The class of that name; `default` always exists."""
        return next((known for known in self.slo_classes if known.name == name), SloClass(name=name))


class WorkerTls(Frozen):
    """For an engine behind https: PEM files with the authority that signed its certificate (None: those that
    this system trusts), and with the certificate and key that the gateway shows it.
    """

    model_config = ConfigDict(
        json_schema_extra={"dependentRequired": {"certificate": ["key"], "key": ["certificate"]}}
    )

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> WorkerTls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are given together or not at all")
        return self


class WorkerConfig(Frozen):
    """An engine as the gateway's file describes it. A file holds the key that it asks for, if any."""

    name: str
    url: str
    model: str
    role: Role = Role.MIXED
    pool: str = "default"
    steps_url: str | None = None
    slots: Annotated[int, Field(ge=1)] = DEFAULT_SLOTS
    weights: str = ""
    api_key_file: str | None = None
    tls: WorkerTls | None = None
