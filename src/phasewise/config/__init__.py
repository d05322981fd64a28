"""Frozen configuration. What a lever does to an engine stands in fleet/levers.py."""

from phasewise.config.base import ByteSize, Name, Port, Sha256
from phasewise.config.connector import KV_TRANSFER_FLAG, NIXL
from phasewise.config.engine_flags import find_flag
from phasewise.config.fleet import DEMO_MODEL, FleetConfig, Levers, Pool, Speculation
from phasewise.config.gateway import (
    LOOPBACK_HOSTS,
    ApiKey,
    EdgeLimits,
    GatewayConfig,
    GatewayFile,
    HandOverConfig,
    LogConfig,
    QueueConfig,
    RedisConfig,
    SloClass,
    TlsConfig,
    UpstreamConfig,
    WorkerConfig,
)
from phasewise.config.reading import (
    byte_size,
    fleet_from,
    fleet_with,
    is_gateway_file,
    load_fleet,
    load_gateway_file,
    load_secret,
    phasewise_home,
)

__all__ = [
    "DEMO_MODEL",
    "KV_TRANSFER_FLAG",
    "LOOPBACK_HOSTS",
    "NIXL",
    "ApiKey",
    "ByteSize",
    "EdgeLimits",
    "FleetConfig",
    "GatewayConfig",
    "GatewayFile",
    "HandOverConfig",
    "Levers",
    "LogConfig",
    "Name",
    "Pool",
    "Port",
    "QueueConfig",
    "RedisConfig",
    "Sha256",
    "SloClass",
    "Speculation",
    "TlsConfig",
    "UpstreamConfig",
    "WorkerConfig",
    "byte_size",
    "find_flag",
    "fleet_from",
    "fleet_with",
    "is_gateway_file",
    "load_fleet",
    "load_gateway_file",
    "load_secret",
    "phasewise_home",
]
