"""Objectives are read strictly and keep their defaults."""

import pytest

from phasewise.core.errors import ConfigError
from phasewise.core.slo import DEFAULT_SLO, Slo, parse_slo


def test_both_bounds_are_read():
    assert parse_slo("ttft=500ms,tpot=50ms") == Slo(ttft_s=0.5, tpot_s=0.05)


def test_a_bound_left_out_keeps_its_default():
    assert parse_slo("ttft=2s") == Slo(ttft_s=2.0, tpot_s=DEFAULT_SLO.tpot_s)


@pytest.mark.parametrize("text", ["ttft=5", "tpot=fast", "itl=5ms", "ttft", "ttft=0s"])
def test_what_cannot_be_read_is_rejected_with_a_hint(text):
    with pytest.raises(ConfigError) as caught:
        parse_slo(text)
    assert caught.value.hint
