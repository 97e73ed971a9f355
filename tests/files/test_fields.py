"""Errors name the wrong field and element, and the remedy."""

import math

import pytest

from treeopt.errors import FormatError
from treeopt.files.fields import Fields, check_format


def refusal(method, content):
    with pytest.raises(FormatError) as caught:
        getattr(Fields("f.json", content), method)("values")
    return str(caught.value)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, "0.5", None, True, [1.0], 10**400])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wrong_number_in_a_list_is_named(wrong, place):
    values = [0.8, 0.7, 0.5]
    assert Fields("f.json", {"values": values}).numbers("values") == values
    values[place] = wrong
    assert "f.json: values: expected a list of finite numbers. Got" in refusal("numbers", {"values": values})
    assert f" at [{place}]: replace" in refusal("numbers", {"values": values})


def test_the_first_wrong_number_of_nested_lists_is_named():
    assert "values[1]: " in (message := refusal("nested_numbers", {"values": [[1.0], [2.0, math.nan, math.nan]]}))
    assert "Got nan at [1]" in message


@pytest.mark.parametrize("values", [[1.0], [[[1.0]]]])
def test_nested_lists_of_another_depth_are_refused(values):
    assert Fields("f.json", {"values": values}).nested_numbers("values") == values
    with pytest.raises(FormatError, match=r"^f.json: values(\[0\])?: expected a list of (lists|finite numbers)"):
        Fields("f.json", {"values": values}).nested_numbers("values", depth=2)


@pytest.mark.parametrize("wrong", [1.0, True, 2**31, "1"])
def test_a_wrong_integer_in_a_list_is_named(wrong):
    assert f"expected a list of whole numbers. Got {wrong!r} at [1]" in refusal("integers", {"values": [1, wrong, 2]})


@pytest.mark.parametrize("method", ["numbers", "integers", "text", "mapping"])
def test_a_missing_field_names_the_remedy(method):
    assert refusal(method, {}) == "f.json: values: is missing. Add it, or give a complete file of this kind."


def test_a_long_format_is_abbreviated():
    with pytest.raises(FormatError, match="another kind") as caught:
        check_format(Fields("f.json", {"format": 3000 * "9", "version": 1}), "treeopt-profile", 1)
    assert len(str(caught.value)) < 200
