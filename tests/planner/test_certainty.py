"""How certain a plan is, and which sizes decide: those of the choice and of trees that may be as fast."""

import numpy as np
import pytest

from tests.cli.invented import TABLE, invented
from treeopt.planner import plan
from treeopt.planner.certainty import certainty
from treeopt.records.acceptance import AcceptanceTable


def certainty_of(profile):
    (latency,) = profile.latencies
    temperature = profile.acceptance().temperature
    return certainty(
        profile, temperature=temperature, context_tokens=latency.context_tokens, batch_size=latency.batch_size
    )


@pytest.mark.parametrize(
    ("profile", "weakest"),
    [
        (invented(verify_noise=0.3), "verify"),
        (invented(tables=[AcceptanceTable(TABLE.p, standard_error=np.full((4, 3), 0.1))]), "acceptance"),
    ],
    ids=["verify", "acceptance"],
)
def test_certainty_is_that_of_the_plan_and_names_the_weakest_measurement(profile, weakest):
    result = certainty_of(profile)
    planned = plan(profile, max_nodes=profile.latencies[0].verify.max_tokens)
    assert result.confidence == planned.confidence
    assert result.confidence.probability < 0.9
    assert result.confidence.weakest == weakest
    assert planned.choice.verify_tokens in result.verify_tokens
    assert set(planned.choice.tree.draft_widths.tolist()) <= result.draft_widths


def test_fewer_sizes_matter_with_less_noise():
    unsure, sure = certainty_of(invented(verify_noise=0.3)), certainty_of(invented(verify_noise=0.01))
    assert sure.confidence.probability > unsure.confidence.probability
    assert len(sure.verify_tokens) < len(unsure.verify_tokens)
