"""Values of options: lists with commas, and durations."""

import click
import pytest

from treeopt.cli.options.values import COUNTS, DURATION, TEMPERATURES

VALID = [
    (COUNTS, "256", (256,)),
    (COUNTS, " 1024 , 256 ", (1024, 256)),
    (COUNTS, "01,2", (1, 2)),
    (TEMPERATURES, "0", (0.0,)),
    (TEMPERATURES, "0,0.6,1e0", (0.0, 0.6, 1.0)),
    (DURATION, "90", 90.0),
    (DURATION, "250ms", 0.25),
    (DURATION, "90s", 90.0),
    (DURATION, "3m", 180.0),
    (DURATION, "1.5h", 5400.0),
]
INVALID = {
    COUNTS: ["", "256,", "0", "-1", "1.5", "256,256", "1;2", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 10],
    TEMPERATURES: ["", "warm", "1_0", "\N{ARABIC-INDIC DIGIT ONE}", "-0.1", "nan", "inf", "0,0.0", "0.6,,1", "1e999"],
    DURATION: ["", "0s", "-3s", "3d", "3 m", "m", "1h30m", "1e3", "nan", ".5s", "9" * 400],
}


@pytest.mark.parametrize(("kind", "text", "value"), VALID)
def test_valid_text_is_converted_once(kind, text, value):
    assert kind.convert(text, None, None) == value
    assert kind.convert(value, None, None) == value


@pytest.mark.parametrize("kind", INVALID, ids=lambda kind: kind.name)
def test_invalid_text_is_refused_with_an_example(kind):
    for text in INVALID[kind]:
        with pytest.raises(click.BadParameter, match=r"expected .* such as .* Got"):
            kind.convert(text, None, None)
