"""Plans for short outputs: the acceptance of beginnings, counted in plain loops, and plans that follow it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.planner.test_dependence import measured
from tests.support.invented_machines import latency, profile, seconds
from treeopt.errors import InfeasibleError
from treeopt.planner import PlanRequest, for_new_tokens
from treeopt.planner.subsets import check_new_tokens
from treeopt.records.acceptance import SequenceSums
from treeopt.records.acceptance_counts import REJECTED
from treeopt.records.sampling import Sampling

SHORT, DEPTH, RANKS = 40, 6, 3
MACHINE = seconds(lambda n: 1 + 0.1 * n, lambda w: 0.1 + 0.01 * w, 0.05, nodes=16)


def easier_later(sequences: int = 30, positions: int = 400, seed: int = 0) -> list[np.ndarray]:
    """Return ranks of sequences whose first tokens are harder than all others."""
    generator = np.random.default_rng(seed)
    hard, easy = ([0.5, 0.2, 0.1, 0.2], [0.95, 0.02, 0.01, 0.02])
    of = [
        [generator.choice([0, 1, 2, REJECTED], size=count, p=p) for count, p in ((SHORT, hard), (positions, easy))]
        for _ in range(sequences)
    ]
    return [np.concatenate(parts) for parts in of]


TEXTS = easier_later()


def profiled(acceptance):
    return profile([latency(MACHINE)], [acceptance])


def whole(**changes):
    return profiled(replace(measured(TEXTS), **changes))


def conditional(sequences: list[np.ndarray], depth: int, rank: int) -> float:
    """Return how often a rank is accepted where all before it on the path accepted some child, position by position."""
    reached = accepted = 0
    for ranks in sequences:
        for root in range(len(ranks) - depth + 1):
            if all(ranks[root + item] != REJECTED for item in range(depth - 1)):
                reached += 1
                accepted += ranks[root + depth - 1] == rank
    return accepted / reached


class TestAcceptance:
    def test_acceptance_is_counted_in_the_beginnings(self):
        (result,) = for_new_tokens(whole(), SHORT).acceptances
        cut = [item[:SHORT] for item in TEXTS]
        for depth in (1, 2, DEPTH):
            for rank in range(RANKS):
                assert result.table.p[depth - 1, rank] == pytest.approx(conditional(cut, depth, rank)), (depth, rank)
        assert (result.prompts, result.positions) == (len(TEXTS), SHORT * len(TEXTS))
        assert [item.tolist() for item in result.accepted_ranks.ranks] == [item.tolist() for item in cut]

    def test_expected_acceptance_is_scaled_by_the_counted_ratio(self):
        """Above temperature 0, and for `traversal`, the table is another than that of its accepted ranks."""
        counted = measured(TEXTS)
        sums = SequenceSums(counted.sequences.reached, counted.sequences.accepted * [0.99, 0.9, 0.5])
        before = whole(rule="traversal", sampling=Sampling(1.0), table=sums.table(), sequences=sums)
        (result,) = for_new_tokens(before, SHORT).acceptances
        (plainly,) = for_new_tokens(whole(), SHORT).acceptances
        np.testing.assert_allclose(result.table.p, plainly.table.p * [0.99, 0.9, 0.5])
        assert (result.rule, result.temperature) == ("traversal", 1.0)

    def test_never_accepted_rank_keeps_a_probability(self):
        sequences = [np.where(item == 2, 1, item) for item in TEXTS]
        counted = measured(sequences)
        sums = SequenceSums(counted.sequences.reached, counted.sequences.accepted + np.array([0.0, 0.0, 0.01]))
        (result,) = for_new_tokens(profiled(replace(counted, table=sums.table(), sequences=sums)), SHORT).acceptances
        assert np.all(result.table.p.sum(axis=1) <= 1)
        assert np.all(result.table.p[:, :2] > 0)

    def test_rarely_reached_depths_stay_as_measured(self):
        before = measured(TEXTS)
        (result,) = for_new_tokens(profiled(before), 2).acceptances
        assert result.table.p.shape == before.table.p.shape
        np.testing.assert_allclose(result.table.p[2:], before.table.p[2:])
        cut = [item[:2] for item in TEXTS]
        assert result.table.p[0, 0] == pytest.approx(conditional(cut, 1, 0))
        assert result.table.p[1, 0] == pytest.approx(conditional(cut, 2, 0))

    def test_shorter_sequences_stay_whole(self):
        sequences = [item[: 10 + 20 * number] for number, item in enumerate(TEXTS[:6])]
        (result,) = for_new_tokens(profiled(measured(sequences)), SHORT).acceptances
        assert [len(item) for item in result.accepted_ranks.ranks] == [10, 30, 40, 40, 40, 40]

    @pytest.mark.parametrize("changes", [{"accepted_ranks": None}, {"context_tokens": 128}], ids=str)
    def test_acceptance_without_ranks_or_by_context_stays(self, changes):
        before = whole(**changes)
        assert for_new_tokens(before, SHORT) == before

    def test_too_few_positions_stay_whole(self):
        before = profiled(measured(TEXTS[:3]))
        assert for_new_tokens(before, 6) == before
        assert for_new_tokens(before, 7) != before


class TestCheck:
    def test_longer_sequences_give_a_warning(self):
        assert check_new_tokens(whole(), PlanRequest(), 440) is None
        warning = check_new_tokens(whole(), PlanRequest(), 441)
        assert "up to token 440" in warning.problem
        assert warning.action == f"Profile with --positions {441 * len(TEXTS)}."

    @pytest.mark.parametrize(
        ("changes", "new_tokens", "reason"),
        [
            (
                {"accepted_ranks": None},
                SHORT,
                r"sequoia at temperature 0 was measured for whole sequences only\. Leave it out",
            ),
            ({"context_tokens": 128}, SHORT, r"measured by context length.*--context-tokens"),
            ({"accepted_ranks": measured(TEXTS).accepted_ranks.first(0)}, SHORT, r"20 positions or more"),
        ],
        ids=["no ranks", "by context", "too few"],
    )
    def test_acceptance_without_ranks_or_by_context_raises(self, changes, new_tokens, reason):
        with pytest.raises(InfeasibleError, match=reason):
            check_new_tokens(whole(**changes), PlanRequest(), new_tokens)
