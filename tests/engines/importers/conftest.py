import json
from functools import partial

import pytest

from treeopt.engines.importers import read_acceptance, read_latency
from treeopt.errors import FormatError
from treeopt.records.sampling import Sampling


@pytest.fixture
def write(tmp_path):
    """Return the function that writes bytes, text or JSON to a file."""

    def write(content, name="file"):
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / name

    return write


@pytest.fixture
def read_table(write):
    """Return the function that reads the acceptance of a content."""
    return lambda content, **options: read_acceptance(
        write(content), **{"sampling": Sampling(), "rule": "sequoia"} | options
    )


@pytest.fixture
def read_times(write):
    """Return the function that reads the latencies of a content."""
    return lambda content, **options: read_latency(write(content), **options)


def check_refusal(read, content, field, reason, **options):
    """Check that a content is refused in one short line that names the field and the reason."""
    with pytest.raises(FormatError, match=reason) as caught:
        read(content, **options)
    assert caught.value.field == field, (content, str(caught.value))
    assert len(caught.value.reason) < 400
    assert "\n" not in str(caught.value)


@pytest.fixture
def refuse_table(read_table):
    """Return `check_refusal` of acceptance."""
    return partial(check_refusal, read_table)


@pytest.fixture
def refuse_times(read_times):
    """Return `check_refusal` of latencies."""
    return partial(check_refusal, read_times)
