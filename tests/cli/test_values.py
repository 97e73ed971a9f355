"""Lists with commas and spans of time, as they are typed."""

import click
import pytest

from treeopt.cli.options.values import COUNTS, DURATION, TEMPERATURES


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (COUNTS, "256", (256,)),
        (COUNTS, "256,1024", (256, 1024)),
        (COUNTS, " 1024 , 256 ", (1024, 256)),
        (TEMPERATURES, "0", (0.0,)),
        (TEMPERATURES, "0,0.6,1e0", (0.0, 0.6, 1.0)),
        (DURATION, "90", 90.0),
        (DURATION, "90s", 90.0),
        (DURATION, "3m", 180.0),
        (DURATION, "1.5h", 5400.0),
        (DURATION, " 0.25s ", 0.25),
    ],
)
def test_good_values(kind, text, value):
    assert kind.convert(text, None, None) == value
    assert kind.convert(value, None, None) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(
            (COUNTS, text)
            for text in (
                "",
                ",",
                "256,",
                "0",
                "-1",
                "1.5",
                "256,256",
                "1;2",
                "01",
                "\N{ARABIC-INDIC DIGIT ONE}",
                "9" * 10,
                "1e3",
            )
        ),
        *((TEMPERATURES, text) for text in ("", "warm", "-0.1", "nan", "inf", "0,0", "0,0.0", "0.6,,1", "1e999")),
        *((DURATION, text) for text in ("", "0", "0s", "0.0m", "-3s", "3d", "3 m", "m", "1h30m", "1e3", "nan", ".5s")),
        (DURATION, "9" * 400),
    ],
)
def test_bad_values_are_refused_with_an_example(kind, text):
    with pytest.raises(click.BadParameter, match=r"expected .* such as .* Got"):
        kind.convert(text, None, None)
