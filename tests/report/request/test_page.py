"""One request's life on a page: its steps, its KV cache, its bytes, its fellows, and its equation."""

import re

import pytest

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.timeline import Part, Source
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.diagnosis.analysis.request_life import life_of
from phasewise.report.request.drawing import drawn_steps, kv_cache
from phasewise.report.request.page import ModelShape, request_page
from tests.builders import make_finished, make_span, make_step, make_timeline
from tests.diagnosis.analysis.test_request_life import life

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
KNOWN = ModelShape(architecture_of(LLAMA))
UNKNOWN = ModelShape(None, "the configuration of m is not on this machine")


def page(found=None, model=KNOWN, missing=()):
    return request_page(found or life(), model, missing)


def boxes(text, label):
    """How many boxes each path of a drawing has."""
    drawing = text.partition(f'aria-label="{label}"')[2].partition("</svg>")[0]
    paths = re.findall(r'<path d="([^"]*)" class="boxes"', drawing)
    return [path.count("M") for path in paths]


def test_the_equation_has_the_requests_own_numbers():
    text = re.sub("<[^>]*>", "", page())
    assert "9.30 s = 8.90 s + (5 - 1) x 100 ms" in text


def test_every_decode_step_is_a_box_and_a_column_of_the_kv_cache():
    text = page()
    assert boxes(text, "Its prefill and its 4 decode steps")[:2] == [1, 4]
    grows = "The KV cache grows from 100 to 104 tokens"
    # Written by the prefill, and by each of four decode steps: then, and on top of what was there before.
    assert boxes(text, grows) == [1, 4, 4]


def test_a_column_of_the_kv_cache_ends_where_the_next_one_begins():
    chart = kv_cache(drawn_steps(life()), 100, 20)
    assert chart.series["from the prefix cache: 20 prompt tokens"].points[0][1::2] == (0, 20)
    assert [box[1::2] for box in chart.series["written by this decode step"].points] == [
        (100, 101),
        (101, 102),
        (102, 103),
        (103, 104),
    ]


def test_the_height_of_a_block_is_not_taken_for_a_share():
    text = page()
    assert "the height of a block means nothing" in text
    assert "not their share of the step" not in text  # it was alone in its steps


def test_bytes_are_those_of_the_models_shape():
    text = page()
    model = KNOWN.architecture
    assert model.kv_bytes(1) == 2 * 2 * 2 * 16 * 2
    assert "its KV cache, up to 26.4 kB" in text  # 103 tokens of 256 bytes
    assert "with 2 bytes per KV element" in text


def test_without_the_models_configuration_bytes_are_left_out_and_that_is_said():
    text = page(model=UNKNOWN)
    assert "Left out: the configuration of m is not on this machine" in text
    assert "MB read" not in text


def test_those_who_shared_its_steps_are_named_by_the_id_that_explain_takes():
    text = page()
    assert "<code>other</code>" in text
    assert 'data-copy="phasewise explain other"' in text
    assert "common steps: other in prefill" in text
    assert "6,100" in text


def test_without_a_step_record_chunks_are_drawn_and_that_is_said():
    spans = (make_span(Part.PREFILL, 0.3), make_span(Part.DECODE, 0.2))
    found = life_of(make_timeline((0.5, 0.6, 0.7), engine_spans=spans), {})
    steps = drawn_steps(found)
    assert [(round(it.start_s, 3), it.is_prefill) for it in steps] == [
        (0.2, True),
        (0.5, False),
        (0.6, False),
    ]
    assert [it.cached_tokens for it in steps] == [100, 101, 102]
    text = page(found, missing=["w0 has no step recorder"])
    assert "No step record: w0 has no step recorder." in text
    assert "Without a step record, a block is the time from one chunk to the next." in text
    assert "Not observed: there is no step record of this request." in text


def test_the_page_needs_nothing_else_and_follows_the_readers_colours():
    text = page()
    assert not re.findall(r'(?:src|href)="', text)
    assert "http://" not in text
    assert "https://" not in text
    assert "color-scheme: light dark" in text
    assert text.partition("<main>")[2].lstrip().startswith('<header class="strip measured">')
    assert 'data-copy="phasewise explain r1"' in text


@pytest.mark.parametrize("tokens", [400, 4000])
def test_a_long_answer_stays_under_300_kb_and_says_what_a_column_is(tokens):
    end_s = 0.1 + tokens * 0.01
    own = make_finished(
        prompt_tokens=20_000, output_tokens=tokens + 1, prefill_s=0.1, decode_s=end_s - 0.1, e2e_s=end_s
    )
    steps = [make_step(0, 0.1, prompt=20_000, decode=0)]
    steps += [make_step(seq, 0.1 + seq * 0.01, decode=9) for seq in range(1, tokens)]
    steps.append(make_step(tokens, end_s, decode=9, running=0, finished=[own]))
    times_s = tuple(0.1 + place * 0.01 for place in range(tokens + 1))
    text = page(life(steps, times_s, prompt_tokens=20_000))
    assert len(text.encode()) < 300_000
    each = -(-tokens // 60)
    assert f"each further one {each} decode steps" in text
    assert ("rd is drawn." in text or "th is drawn." in text) == (tokens > 1500)


def test_a_stored_answer_has_no_steps_to_draw():
    wait = make_span(Part.GATEWAY_WAIT, 0.004, Source.GATEWAY_CLOCK)
    stored = make_timeline((0.004,), attempts=(), spans=(wait,), cache=CacheNote(CacheResult.HIT_EXACT))
    text = page(life_of(stored, {}))
    assert "Answered from the cache in 4.00 ms." in text
    assert "The KV cache" not in text
    assert "Who shared its steps" not in text


def test_a_plain_reply_says_why_the_equation_does_not_apply():
    plain = make_timeline((), streamed=False, ended_s=1.0)
    assert "the reply was not streamed, so nobody saw its first token" in page(life_of(plain, {}))


def test_several_choices_are_not_drawn_as_one_stream():
    several = life_of(make_timeline(choices=2), {})
    assert drawn_steps(several) == ()
    assert "Its 2 choices were generated side by side" in page(several)
