"""Installs the chart on a real one-node Kubernetes, and changes everything under streams.

    PHASEWISE_K8S=SCRIPT python benchmarks/kubernetes_e2e.py [--streams 16] [--quick] [--real-engine] [--json]

Two gateways and four fake engines, installed by `helm install` from an image that is built here (podman, as
root). Streams run through the Service all the while: gateways are replaced one after the other, engines too,
an engine's pod is killed, engines are scaled up and down. `PHASEWISE_K8S` names the script that starts the
node; without it nothing can be measured, and the object says so under `skipped`. With --real-engine, a second
release has a pod with the vLLM and the demo model of this machine (their folders are mounted), and
`phasewise diagnose --probe` asks it through the Service.

The last line is one JSON object: start_s (from `helm install` to the first answer through the Service),
discovered_s (the longest time from a change of the EndpointSlices until every gateway had the same engines),
changes (how many there were), rolled_streams (streams that ended), cut_streams (those without their end or
with missing tokens), failed (requests that were not answered with 200), scaled (the numbers of engines, as
gateways saw them), real_engine_verdict (what diagnose said), and the interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import yaml
from script import command_line, interpreter

sys.path.insert(0, str(Path(__file__).parent.parent))

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.kubernetes import ENDPOINT_SLICES, ApiServer, ListAgain
from phasewise.core.errors import PhasewiseError, UpstreamError
from phasewise.fleet.config import DEMO_MODEL, DiscoverConfig, phasewise_home
from phasewise.gateway.discovery import workers_in_slices
from tests.deploy.chart import CHART, values_of
from tests.deploy.one_node import OneNode, running_node
from tests.deploy.podman import GATEWAY, podman_with_base_image

NAMESPACE, KEY, ADMIN_KEY = "demo", "a-key-of-this-run", "an-admin-key-of-this-run"
ENGINES = 4
SERVICE = DiscoverConfig(service="phasewise-fake", port="http")
TIMEOUTS = Timeouts(connect_s=5.0, head_s=60.0, idle_s=60.0)
STREAM_TOKENS, QUICK_TOKENS = 100, 30
WITHIN_S = 180.0
LOOK_EVERY_S = 0.05


def main() -> None:
    """Start, change, count, print."""
    parser = command_line(__doc__, quick="short streams, and no roll of the engines")
    parser.add_argument("--streams", type=int, default=16, help="open at once; default: 16")
    parser.add_argument("--real-engine", action="store_true", help="then also a pod with a real vLLM")
    options = parser.parse_args()
    if not os.environ.get("PHASEWISE_K8S"):
        print(
            json.dumps(
                {"skipped": "PHASEWISE_K8S names no script that starts a node", "python": interpreter()}
            )
        )
        return
    with running_node() as node:
        say = (lambda _text: None) if options.json else print
        result = asyncio.run(Run(node, say, quick=options.quick).all(options.streams))
        if options.real_engine:
            say("asks a real engine")
            result["real_engine_verdict"] = verdict_of_a_real_engine(node)
    print(json.dumps({**result, "quick": options.quick, "python": interpreter()}))


class Run:
    """One run on a node that is up."""

    def __init__(self, node: OneNode, say: Callable[[str], None], *, quick: bool) -> None:
        self._node = node
        self._say = say
        self._quick = quick
        self._endings: Counter[str] = Counter()
        self._wanted: list[tuple[float, frozenset[str]]] = []
        self._seen: dict[str, list[tuple[float, frozenset[str]]]] = {}
        self._over = False

    async def all(self, streams: int) -> dict[str, Any]:
        """The whole story."""
        with tempfile.TemporaryDirectory() as folder:
            address, start_s = await self._install(Path(folder))
            api = self._api(Path(folder))
            watching = [asyncio.create_task(it) for it in (self._watch_slices(api), self._watch_gateways())]
            clients = [asyncio.create_task(self._stream(address)) for _ in range(streams)]
            scaled = await self._change_everything()
            self._over = True
            await asyncio.gather(*clients)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        lags_s = self._lags_s()
        return {
            "start_s": round(start_s, 1),
            "discovered_s": round(max(lags_s, default=0.0), 2),
            "changes": len(lags_s),
            "rolled_streams": self._endings.total() - self._endings["failed"],
            "cut_streams": self._endings["cut"],
            "failed": self._endings["failed"],
            "scaled": scaled,
        }

    # --- the cluster --------------------------------------------------------------------------------------

    async def _install(self, folder: Path) -> tuple[str, float]:
        podman, tar = podman_with_base_image(), folder / "gateway.tar"
        self._say("builds the image and loads it")
        await asyncio.to_thread(podman.build, "Dockerfile", GATEWAY)
        await asyncio.to_thread(podman, "save", "--output", str(tar), GATEWAY)
        await asyncio.to_thread(self._node.load, tar)
        repository, _, tag = GATEWAY.partition(":")
        values = {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "gateway": {
                "apiKeys": [{"sha256": _sha256(KEY)}],
                "adminKeySha256": _sha256(ADMIN_KEY),
                "drainSeconds": 60,
            },
        }
        own = folder / "own.yaml"
        own.write_text(yaml.safe_dump(values))
        fake = yaml.safe_load(values_of("fake-engines").read_text())
        fake["engines"]["pools"][0]["replicas"] = ENGINES
        engines = folder / "engines.yaml"
        engines.write_text(yaml.safe_dump(fake))
        files = ["--values", str(engines), "--values", str(own)]
        began_s = time.monotonic()
        self._say("installs the chart")
        await self._kubectl("create", "namespace", NAMESPACE)
        secrets = ["--from-literal=salt-secret=" + "s" * 32, "--from-literal=engine-key=k"]
        await self._kubectl("create", "secret", "generic", "phasewise-secrets", *secrets)
        await self._helm("install", "phasewise", str(CHART), *files)
        service = self._node.get(NAMESPACE, "service", "phasewise-gateway")["spec"]
        address = f"http://{service['clusterIP']}:{service['ports'][0]['port']}"
        await _until(lambda: self._answers(address))
        return address, time.monotonic() - began_s

    async def _change_everything(self) -> list[int]:
        scaled = [await self._engines_are(ENGINES)]
        self._say("replaces the gateways")
        changed = ["--reuse-values", "--set", "gateway.processes=2"]
        await self._helm("upgrade", "phasewise", str(CHART), *changed, "--wait", "--timeout=180s")
        await self._kubectl("rollout", "status", "deployment/phasewise-gateway", "--timeout=180s")
        if not self._quick:
            self._say("replaces the engines")
            await self._kubectl("rollout", "restart", "statefulset/phasewise-fake")
            await self._kubectl("rollout", "status", "statefulset/phasewise-fake", "--timeout=180s")
            await self._engines_are(ENGINES)
        self._say("kills an engine")
        await self._kubectl("delete", "pod", "phasewise-fake-1", "--force", "--grace-period=0")
        await self._kubectl("rollout", "status", "statefulset/phasewise-fake", "--timeout=180s")
        await self._engines_are(ENGINES)
        for count in (ENGINES + 2, ENGINES - 1):
            self._say(f"scales to {count} engines")
            await self._kubectl("scale", "statefulset/phasewise-fake", f"--replicas={count}")
            scaled.append(await self._engines_are(count))
        return scaled

    async def _engines_are(self, count: int) -> int:
        """Wait until every gateway that serves has so many engines."""

        def is_so() -> bool:
            lately = [seen[-1] for seen in self._seen.values() if time.monotonic() - seen[-1][0] < 1.0]
            return len(lately) >= 2 and all(len(names) == count for _, names in lately)

        await _until(is_so)
        return count

    async def _helm(self, *arguments: str) -> None:
        await asyncio.to_thread(self._node.helm, *arguments, "--namespace", NAMESPACE)

    async def _kubectl(self, *arguments: str) -> None:
        await asyncio.to_thread(self._node.kubectl, "--namespace", NAMESPACE, *arguments)

    def _api(self, folder: Path) -> ApiServer:
        url, authority = self._node.api_server()
        (folder / "ca.crt").write_bytes(authority)
        for command in (
            ("create", "serviceaccount", "watcher"),
            ("create", "role", "watcher", "--verb=list,watch", "--resource=endpointslices.discovery.k8s.io"),
            ("create", "rolebinding", "watcher", "--role=watcher", f"--serviceaccount={NAMESPACE}:watcher"),
        ):
            self._node.kubectl("--namespace", NAMESPACE, *command)
        token = self._node.kubectl("--namespace", NAMESPACE, "create", "token", "watcher", "--duration=2h")
        (folder / "token").write_text(token)
        return ApiServer(url, str(folder / "token"), str(folder / "ca.crt"))

    # --- what is there, and what gateways know ------------------------------------------------------------

    async def _watch_slices(self, api: ApiServer) -> None:
        path = ENDPOINT_SLICES.format(NAMESPACE)
        selector = f"kubernetes.io/service-name={SERVICE.service}"
        while True:
            listed = await api.list(path, selector)
            with contextlib.suppress(ListAgain, PhasewiseError):
                self._note_wanted(listed.objects.values())
                async for _ in api.follow(path, selector, listed):
                    self._note_wanted(listed.objects.values())

    def _note_wanted(self, slices: Any) -> None:  # noqa: ANN401 - plain JSON
        names = frozenset(it.name for it in workers_in_slices(slices, SERVICE))
        if not self._wanted or self._wanted[-1][1] != names:
            self._wanted.append((time.monotonic(), names))

    async def _watch_gateways(self) -> None:
        """Ask each gateway by its own address, many times a second, which engines it has."""
        asking: dict[str, asyncio.Task[None]] = {}
        while True:
            selector = "--selector=app.kubernetes.io/component=gateway"
            pods = (await asyncio.to_thread(self._node.get, NAMESPACE, "pods", selector))["items"]
            for pod in pods:
                address = pod["status"].get("podIP")
                if address and not pod["metadata"].get("deletionTimestamp") and address not in asking:
                    asking[address] = asyncio.create_task(self._ask(address))
            await asyncio.sleep(0.5)

    async def _ask(self, address: str) -> None:
        client = HttpClient(f"http://{address}:8080", Timeouts(connect_s=1.0, head_s=2.0, idle_s=2.0))
        headers = [(b"authorization", b"Bearer " + ADMIN_KEY.encode())]
        while True:
            try:
                reply = await client.fetch("GET", "/phasewise/v1/workers", headers=headers)
            except UpstreamError:
                if address in self._seen:
                    return  # it has ended
            else:
                names = frozenset(it["name"] for it in orjson.loads(reply.body)["workers"])
                seen = self._seen.setdefault(address, [])
                if len(seen) > 1 and seen[-1][1] == seen[-2][1] == names:
                    seen.pop()  # of equal ones the first and the last are kept
                seen.append((time.monotonic(), names))
            await asyncio.sleep(LOOK_EVERY_S)

    def _lags_s(self) -> list[float]:
        """For each change that lasted: how long until the last of the gateways that served then had it."""
        lags_s = []
        ends = [*(at_s for at_s, _ in self._wanted[1:]), time.monotonic()]
        for (at_s, names), until_s in zip(self._wanted, ends, strict=True):
            if until_s - at_s < 2.0:
                continue
            for seen in self._seen.values():
                if seen[0][0] > at_s or seen[-1][0] < until_s:
                    continue  # it began later, or ended before
                had_s = next((it_s for it_s, had in seen if it_s >= at_s and had == names), until_s)
                lags_s.append(had_s - at_s)
        return lags_s

    # --- clients ------------------------------------------------------------------------------------------

    async def _answers(self, address: str) -> bool:
        try:
            return (await _chat(address, max_tokens=1))[0] == 200
        except UpstreamError:
            return False

    async def _stream(self, address: str) -> None:
        tokens = QUICK_TOKENS if self._quick else STREAM_TOKENS
        while not self._over:
            try:
                status, body = await _chat(address, max_tokens=tokens, ignore_eos=True, stream=True)
            except UpstreamError:
                self._endings["failed"] += 1
                continue
            if status != 200:
                self._endings["failed"] += 1
                continue
            events = [it for it in body.decode().split("\n\n") if it]
            whole = events[-1] == "data: [DONE]" and sum('"content"' in it for it in events) >= tokens
            self._endings["whole" if whole else "cut"] += 1


def verdict_of_a_real_engine(node: OneNode) -> str:
    """What `phasewise diagnose --probe` says of one, through its Service."""
    home = phasewise_home(os.environ)
    model, port = home / "models" / DEMO_MODEL, 8000
    serve = [str(home / "engine" / "bin" / "vllm"), "serve", str(model), f"--port={port}", "--host=0.0.0.0"]
    flags = [f"--served-model-name={DEMO_MODEL}", "--enforce-eager", "--max-model-len=2048"]
    env = {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HOME": "/tmp",
    }  # fmt: skip
    repository, _, tag = GATEWAY.partition(":")
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "gateway": {
            "replicas": 1,
            "apiKeys": [{"sha256": _sha256(KEY)}],
            "adminKeySha256": _sha256(ADMIN_KEY),
            "resources": {"requests": {"cpu": "100m"}},
        },
        "engines": {
            "pools": [
                {
                    "name": "vllm",
                    "model": DEMO_MODEL,
                    # This machine's programs, in the pod's network: no image with vLLM can be built here.
                    "command": ["chroot", "/host", *serve, *flags],
                    "env": [{"name": name, "value": value} for name, value in env.items()],
                    "securityContext": {"runAsUser": 0},
                    "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
                    "volumeMounts": [{"name": "host", "mountPath": "/host"}],
                    "slots": 16,
                }
            ]
        },
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump(values))
        file.flush()
        where = ["--namespace", "real", "--create-namespace", "--values", file.name]
        node.helm("install", "real", str(CHART), *where, "--wait", "--timeout=280s")
    service = node.get("real", "service", "real-gateway")["spec"]
    address = f"http://{service['clusterIP']}:{service['ports'][0]['port']}"
    keys = ["--api-key", KEY, "--admin-key", ADMIN_KEY]
    said = subprocess.run(
        [
            sys.executable,
            "-m",
            "phasewise.cli",
            "diagnose",
            address,
            "--probe",
            "--json",
            "--exit-zero",
            *keys,
        ],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    return str(json.loads(said.stdout)["verdict"])


async def _chat(address: str, **fields: object) -> tuple[int, bytes]:
    """One request over a connection of its own."""
    client = HttpClient(address, TIMEOUTS)
    headers = [(b"authorization", b"Bearer " + KEY.encode()), (b"content-type", b"application/json")]
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], **fields}
    try:
        reply = await client.fetch("POST", "/v1/chat/completions", headers=headers, body=orjson.dumps(body))
        return reply.status, reply.body
    finally:
        client.close()


async def _until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = check()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.2)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    main()
