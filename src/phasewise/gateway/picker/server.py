"""The gRPC server of the endpoint picker: Envoy's ext_proc service, and the health service."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1.health import aio as health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import TlsConfig
from phasewise.gateway.picker.messages import SERVICE, ProcessingRequest, ProcessingResponse
from phasewise.gateway.picker.picker import EndpointPicker

SERVICES = ("", "liveness", "readiness", SERVICE)  # which the protocol lets health checks ask for
STOP_WITHIN_S = 2.0


class PickerServer:
    """Serves a picker at an address, such as 127.0.0.1:9002, with the gateway's certificate if it has one."""

    def __init__(self, picker: EndpointPicker, address: str, tls: TlsConfig | None = None) -> None:
        self._picker = picker
        self._address = address
        self._tls = tls

    def bind(self) -> None:
        """Take the address; raises ConfigError."""
        self._server, self._health = grpc.aio.server(), health.HealthServicer()
        process = grpc.stream_stream_rpc_method_handler(
            self._picker.process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
        )
        services = grpc.method_handlers_generic_handler(SERVICE, {"Process": process})
        self._server.add_generic_rpc_handlers((services,))
        add_HealthServicer_to_server(self._health, self._server)
        try:
            if self._tls is None:
                self._server.add_insecure_port(self._address)
            else:
                self._server.add_secure_port(self._address, _credentials(self._tls))
        except RuntimeError as error:
            raise ConfigError(
                f"the endpoint picker cannot listen on {self._address}", hint="choose another --picker-port"
            ) from error

    async def start(self) -> None:
        """Begin to answer."""
        for service in SERVICES:
            await self._health.set(service, HealthCheckResponse.SERVING)
        await self._server.start()

    async def stop(self) -> None:
        """Let Envoy go on without the picker."""
        await self._health.enter_graceful_shutdown()
        self._picker.stop()
        await self._server.stop(STOP_WITHIN_S)


def _credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """The certificate, read again for each connection: it may be renewed while the picker runs."""

    def read() -> object:
        pair = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
        return grpc.ssl_server_certificate_configuration([pair])

    return grpc.dynamic_ssl_server_credentials(read(), read)
