"""Tokens of simulated steps, compared with the planner, a replay, and the measurements."""

from dataclasses import replace

import numpy as np
import pytest

from tests.simulation.machines import P
from tests.support.invented_machines import acceptance
from treeopt.errors import InfeasibleError
from treeopt.planner.tokens import TokenModel, TokenModels, token_model
from treeopt.records.acceptance import AcceptanceTable, SequenceSums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.simulation.step_tokens import DrawnTokens, ReplayedTokens, StepTokens, step_tokens
from treeopt.trees import TokenTree, chain

TREE = TokenTree([-1, 0, 0, 1, 1, 3])


def mean_tokens(source: DrawnTokens | ReplayedTokens, tree: TokenTree, steps: int = 20_000) -> float:
    generator = np.random.default_rng(1)
    position, total = source.start(generator), 0
    for _ in range(steps):
        tokens, position = source.step(tree, position, generator)
        total += tokens
    return total / steps


class TestDrawn:
    @pytest.mark.parametrize("tree", [TREE, chain(3), chain(0)])
    def test_their_mean_equals_the_planners_expectation(self, tree: TokenTree) -> None:
        model = token_model(acceptance(P))
        assert mean_tokens(DrawnTokens(model), tree) == pytest.approx(model.tokens_per_step(tree), rel=0.01)


class TestReplayed:
    def test_replay_follows_measured_sequences(self) -> None:
        rng = np.random.default_rng(4)
        ranks = AcceptedRanks([rng.choice([-1, 0, 0, 0, 1], 400) for _ in range(6)])
        tokens, steps = ranks.replay(TREE)
        assert mean_tokens(ReplayedTokens(ranks), TREE) == pytest.approx(tokens.sum() / steps.sum(), rel=0.01)

    def test_a_sequence_stays_as_hard_as_it_was_measured(self) -> None:
        easy, hard = np.zeros(200, np.int64), np.full(200, -1)
        source, generator = ReplayedTokens(AcceptedRanks([easy, hard])), np.random.default_rng(0)
        sequences = set()
        for _ in range(20):
            position = source.start(generator)
            steps = []
            for _ in range(10):
                tokens, position = source.step(chain(3), position, generator)
                steps.append(tokens)
            sequences.add(tuple(steps))
        assert sequences == {(4,) * 10, (1,) * 10}

    @pytest.mark.parametrize("lengths", [[9, 4] + [6] * 30, [9] + [5] * 2000])
    def test_a_tree_may_be_deeper_than_most_measured_sequences_are_long(self, lengths: list[int]) -> None:
        source = ReplayedTokens(AcceptedRanks([np.zeros(length, np.int64) for length in lengths]))
        generator = np.random.default_rng(0)
        position = source.start(generator)
        for _ in range(20):
            tokens, position = source.step(chain(7), position, generator)
            assert tokens == 8

    def test_a_tree_deeper_than_every_measured_sequence_is_long_is_refused(self) -> None:
        source, generator = ReplayedTokens(AcceptedRanks([np.zeros(5, np.int64)] * 3)), np.random.default_rng(0)
        assert source.step(chain(4), source.start(generator), generator)[0] == 5
        with pytest.raises(InfeasibleError, match=r"depth: expected at most 4, .* Got 5"):
            source.step(chain(5), source.start(generator), generator)

    def test_ranks_are_replayed_if_the_planner_weights_them_for_every_tree(self) -> None:
        ranks = AcceptedRanks([np.zeros(300, np.int64)] * 2)
        sums = SequenceSums(np.full((2, 4), 300.0), 300 * np.array([P, P]))
        known = TokenModels((token_model(acceptance(P, sequences=sums, accepted_ranks=ranks)),))
        assert isinstance(step_tokens(known, [chain(3)]).sources[0], ReplayedTokens)
        short = AcceptedRanks([np.zeros(20, np.int64)] * 2)
        few = TokenModels((token_model(acceptance(P, sequences=sums, accepted_ranks=short)),))
        for models in (few, TokenModels((token_model(acceptance(P)),))):
            assert isinstance(step_tokens(models, [chain(3)]).sources[0], DrawnTokens)


class TestContexts:
    """Steps take the two measured context lengths around a sequence's own, by their weights in the interpolation."""

    @pytest.fixture
    def models(self) -> tuple[TokenModel, ...]:
        always, never = AcceptanceTable([[1.0]] * 3), AcceptanceTable([[0.0]] * 3)
        return tuple(
            token_model(replace(acceptance([[0.5]] * 3), table=table, context_tokens=at))
            for at, table in ((100, always), (300, never))
        )

    def test_steps_are_those_of_the_context(self, models: tuple[TokenModel, ...]) -> None:
        tokens, generator = step_tokens(TokenModels(models), [chain(3)]), np.random.default_rng(1)
        for context, share in ((50, 1.0), (100, 1.0), (150, 0.75), (200, 0.5), (300, 0.0), (900, 0.0)):
            positions = tokens.start(generator)
            steps = [tokens.step(chain(3), positions, generator, context) for _ in range(2000)]
            assert set(steps) <= {1, 4}
            assert np.mean(steps) == pytest.approx(1 + 3 * share, abs=0.15)

    def test_a_sequence_is_as_hard_at_every_context_length(self) -> None:
        short = [np.full(200, -1), np.zeros(200, np.int64), np.zeros(50, np.int64), np.zeros(200, np.int64)]
        long = [np.full(400, -1), np.zeros(400, np.int64), np.zeros(400, np.int64), np.zeros(40, np.int64)]
        source = StepTokens((64, 192), (ReplayedTokens(AcceptedRanks(short)), ReplayedTokens(AcceptedRanks(long))))
        generator = np.random.default_rng(0)
        started = [source.start(generator) for _ in range(100)]
        # the last measured sequence is too short at the larger length
        assert {(one.sequence, other.sequence) for one, other in started} == {(0, 0), (1, 1), (3, 0), (3, 1), (3, 2)}
        hard = next(positions for positions in started if positions[0].sequence == 0)
        assert [source.step(chain(3), hard, generator, 128) for _ in range(12)] == [1] * 12
