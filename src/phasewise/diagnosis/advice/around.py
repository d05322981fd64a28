"""Fixes outside the two phases: the machine, the network, the measurement itself."""

from __future__ import annotations

from phasewise.core.own_rejections import OWN_REJECTIONS
from phasewise.diagnosis.advice.fix import Figure, Fix, LeverChange
from phasewise.diagnosis.advice.start import Remedy, outside
from phasewise.diagnosis.finding import Cause
from phasewise.diagnosis.rules.failing import rejected_by

_NO_LEVER = "any engine flag: the time is lost outside the engine"
_NOT_THE_SERVER = "any change to the server: the load generator was measured, not the server"


_FRONT_ENDS = Fix(
    "run two front ends for the engine",
    "another process, and a core for it",
    Figure.TTFT_P50,
    setting=LeverChange("front_ends", 2),
)
_FEWER_CHUNKS = Fix(
    "let it send several tokens in a chunk",
    "text appears in larger pieces",
    Figure.TPOT_P50,
    setting=LeverChange("tokens_per_chunk", 4),
)
_OWN_CORES = Fix(
    "give the engine dedicated cores, and stop other programs on its host",
    "those cores",
    Figure.TPOT_P50,
    fleet_line="pools: [{cores: 1}]",
)

_FLOAT32 = Fix(
    "compute in float32, for which the processor has instructions",
    "twice the memory for weights and KV cache",
    Figure.TTFT_P50,
    setting=LeverChange("number_format", "float32"),
)

FAILED_ATTEMPTS = outside(
    "find out why attempts fail: each request's timeline names the worker and outcome of every attempt",
    "time",
)


def bring_back(engine: str, why: str) -> Fix:
    """Start an engine again that the gateway does not use."""
    return outside(
        f"bring {engine} back, which is {why}: read the end of its log, then start it again; the gateway "
        "uses it as soon as it answers",
        "none, it is one of the fleet's engines",
        "phasewise status",
    )


REMEDIES: dict[Cause, Remedy] = {
    Cause.ENGINE_HUNG: lambda levers: (
        outside(
            "look at the engine's process and its log now, while it stands still: a stopped process, a full "
            "disk, a device error, a debugger",
            "time",
            "py-spy dump --pid PID",
        ),
        outside("restart the engine if it does not recover", "its open requests and its prefix cache"),
    ),
    Cause.ENGINE_DOWN: lambda levers: (
        outside(
            "start the engine again, and read the end of its log first: out of memory, a device error, a "
            "wrong flag; the gateway uses it as soon as it answers",
            "its prefix cache",
            "phasewise status",
        ),
        outside("add another engine to the gateway, so that the next failure is not seen", "an engine"),
    ),
    Cause.NUMBER_FORMAT: lambda levers: (_FLOAT32,),
    Cause.REQUESTS_REJECTED: lambda levers: (
        outside(
            "send what the engine accepts: the reply to a rejected request says why (a prompt beyond the "
            "context length, a field that it does not know)",
            "a change in the application",
        ),
    ),
    Cause.GATEWAY_REJECTS: lambda levers: (
        *(
            outside(OWN_REJECTIONS[reason].fix, OWN_REJECTIONS[reason].price)
            for reason in levers.rejections
            if rejected_by(reason) is Cause.GATEWAY_REJECTS
        ),
        outside("read the gateway's log: it names each limit that rejects and its setting", "time"),
    ),
    Cause.CLIENTS_CANCEL: lambda levers: (
        outside(
            "find out why clients leave: a timeout of their own or of a proxy, or a user who has seen enough",
            "time",
            "phasewise explain --help",
        ),
        outside("ask for shorter answers: a lower max_tokens", "answers may be cut off"),
    ),
    Cause.THREADS_HIGH: lambda levers: (
        levers.a_thread_per_core(),
        outside("give the engine as many cores as it has threads", "those cores"),
    ),
    Cause.ENGINE_STARVED: lambda levers: (
        _OWN_CORES,
        outside("move the engine, or the other programs, to another host", "another host"),
    ),
    Cause.COLD_START: lambda levers: (
        outside("warm up the engine with requests of each kind before it serves users", "a longer startup"),
        outside("diagnose again now that it is warm", "none", "phasewise diagnose URL"),
    ),
    Cause.FRONT_END_BUSY: lambda levers: (
        _FRONT_ENDS,
        _FEWER_CHUNKS,
        levers.another_engine(),
    ),
    Cause.NETWORK_OR_PROXY: lambda levers: (
        outside(
            "time the same requests directly at the engine's port, then check what is in between: "
            "proxies, TLS, DNS, the network",
            "time",
            "phasewise compare ENGINE_URL PROXY_URL",
        ),
        outside("keep connections open between requests", "none"),
    ),
    Cause.GATEWAY: lambda levers: (
        FAILED_ATTEMPTS if levers.attempts_failed else None,
        outside("run another gateway process", "a core"),
        outside("check what else runs on the gateway's core", "time"),
    ),
    Cause.GENERATOR_LAG: lambda levers: (
        outside(
            "send the load from another machine, or from several processes, and measure again",
            "none",
            "phasewise bench URL",
        ),
    ),
    Cause.WARM_CACHE: lambda levers: (
        outside(
            "measure with prompts that the engine has not seen before",
            "none",
            "phasewise bench URL --cache cold",
        ),
    ),
    Cause.DRIFT: lambda levers: (
        outside(
            "watch longer, and find out what changed during the window", "time", "phasewise diagnose URL"
        ),
    ),
}

USELESS: dict[Cause, tuple[str, ...]] = {
    Cause.ENGINE_HUNG: ("any engine flag: no step is running",),
    Cause.ENGINE_DOWN: ("any lever: the requests reach no engine",),
    Cause.NUMBER_FORMAT: ("smaller prefill chunks: every step is slow, whatever its size",),
    Cause.GATEWAY_REJECTS: ("any engine flag: these requests reached no engine",),
    Cause.REQUESTS_REJECTED: ("more engines: a rejected request is rejected by each of them",),
    Cause.CLIENTS_CANCEL: ("any engine flag, unless clients leave because an answer takes too long",),
    Cause.THREADS_HIGH: ("more cores for other programs: the engine's own threads wait for each other",),
    Cause.ENGINE_STARVED: ("any engine flag: the engine waits for a CPU core, whatever it computes",),
    Cause.COLD_START: ("any lever: later steps of the same kind were faster without a change",),
    Cause.FRONT_END_BUSY: ("any lever of prefill or decode: the engine core waits for its front end",),
    Cause.NETWORK_OR_PROXY: (_NO_LEVER,),
    Cause.GATEWAY: (_NO_LEVER,),
    Cause.GENERATOR_LAG: (_NOT_THE_SERVER,),
    Cause.WARM_CACHE: (_NOT_THE_SERVER,),
    Cause.DRIFT: (_NOT_THE_SERVER,),
}
