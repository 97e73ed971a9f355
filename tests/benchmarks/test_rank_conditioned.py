"""The table by the parent's rank that a benchmark puts beside the plain one."""

import numpy as np
import pytest

from tests.scripts import ROOT, script
from treeopt.errors import TreeoptError
from treeopt.records.acceptance_counts import (
    LEAST_COUNT,
    REJECTED,
    AcceptanceCounts,
    rank_conditioned_counts,
    text_sums,
)

rank_conditioned_table = script(ROOT / "benchmarks" / "rank_conditioned.py").rank_conditioned_table


class TestRankConditionedTable:
    def texts(self, generator, p, count):
        """Return counts of texts whose acceptance depends on the parent's rank alone, as `p` (R, B) says."""
        texts = []
        for _ in range(count):
            rank, ranks = 0, []
            for _ in range(60):
                row = p[min(max(rank, 0), len(p) - 1)]
                rank = int(generator.choice([*range(len(row)), REJECTED], p=[*row, 1 - row.sum()]))
                ranks.append(rank)
            accepted_rank = np.array(ranks)
            expected = (accepted_rank[:, None] == np.arange(p.shape[1])).astype(float)
            texts.append(rank_conditioned_counts(expected, accepted_rank, 3, len(p)))
        return texts

    def test_it_finds_rows_that_depend_on_the_rank_of_the_parent(self):
        p = np.array([[0.7, 0.1, 0.1], [0.3, 0.3, 0.1]])
        texts = self.texts(np.random.default_rng(5), p, 150)
        table = rank_conditioned_table(texts)
        assert table.p.shape == (3, 2, 3)
        for depth in (1, 2):
            assert np.all(np.abs(table.p[depth] - p) < 4 * table.standard_error[depth])
        assert 0 < table.standard_error[1:].max() < 0.03
        plain = text_sums([AcceptanceCounts(t.reached.sum(axis=1), t.accepted.sum(axis=1)) for t in texts]).table()
        assert not np.any(np.abs(plain.p[1, 0] - p[:, 0]) < 4 * plain.standard_error[1, 0])  # it knows no ranks

    def test_ranks_that_few_positions_reached_take_the_plain_row(self):
        few = LEAST_COUNT / 2
        reached = np.array([[40.0, 0.0, 0.0], [30.0, few - 1, few], [few - 1, 0.0, 1.0]])
        accepted = np.array([[[20.0], [0.0], [0.0]], [[15.0], [1.0], [8.0]], [[3.0], [0.0], [1.0]]])
        other = accepted + np.array([[[2.0], [0.0], [0.0]], [[1.0], [0.0], [1.0]], [[0.0], [0.0], [0.0]]])
        table = rank_conditioned_table([AcceptanceCounts(reached, accepted), AcceptanceCounts(reached, other)])
        assert table.p.shape == (2 + 1, 3, 1)
        plain = (15 + 1 + 8 + 16 + 1 + 9) / (2 * (30 + 19))
        np.testing.assert_allclose(table.p[0, :, 0], 42 / 80)
        np.testing.assert_allclose(table.p[1, :, 0], [31 / 60, plain, 17 / 20])
        np.testing.assert_allclose(table.p[2, :, 0], 8 / 20)  # together enough, each rank alone not
        assert table.counts.tolist() == (2 * reached).tolist()
        assert table.standard_error[1, 0, 0] == pytest.approx(1 / 60)  # residuals of 0.5 and -0.5
        assert table.standard_error[0, 1, 0] == table.standard_error[0, 0, 0]
        assert table.standard_error[1, 1, 0] not in (table.standard_error[1, 0, 0], 0.0)

    def test_too_few_positions(self):
        with pytest.raises(TreeoptError, match="20 positions in all"):
            rank_conditioned_table([AcceptanceCounts(np.array([[9.0, 0.0]]), np.array([[[2.0], [0.0]]]))] * 2)
