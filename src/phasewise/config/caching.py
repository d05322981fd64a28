"""The configuration of the answer cache, which is off unless `gateway.cache` is there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from phasewise.config.base import ByteSize, Frozen, Name

Share = Annotated[float, Field(gt=0, lt=1)]


class CacheRedis(Frozen):
    """The Redis, with vector search if matches by meaning are wanted, in which gateways share answers."""

    url: str = "redis://127.0.0.1:6379/0"
    key_prefix: Name = "phasewise"


class OnnxEmbedder(Frozen):
    """A model on this machine: a known name, or a folder with model.onnx and tokenizer.json."""

    kind: Literal["onnx"] = "onnx"
    model: str = "minilm-l6"


class HttpEmbedder(Frozen):
    """Any server of OpenAI's /v1/embeddings. `url` ends before /v1; the key stands in a file."""

    kind: Literal["http"]
    url: str
    model: str
    api_key_file: str | None = None


class JudgeConfig(Frozen):
    """Who says whether a stored answer would have been right, once the model has answered too.

    `text`: both are the same but for space and a last full stop. `embedding`: their embeddings are at least
    `similarity` near. `model`: a model of this fleet is asked.
    """

    kind: Literal["text", "embedding", "model"] = "text"
    similarity: Share = 0.95
    model: str | None = None
    deadline_s: Annotated[float, Field(gt=0, le=600)] = 30.0

    @model_validator(mode="after")
    def _somebody_to_ask(self) -> JudgeConfig:
        if self.kind == "model" and self.model is None:
            raise ValueError("kind is model, so judge.model must name a model of this fleet")
        return self


class SemanticConfig(Frozen):
    """Answers to other words of the same meaning.

    A kind of match whose share of wrong answers, as the judge sees it, is `max_wrong_answers` or more is ever
    served with a chance of at most 1 - `confidence`: for each kind and each tenant, not over all that is
    served. Matches under `min_similarity` are not looked at. `audit_share` of what could be served is
    answered by the model all the same, so that a change is noticed.
    """

    embedder: Annotated[OnnxEmbedder | HttpEmbedder, Field(discriminator="kind")] = OnnxEmbedder()
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
    """Answers kept and given again. In `shadow` mode nothing is served, only reported.

    `deadline_s` is the longest a request waits for the cache. `keep` bounds the store in this process, which
    is used where `redis` is not set. `replay_tokens_per_s` paces stored streams; None sends them at once.
    """

    mode: Literal["shadow", "serve"] = "shadow"
    redis: CacheRedis | None = None
    keep: ByteSize = "256MiB"
    ttl_s: Annotated[float, Field(gt=0, le=31_536_000)] = 86_400.0
    deadline_s: Annotated[float, Field(gt=0, le=10)] = 0.1
    max_temperature: Annotated[float, Field(ge=0, le=2)] = 0.5
    replay_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    semantic: SemanticConfig | None = None
