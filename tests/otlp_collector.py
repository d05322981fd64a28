"""Trace backends for tests: a collector in a thread that decodes OTLP, and a real one if it is here."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.overhead.tools import CannotMeasure, find_bench
from tests.real_engine import free_port

VARIABLE = "PHASEWISE_VICTORIA_TRACES"


class Collector:
    """Every span that arrived, as OTLP's own type; answers with `status`."""

    def __init__(self):
        self.status = 200
        self.spans = []
        self.resources = []

    def take(self, body):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes_of(each.resource))
            for scope in each.scope_spans:
                self.spans += scope.spans

    def of_trace(self, trace_id):
        return [it for it in self.spans if it.trace_id.hex() == trace_id]


def attributes_of(owner):
    """The attributes of a span or a resource as plain values."""

    def plain(value):
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(it) for it in value.array_value.values]
        return getattr(value, kind)

    return {it.key: plain(it.value) for it in owner.attributes}


@contextmanager
def running_collector():
    """A collector and its address."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if collector.status == 200:
                collector.take(body)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def victoria_traces():
    """Its start script: named by a variable, or beside this repository or the one that it was cloned from."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    with suppress(CannotMeasure):
        script = find_bench(None).parent / "parts" / "traces" / "victoria-traces"
        if script.is_file():
            return script
    return pytest.skip(f"no VictoriaTraces beside the repository; {VARIABLE} may name its start script")


@contextmanager
def running_victoria_traces(folder):
    """A real VictoriaTraces: where spans are sent to, and where Jaeger's questions are asked."""
    script, port = victoria_traces(), free_port()
    subprocess.run([script, "start", str(port), folder], check=True, timeout=120)
    try:
        origin = f"http://127.0.0.1:{port}"
        yield f"{origin}/insert/opentelemetry/v1/traces", f"{origin}/select/jaeger"
    finally:
        subprocess.run([script, "stop", str(port), folder], check=True, timeout=120)
