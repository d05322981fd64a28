"""What helps where neither phase is at fault: the machine, the way to the engine, the measurement itself."""

from __future__ import annotations

from phasewise.diagnosis.advice_start import Remedy
from phasewise.diagnosis.cause import Cause
from phasewise.diagnosis.fix import Figure, Fix

_NO_LEVER = "any engine flag: the engine's own clocks do not see this time"
_NOT_THE_SERVER = "any change of the server: it is not what was measured"


def _outside(what: str, price: str, verify: str = "") -> Fix:
    return Fix(what, price, Figure.TTFT_P50, verify=verify)


_FRONT_ENDS = Fix(
    "run two front ends for the engine",
    "another process, and a core for it",
    Figure.TTFT_P50,
    engine_flag="--api-server-count 2",
    fleet_line="pools: [{engine_flags: [--api-server-count, '2']}]",
)
_FEWER_CHUNKS = Fix(
    "let it send several tokens in a chunk",
    "text appears in larger pieces",
    Figure.TPOT_P50,
    engine_flag="--stream-interval 4",
    fleet_line="pools: [{engine_flags: [--stream-interval, '4']}]",
)
_OWN_CORES = Fix(
    "give the engine cores that nobody else uses, and end what else runs on its host",
    "those cores",
    Figure.TPOT_P50,
    fleet_line="pools: [{cores: 1}]",
)

FAILED_ATTEMPTS = _outside(
    "find out why attempts at workers fail: every request's record names each attempt's worker and its end",
    "time",
)

REMEDIES: dict[Cause, Remedy] = {
    Cause.ENGINE_STARVED: lambda levers: (
        _OWN_CORES,
        _outside("move the engine, or its neighbours, to another host", "another host"),
    ),
    Cause.COLD_START: lambda levers: (
        _outside("send the engine some requests of each kind before users do", "a longer start"),
        _outside("look again now that it is warm", "none", "phasewise diagnose URL"),
    ),
    Cause.FRONT_END_BUSY: lambda levers: (
        _FRONT_ENDS,
        _FEWER_CHUNKS,
        levers.another_engine(),
    ),
    Cause.NETWORK_OR_PROXY: lambda levers: (
        _outside(
            "time the same requests straight at the engine's port, then look at what stands between: "
            "proxies, TLS, DNS, the network",
            "time",
            "phasewise compare ENGINE_URL PROXY_URL",
        ),
        _outside("keep connections open between requests", "none"),
    ),
    Cause.GATEWAY: lambda levers: (
        FAILED_ATTEMPTS if levers.attempts_failed else None,
        _outside("run another gateway process: they share nothing that a request waits for", "a core"),
        _outside("look at what else runs on the gateway's core", "time"),
    ),
    Cause.GENERATOR_LAG: lambda levers: (
        _outside(
            "send the load from another machine, or from several processes, and measure again",
            "none",
            "phasewise bench URL",
        ),
    ),
    Cause.WARM_CACHE: lambda levers: (
        _outside(
            "measure with prompts that the engine has not seen, as users will send them",
            "none",
            "phasewise bench URL --cache cold",
        ),
    ),
    Cause.DRIFT: lambda levers: (
        _outside("watch for longer, and look at what changed meanwhile", "time", "phasewise diagnose URL"),
    ),
}

USELESS: dict[Cause, tuple[str, ...]] = {
    Cause.ENGINE_STARVED: ("any engine flag: it waits for a core, whatever it computes",),
    Cause.COLD_START: ("any lever: later steps of the same kind were quicker with none changed",),
    Cause.FRONT_END_BUSY: ("any lever of the engine's phases: its core waits for its front end",),
    Cause.NETWORK_OR_PROXY: (_NO_LEVER,),
    Cause.GATEWAY: (_NO_LEVER,),
    Cause.GENERATOR_LAG: (_NOT_THE_SERVER,),
    Cause.WARM_CACHE: (_NOT_THE_SERVER,),
    Cause.DRIFT: (_NOT_THE_SERVER,),
}
