"""The comparison of two load generators, and the command line of the other one."""

import json
from math import log
from pathlib import Path

import pytest

from benchmarks.overhead.crosscheck_tools import METRICS, BenchLoad, ToolRun, VllmBench, noise, ratio
from phasewise.core.errors import MeasurementError
from phasewise.fake_engine.fleet import running_engines

LOAD = BenchLoad(64, 4, 2, 6)


def runs(*ttfts_s):
    return [ToolRun({"ttft": ttft_s}, 256.0) for ttft_s in ttfts_s]


def test_a_ratio_is_of_neighbours_and_noise_is_of_a_tool_against_itself():
    vllm, ours = runs(1.0, 2.0), runs(1.1, 2.2)
    assert ratio(vllm, ours, "ttft") == pytest.approx(1.1)
    assert noise(vllm, ours, "ttft") == pytest.approx(log(2.0))
    assert noise(runs(1, 1), runs(3, 3), "ttft") == 0.0


def test_a_faster_engine_gets_more_requests_in_whole_rounds():
    slow, fast, fastest = (BenchLoad().lasting(20.0, each).requests for each in (5.0, 0.5, 0.001))
    assert (slow, fast, fastest) == (8, 40, 512)


def tool(folder: Path, result: dict, code: int = 0) -> Path:
    """A Python that writes a result where `vllm bench serve` would."""
    script = folder / "python"
    script.write_text(
        "#!/usr/bin/env python3\n"
        "import sys, pathlib\n"
        "words = sys.argv\n"
        f"pathlib.Path({str(folder / 'asked.txt')!r}).write_text(' '.join(words))\n"
        "folder = pathlib.Path(words[words.index('--result-dir') + 1])\n"
        f"(folder / 'result.json').write_text({json.dumps(result)!r})\n"
        f"print('no such package'); sys.exit({code})\n"
    )
    script.chmod(0o755)
    return script


RESULT = {"completed": 6, "ttfts": [0.1] * 6, "itls": [[0.0, 0.02, 0.04]] * 6, "input_lens": [60] * 6}


async def test_the_other_tool_gets_the_same_load_and_its_medians_are_read(tmp_path):
    async with running_engines(1) as (engine,):
        found = await VllmBench(tool(tmp_path, RESULT), "tok").run(engine.base_url, LOAD, 7)
    assert {name: round(found.medians_s[name], 3) for name in METRICS} == {
        "ttft": 0.1, "tpot": 0.02, "itl": 0.02, "e2e": 0.16,
    }  # fmt: skip
    asked = (tmp_path / "asked.txt").read_text()
    assert "--num-prompts 6 --max-concurrency 2" in asked
    assert int(asked.partition("--random-input-len ")[2].split()[0]) < LOAD.prompt_tokens


@pytest.mark.parametrize(
    ("result", "code", "words"), [(RESULT, 3, "no such package"), (RESULT | {"completed": 5}, 0, "5 of 6")]
)
async def test_a_failure_of_the_other_tool_is_an_error_in_words(tmp_path, result, code, words):
    async with running_engines(1) as (engine,):
        with pytest.raises(MeasurementError, match=words):
            await VllmBench(tool(tmp_path, result, code), "tok").run(engine.base_url, LOAD, 7)
