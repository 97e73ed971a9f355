"""What a draft's probabilities are worth, and which threshold is fastest: against texts of known distributions."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.cli.invented import invented
from tests.support.invented_drafts import InventedDraft, beams, invented_text, recorded
from treeopt.planner import step_model
from treeopt.planner.calibration import BIN, Calibration, calibration, least_log_prob, specexec_settings
from treeopt.planner.costs import StepCosts
from treeopt.planner.curves import Curve
from treeopt.records.draft_record import DraftRecord

TOP_K, DEPTH, ROOTS = 3, 4, 3000
EXPANDED = (TOP_K**DEPTH - 1) // (TOP_K - 1)
BUDGET, BATCH = 100, 10


@cache
def distorted(sharpness: float) -> DraftRecord:
    """Return the record of a draft whose log-probability of any path is the true one times a sharpness.

    Below 1 the draft is too sure of itself, above it not sure enough.  Every path down to DEPTH is recorded.
    """
    rng = np.random.default_rng(3)
    distributions = -np.sort(-rng.dirichlet(np.full(TOP_K + 1, 0.5), (ROOTS, EXPANDED)) - 1e-6, axis=-1)
    distributions /= distributions.sum(axis=-1, keepdims=True)
    outcome = np.full((ROOTS, DEPTH), -1, np.int32)
    for root in range(ROOTS):
        node = 0
        for depth in range(DEPTH):
            rank = int(rng.choice(TOP_K + 1, p=distributions[root, node]))
            if rank == TOP_K:
                break
            outcome[root, depth] = rank
            node = node * TOP_K + 1 + rank
    node = np.arange(EXPANDED)
    return DraftRecord(
        pair="big + small",
        created="2026-11-21T00:00:00Z",
        temperature=1.0,
        top_p=1.0,
        target_top_k=0,
        depth=DEPTH,
        text_starts=np.array([0, ROOTS]),
        node_starts=np.arange(ROOTS + 1) * EXPANDED,
        parent=np.tile(np.where(node == 0, -1, (node - 1) // TOP_K), ROOTS).astype(np.int32),
        rank=np.tile((node - 1) % TOP_K * (node > 0), ROOTS).astype(np.int32),
        log_probs=(sharpness * np.log(distributions[..., :TOP_K])).reshape(-1, TOP_K).astype(np.float32),
        outcome=outcome,
    )


def costs_of(node_s: float) -> StepCosts:
    """Return the costs of a machine on which a plain step takes 10 seconds, and each further node so many."""
    nodes, width = np.arange(BUDGET + 1), np.arange(BATCH + 1)
    return StepCosts(
        verify=Curve.of(np.where(nodes > 0, 10 + node_s * (nodes - 1), 0.0)),
        draft=Curve.of(np.where(width > 0, 0.5 + 0.01 * width, 0.0)),
        overhead_s=np.array(0.2),
    )


@cache
def scored_paths(sharpness: float) -> list[tuple[int, float, bool]]:
    """Return root, score and whether the text went along it, for every path of a record, one by one."""
    record, found = distorted(sharpness), []
    for root in range(ROOTS):
        first, scores = root * EXPANDED, {(): 0.0}
        for path in scores_in_order():
            node = 0
            for rank in path[:-1]:
                node = node * TOP_K + 1 + rank
            scores[path] = scores[path[:-1]] + float(record.log_probs[first + node, path[-1]])
            found.append((root, scores[path], path == tuple(record.outcome[root, : len(path)].tolist())))
    return found


@cache
def scores_in_order() -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for path in paths:
        if len(path) < DEPTH:
            paths.extend((*path, rank) for rank in range(TOP_K))
    return paths[1:]


@cache
def scores_and_taken(sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of every path, and whether the text went along it."""
    _, scores, taken = zip(*scored_paths(sharpness), strict=True)
    return np.array(scores), np.array(taken)


def tokens_per_s(sharpness: float, node_s: float, least: float) -> float:
    """Return the tokens of all steps over their seconds, with trees of all paths of at least a log-probability."""
    scores, taken = scores_and_taken(sharpness)
    kept = taken[scores >= least]
    step_s = 10 + 0.51 + 0.2
    return float((ROOTS + kept.sum()) / (ROOTS * step_s + len(kept) * (node_s + 0.6 / 10)))


def uncalibrated(calibrated: Calibration) -> Calibration:
    return replace(calibrated, probabilities=np.exp(calibrated.log_probs))


class TestCalibration:
    @pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
    def test_a_known_distortion_is_recovered(self, sharpness):
        found = calibration(distorted(sharpness))
        log_probs = np.linspace(-3.5, -0.2, 20) * sharpness
        np.testing.assert_allclose(found.probability(log_probs), np.exp(log_probs / sharpness), atol=0.03)

    def test_the_draft_s_own_probability_is_not_what_is_found(self):
        found = calibration(distorted(0.5))
        assert abs(found.probability(-0.5) - math.exp(-0.5)) > 0.2

    @pytest.mark.parametrize("seed", range(3))
    def test_every_path_counts_once_and_every_text_along_it(self, seed):
        draft, roots, depth, top_k = InventedDraft(seed), 12, 3, 3
        texts = [invented_text(draft, number, roots + depth + 1) for number in range(3)]
        found = calibration(recorded(draft, texts, roots, top_k, depth))
        paths, taken = Counter(), 0
        for text in texts:
            for root in range(1, roots + 1):
                before, after = text[:root], text[root : root + depth]
                fed = {
                    path for k in range(1, top_k + 1) for level in beams(draft, before, k, depth)[0] for path in level
                }
                for path in fed:
                    for token in draft.ranked(before + path)[:top_k]:
                        child = (*path, token)
                        score = sum(
                            float(draft.log_probs(before + child[:done])[token]) for done, token in enumerate(child)
                        )
                        paths[math.ceil(score / BIN)] += 1
                        taken += after[: len(child)] == child
        assert (found.nodes * roots * 3).round(6).tolist() == [paths[place] for place in sorted(paths)]
        assert (found.nodes * found.probabilities).sum() * roots * 3 == pytest.approx(taken)
        assert taken > 0

    @pytest.mark.parametrize("sharpness", [0.5, 2.0])
    def test_probability_never_falls(self, sharpness):
        found = calibration(distorted(sharpness))
        assert np.all(np.diff(found.probability(np.linspace(-40, 0, 500))) >= 0)
        assert found.probability(-1e9) == found.probabilities[0]

    def test_impossible_paths_are_left_out(self):
        record = distorted(1.0)
        log_probs = record.log_probs.copy()
        log_probs[:, -1] = -np.inf
        found = calibration(replace(record, log_probs=log_probs))
        assert np.isfinite(found.log_probs).all()

    def test_log_probs_are_found_by_their_probability(self):
        found = Calibration(np.array([-4.0, -3.0, -1.0]), np.array([0.1, 0.1, 0.5]), np.ones(3))
        assert found.log_prob_above(0.3) == -2.0
        assert found.log_prob_above(0.1) == -3.0
        assert found.log_prob_above(0.5) == 0.0
        assert found.log_prob_above(0.05) == -4.0  # of less nothing is known


class TestThreshold:
    @pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
    @pytest.mark.parametrize("node_s", [0.1, 0.5, 2.0])
    def test_no_other_threshold_is_faster(self, sharpness, node_s):
        least = least_log_prob(calibration(distorted(sharpness)), costs_of(node_s), budget=BUDGET, batch=BATCH)
        rates = [tokens_per_s(sharpness, node_s, other) for other in np.linspace(-6, 0, 49) * sharpness]
        assert tokens_per_s(sharpness, node_s, least) > 0.995 * max(rates)
        assert tokens_per_s(sharpness, node_s, least) > 1.02 * min(rates)

    @pytest.mark.parametrize("sharpness", [0.5, 2.0])
    def test_a_rule_that_takes_the_draft_at_its_word_is_slower(self, sharpness):
        found, costs = calibration(distorted(sharpness)), costs_of(0.5)
        rates = [
            tokens_per_s(sharpness, 0.5, least_log_prob(each, costs, budget=BUDGET, batch=BATCH))
            for each in (found, uncalibrated(found))
        ]
        assert rates[1] < 0.99 * rates[0]

    def test_the_threshold_by_hand(self):
        costs = StepCosts(
            verify=Curve.of([0.0, 10.0, 13.0, 16.0]),
            draft=Curve.of([0.0, 1.0, 1.5]),
            overhead_s=np.array(0.5),
        )
        found = Calibration(np.array([-3.0, -2.0, -1.0]), np.array([0.1, 0.4, 0.7]), np.ones(3))
        # a node costs 6 / 2 + 1.5 / 2 seconds; a token (11.5 + 3.75) / 1.7, by the root and the likeliest path
        assert least_log_prob(found, costs, budget=3, batch=2) == pytest.approx(
            -2 + (3.75 / (15.25 / 1.7) - 0.4) / (0.7 - 0.4)
        )

    def test_dearer_nodes_have_to_be_likelier(self):
        found = calibration(distorted(1.0))
        least = [least_log_prob(found, costs_of(node_s), budget=BUDGET, batch=BATCH) for node_s in (0.1, 0.5, 2.0, 50)]
        assert sorted(set(least)) == least
        assert least[-1] == 0.0

    def test_the_last_node_taken_pays_and_the_next_does_not(self):
        node_s = 0.5
        found = calibration(distorted(1.0))
        least = least_log_prob(found, costs_of(node_s), budget=BUDGET, batch=BATCH)
        token_s = 1 / tokens_per_s(1.0, node_s, least)
        near = [(score, taken) for _, score, taken in scored_paths(1.0)]
        above = np.mean([taken for score, taken in near if least <= score < least + 0.5])
        below = np.mean([taken for score, taken in near if least - 0.5 <= score < least])
        assert below * token_s < node_s + 0.06 < above * token_s


class TestSettings:
    @staticmethod
    def settings(verify, draft=lambda *_: 1e-3):
        model = step_model(invented(verify=verify, draft=draft))
        return specexec_settings(model, calibration(distorted(1.0)))

    def test_budgets_end_where_verification_bends(self):
        found = self.settings(lambda n, *_: 1e-2 * max(1, n / 8))
        assert {setting.budget for setting in found} == {2, 4, 8}

    def test_budgets_reach_what_was_measured_where_it_is_flat(self):
        found = self.settings(lambda *_: 1e-2)
        assert {setting.budget for setting in found} == {2, 4, 8, 16, 32}
        assert len(set(found)) == len(found)

    def test_where_nothing_is_flat_one_small_budget_is_left(self):
        assert {setting.budget for setting in self.settings(lambda n, *_: 1e-2 * n)} == {2}

    def test_one_slow_size_does_not_end_the_budgets(self):
        found = self.settings(lambda n, *_: 1e-2 if n == 1 else 2e-2)
        assert max(setting.budget for setting in found) == 32

    def test_a_draft_pass_is_as_wide_as_is_flat(self):
        found = self.settings(lambda *_: 1e-2, lambda n, *_: 1e-3 * max(1, n / 4))
        assert {setting.batch for setting in found if setting.budget > 4} == {4}

    def test_the_threshold_is_that_of_the_rule(self):
        model = step_model(invented())
        calibrated = calibration(distorted(2.0))
        for setting in specexec_settings(model, calibrated):
            least = least_log_prob(calibrated, model.costs, budget=setting.budget, batch=setting.batch)
            assert setting.least_log_prob == least < 0
