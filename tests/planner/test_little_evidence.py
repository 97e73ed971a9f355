"""Plans from little evidence: all of three accepted, none of three, and sequences that all agree."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import call
from tests.support.invented_machines import acceptance_of
from treeopt.planner.dependence import ChainDependence
from treeopt.planner.token_draws import TokenDraws
from treeopt.planner.tokens import token_model
from treeopt.records.acceptance import SequenceSums
from treeopt.records.engine import ChainCounts
from treeopt.trees import chain


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("verify.csv").write_text("tokens,ms\n1,10\n2,10.1\n8,11\n64,14\n")
    Path("draft.csv").write_text("tokens,ms\n1,1\n8,1.1\n")


def solved(content: object) -> dict:
    Path("a.json").write_text(json.dumps(content))
    arguments = ("--latency", "verify.csv", "--draft-latency", "draft.csv", "--acceptance", "a.json", "-o", "p.yaml")
    assert call("profile", *arguments, "--force").exit_code == 0
    result = call("solve", "--profile", "p.yaml", "--json", "-o", "tree.json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def low_over_value(plan: dict) -> float:
    choice = plan["candidates"][plan["choice"]]
    return choice["speedup_interval"][0] / choice["speedup"]


@pytest.mark.usefixtures("files")
def test_three_of_three_is_uncertain():
    plan = solved({"num_drafts": 3, "accepted_per_pos": [3, 3, 3]})
    assert low_over_value(plan) < 0.75
    many = solved({"num_drafts": 3000, "accepted_per_pos": [3000, 3000, 3000]})
    assert low_over_value(many) > 0.98, "as many as these are"


@pytest.mark.usefixtures("files")
def test_none_of_three_is_uncertain():
    few, many = (solved({"num_drafts": n, "accepted_per_pos": [0]})["confidence"]["probability"] for n in (3, 3000))
    assert few < 0.9
    assert many > 0.99


def drawn(accepted, length=3):
    """Return draws of a chain's tokens, from sequences of 50 steps that accept `accepted` tokens in every step."""
    sequences = SequenceSums(
        np.full((len(accepted), length), 50.0) * (np.arange(length) <= np.array(accepted)[:, None]),
        50.0 * (np.arange(length) < np.array(accepted)[:, None])[:, :, None],
    )
    return TokenDraws.of(acceptance_of(sequences))


def test_agreeing_sequences_leave_uncertainty():
    spread = [np.ptp(np.quantile(drawn([3] * count).tokens(chain(3)), [0.025, 0.975])) for count in (2, 8, 64)]
    assert spread[0] > 0.3
    assert spread[0] > spread[1] > spread[2] > 0.001


def test_agreeing_chain_counts_leave_as_much_uncertainty():
    sequences = SequenceSums(np.full((4, 3), 50.0), np.full((4, 3, 1), 50.0))
    acceptance = acceptance_of(sequences)
    counts = ChainCounts(length=3, steps=(50,) * 4, tokens=(200,) * 4)
    dependence = ChainDependence(table=acceptance.table, chains=(counts,))
    with_counts = TokenDraws.of(acceptance, dependence).tokens(chain(3))
    assert np.quantile(with_counts, 0.025) < 3.9
    assert np.quantile(with_counts, 0.025) == pytest.approx(
        np.quantile(TokenDraws.of(acceptance).tokens(chain(3)), 0.025), rel=0.02
    )


def test_counts_of_chains_longer_than_the_table_are_left_out():
    acceptance = acceptance_of(SequenceSums(np.full((4, 3), 50.0), np.full((4, 3, 1), 50.0)))
    counts = tuple(ChainCounts(length=length, steps=(50,) * 4, tokens=(150,) * 4) for length in (3, 5))
    tokens = [
        token_model(replace(acceptance, chains=chains)).tokens_per_step(chain(3)) for chains in (counts[:1], counts)
    ]
    assert tokens == [3.0, 3.0]


def test_draws_stay_within_a_whole_path():
    tokens = drawn([1, 3], length=3).tokens(chain(3))
    assert 1 <= tokens.min() < tokens.max() <= 4
