"""What the words and figures of a diagnosis mean, printed with them."""

from __future__ import annotations

from phasewise.bench.definitions import DEFINITIONS

_COMMON = ("TTFT", "TPOT", "ITL", "stall", "generator lag")

MEANINGS = {name: DEFINITIONS[name] for name in _COMMON} | {
    "engine queue": "from the engine's taking a request in to its first step with tokens of it",
    "waiting for running step": "the engine takes requests in between steps: one that comes meanwhile waits",
    "prefill, own tokens": "the part of the prompt's steps that its own tokens took",
    "prefill, others' tokens": "the part of the same steps that other prompts and running streams took",
    "residual": "what no clock saw: network, tokenising, hops between processes, the way back",
    "a step of one stream": "what a decode step takes however few streams are in it, by the fitted costs",
    "more streams in it": "what the other streams of the batch added to a step, by the fitted costs",
    "reading the KV cache": "what a step's reading of all that was said before took, by the fitted costs",
    "others' prompts": "what prompts computed in the same steps as running streams added to a token",
    "share": "a cause's part of the phase's mean latency; causes do not overlap, so shares never pass 100%",
    "lost": "seconds beyond the objective, over all requests of the window: what causes are ranked by",
    "confidence": "high needs enough requests matched to engine steps; indirect evidence lowers it",
    "predicted": "a 90% interval from replaying this window's traffic through a model of the engine whose "
    "costs were fitted to its steps, with the one change; effects of two fixes are never multiplied",
}
