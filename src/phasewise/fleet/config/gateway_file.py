"""A gateway's file: its settings, the engines that it names, and where it finds others."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from phasewise.core.worker import DEFAULT_SLOTS, UNKNOWN_MODEL, Role
from phasewise.fleet.config.gateway import Frozen, GatewayConfig, Port, WorkerConfig, WorkerTls

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class KubernetesConfig(Frozen):
    """The cluster's API server, and what shows who asks it; by default what every pod is given."""

    api: str | None = None
    token_file: str = f"{SERVICE_ACCOUNT}/token"
    ca_file: str = f"{SERVICE_ACCOUNT}/ca.crt"


class DiscoverConfig(Frozen):
    """Engines that one Service, InferencePool or name in DNS stands for, with the settings of all of them.

    An engine says itself which model it serves, unless `model` does.
    """

    service: str | None = None
    inference_pool: str | None = None
    dns: str | None = None
    namespace: str | None = None
    port: Port | str | None = None
    steps_port: Port | None = None
    scheme: Literal["http", "https"] = "http"
    model: str = UNKNOWN_MODEL
    role: Role = Role.MIXED
    pool: str = "default"
    slots: Annotated[int, Field(ge=1)] = DEFAULT_SLOTS
    weights: str = ""
    api_key_file: str | None = None
    tls: WorkerTls | None = None

    @model_validator(mode="after")
    def _one_place(self) -> DiscoverConfig:
        if sum(source is not None for source in (self.service, self.inference_pool, self.dns)) != 1:
            raise ValueError("give one of service, inference_pool and dns")
        if self.dns is not None and not isinstance(self.port, int):
            raise ValueError("an address in DNS has no port: give port as a number")
        if self.inference_pool is not None and self.port is not None:
            raise ValueError("an InferencePool has its ports in spec.targetPorts: leave out port")
        return self

    @property
    def named(self) -> str:
        """What is looked at, for messages."""
        if self.service is not None:
            return f"the Service {self.service}"
        if self.inference_pool is not None:
            return f"the InferencePool {self.inference_pool}"
        return f"the name {self.dns}"


class GatewayFile(Frozen):
    """The configuration of a gateway process."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"workers": {"minItems": 1}}, "required": ["workers"]},
                {"properties": {"discover": {"minItems": 1}}, "required": ["discover"]},
            ]
        }
    )

    version: Literal[1] = 1
    gateway: GatewayConfig
    workers: tuple[WorkerConfig, ...] = ()
    discover: tuple[DiscoverConfig, ...] = ()
    kubernetes: KubernetesConfig = KubernetesConfig()

    @model_validator(mode="after")
    def _some_engines(self) -> GatewayFile:
        if not self.workers and not self.discover:
            raise ValueError("a gateway needs engines: give workers, or discover, where it finds them")
        return self
