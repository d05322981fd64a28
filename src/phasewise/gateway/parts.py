"""The objects of one gateway that live as long as its process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from phasewise.gateway.api.quotas import GatewayQuotas
from phasewise.gateway.api.reservations import Reservations
from phasewise.gateway.api.routes import Gateway
from phasewise.gateway.health import HealthWatcher
from phasewise.gateway.kv_transfer.audit import KvTransferWatch
from phasewise.gateway.processes.peers import Peers
from phasewise.gateway.processes.replicas import ReplicaExchange
from phasewise.gateway.records.decision_file import DecisionFile
from phasewise.gateway.records.logs import RejectionLog
from phasewise.gateway.server.edge import Edge
from phasewise.gateway.upstream.engines import Engines
from phasewise.scheduling import World
from phasewise.scheduling.recording import SchedulingCalls

if TYPE_CHECKING:
    from phasewise.clients.otlp_traces import OtlpTraces
    from phasewise.gateway.answer_cache.cache import AnswerCache


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What the application starts and stops, and what a reload gives new settings."""

    gateway: Gateway
    world: World
    scheduling: SchedulingCalls
    decisions: DecisionFile | None
    engines: Engines
    reservations: Reservations
    edge: Edge
    quotas: GatewayQuotas
    watcher: HealthWatcher
    kv_transfer_watch: KvTransferWatch
    cache: AnswerCache | None
    traces: OtlpTraces | None
    rejections: RejectionLog
    replicas: ReplicaExchange | None
    peers: Peers
