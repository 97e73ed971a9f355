"""Texts that differ: how much is measured beside the distribution that they are drawn from, and what one text says of all others."""

import numpy as np
import pytest

from tests.adaptation.test_recalibration import BAD, GOOD, MACHINE
from tests.support.invented_machines import DEPTH, NODES, acceptance, latency, profile
from tests.support.simulated_decoding import SimulatedDecoder
from treeopt.adaptation import Recalibration
from treeopt.adaptation.candidates import Candidates
from treeopt.adaptation.counts import Outcomes
from treeopt.adaptation.estimate import Learnt, log_odds, probability
from treeopt.adaptation.texts import TextOutcomes
from treeopt.adaptation.variation import Variation
from treeopt.planner import plan
from treeopt.records.acceptance import TextSums
from treeopt.records.acceptance_counts import REJECTED
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.trees import chain

KNOWN = np.array([[0.7, 0.4, 0.2]] * 3)


def drawn_texts(generator, texts, tokens, p, sd, alike=1):
    """Return ranks of texts whose log odds are spread, and outcomes come `alike` times each."""
    odds = log_odds(np.array(p)) + sd * generator.standard_normal(texts)
    hits = [np.repeat(generator.random(tokens // alike) < share, alike) for share in probability(odds)]
    return AcceptedRanks([np.where(text, 0, 1) for text in hits])


@pytest.mark.parametrize("sd", [0.3, 0.8, 1.2])
@pytest.mark.parametrize("alike", [1, 4])
def test_variation_is_that_of_the_distribution_which_texts_were_drawn_from(sd, alike):
    generator = np.random.default_rng(0)
    found = Variation.of(drawn_texts(generator, 2000, 192, 0.7, sd, alike))
    assert found.sd == pytest.approx(sd, rel=0.2)
    assert found.alike == pytest.approx(alike, rel=0.15)


@pytest.mark.parametrize("ranks", [None, AcceptedRanks([[0] * 200] * 3), AcceptedRanks([[0, 1, 0]] * 9)])
def test_where_texts_do_not_tell_it_is_what_is_usual(ranks):
    assert Variation.of(ranks) == Variation()


def test_a_text_counts_as_so_many_independent_outcomes_as_its_share_is_spread():
    generator, p, sd = np.random.default_rng(1), 0.6, 0.5
    for tokens in (4, 40, 4000):
        shares = probability(log_odds(np.array(p)) + sd * generator.standard_normal(40_000))
        seen = generator.binomial(tokens, shares) / tokens
        tried = np.zeros((1, 3))
        tried[0] = tokens, 9 * tokens, 9 * tokens  # later ranks, of which nothing is to follow
        counted = Variation(sd, 1.0).independent(Outcomes(tried, p * tried), np.full((1, 3), p))
        variance = seen.var()
        assert counted.tried[0, 0] == pytest.approx(p * (1 - p) / variance, rel=0.1)
        assert counted.accepted[0, 0] / counted.tried[0, 0] == pytest.approx(p)


def outcomes_of(p, tried):
    counted = np.zeros_like(KNOWN)
    counted[:, 0] = tried
    return Outcomes(counted, p * counted)


def decoded(texts, shares, tried):
    """Return what is told at the end of each of some texts."""
    told = []
    for p in shares:
        texts.add(outcomes_of(p, tried), tried, KNOWN)
        told.append(texts.end_stretch(KNOWN))
        texts.end_text()
    return told


def test_one_text_that_is_unlike_moves_all_others_little_and_itself_much():
    texts = TextOutcomes(Variation(1.2, 1.0), *KNOWN.shape)
    texts.add(outcomes_of(0.3, 40), 40, KNOWN)
    assert texts.end_stretch(KNOWN) is None
    own, all_texts = texts.this_text(KNOWN).expected[0, 0], texts.expected(KNOWN)[0, 0]
    assert own < 0.4
    assert all_texts > 0.6
    texts.end_text()
    assert texts.this_text(KNOWN).expected[0, 0] == pytest.approx(all_texts, abs=1e-6)


def test_texts_that_are_all_unlike_are_a_change_for_good():
    texts = TextOutcomes(Variation(1.2, 1.0), *KNOWN.shape)
    told = decoded(texts, [0.1] * 8, 40)
    first = next(number for number, each in enumerate(told) if each is not None)
    assert 1 <= first <= 6
    assert "0.10 of first children in place of 0.70" in told[first]
    assert texts.expected(KNOWN)[0, 0] < 0.2


@pytest.mark.parametrize(("shares", "changes"), [([0.02, 0.7, 0.7, 0.7, 0.02, 0.7, 0.7], 0), ([0.02, 0.02], 1)])
def test_one_text_however_unlike_is_no_change_for_good_and_two_in_a_row_are(shares, changes):
    texts = TextOutcomes(Variation(0.4, 1.0), *KNOWN.shape)
    told = decoded(texts, [*[0.7] * 4, *shares], 200)
    assert len([each for each in told if each is not None]) == changes
    if changes:  # what came before the two is forgotten
        assert texts.expected(KNOWN)[0, 0] < 0.1


def test_what_is_to_be_forgotten_leaves_what_was_measured_and_little_certainty():
    texts = TextOutcomes(Variation(0.4, 1.0), *KNOWN.shape)
    decoded(texts, [0.7] * 5, 200)
    before = texts.expected(KNOWN)[0, 0]
    texts.forget()
    texts.add(outcomes_of(0.4, 200), 200, KNOWN)
    texts.end_stretch(KNOWN)
    assert before == pytest.approx(0.7, abs=0.02)
    assert texts.expected(KNOWN)[0, 0] < 0.5


def test_what_was_forgotten_is_not_expected_of_the_next_text():
    texts = TextOutcomes(Variation(0.4, 1.0), *KNOWN.shape)
    decoded(texts, [0.9] * 5, 200)
    assert texts.expected(KNOWN)[0, 0] > 0.75
    texts.forget()
    assert np.allclose(texts.expected(KNOWN), KNOWN)


def test_texts_drawn_around_all_others_are_hardly_ever_a_change_for_good():
    generator, variation = np.random.default_rng(2), Variation(0.9, 1.0)
    changes = 0
    for _ in range(40):
        texts = TextOutcomes(variation, *KNOWN.shape)
        told = decoded(texts, probability(log_odds(0.7) + variation.sd * generator.standard_normal(20)), 40)
        changes += len([each for each in told if each is not None])
    assert changes < 20  # of 800 texts


def test_another_passage_begins_anew():
    texts = TextOutcomes(Variation(0.7, 1.0), *KNOWN.shape)
    texts.add(outcomes_of(0.7, 60), 60, KNOWN)
    texts.add(outcomes_of(0.5, 8), 8, KNOWN)
    assert texts.of_text.tried[0, 0] > 40
    texts.add(outcomes_of(0.0, 16), 16, KNOWN)
    assert texts.of_text.tried[0, 0] == 16
    assert texts.odd(outcomes_of(0.0, 16), KNOWN) > 5.0


class TextsDecoder(SimulatedDecoder):
    """Texts of so many tokens, each with a table of its own."""

    def decode_texts(self, observer, tables, tokens):
        start_s = self.now_s
        for table in tables:
            self.table, self.number = table, self.number + 1
            end = self.tokens + tokens
            while self.tokens < end:
                self.decode(observer, 1)
        return self.now_s - start_s


def unlike(generator, count, rows):
    """Return tables of texts whose first ranks' log odds are spread by 1.3."""
    odds = log_odds(np.array(rows[0][0])) + 1.3 * generator.standard_normal(count)
    return [[[float(p), *((1 - p) * np.array([0.3, 0.1, 0.05])).tolist()]] * DEPTH for p in probability(odds)]


def measured(generator, rows):
    """Return a profile of texts that are spread so, with their ranks."""
    texts = []
    for table in unlike(generator, 40, rows):
        ranks = np.searchsorted(np.cumsum(table[0]), generator.random(96), side="right")
        texts.append(np.where(ranks < 4, ranks, REJECTED))
    tables = [AcceptedRanks([text]).table(DEPTH, 4).p for text in texts]
    sums = TextSums(np.full((len(tables), DEPTH), 96.0), 96 * np.array(tables))
    told = acceptance(sums.table().p, texts=sums, accepted_ranks=AcceptedRanks(texts), temperature=0.0)
    return profile([latency(MACHINE)], [told])


def begun(told, table, seed, *, adapted=True):
    """Return a decoder with a profile's plan, and its re-calibration."""
    decoder = TextsDecoder(plan(told, NODES).choice.tree, table, MACHINE, max_nodes=NODES, seed=seed)
    recalibration = Recalibration(told, now_s=lambda: 0.0) if adapted else None
    if recalibration is not None:
        recalibration.attach(decoder)
    return decoder, recalibration


@pytest.mark.parametrize(("table", "seed"), [(GOOD, 0), (GOOD, 1), (BAD, 0), (BAD, 1)])
def test_where_texts_differ_and_nothing_else_changes_nothing_is_lost(table, seed):
    generator = np.random.default_rng(seed)
    told, decoded = measured(generator, table), unlike(generator, 30, table)
    adapted, fixed = (begun(told, table, seed, adapted=each) for each in (True, False))
    adapted_s, fixed_s = (decoder.decode_texts(each, decoded, 150) for decoder, each in (adapted, fixed))
    assert adapted_s < 1.005 * fixed_s, adapted[1].changes


def test_a_text_that_is_unlike_is_drafted_in_a_way_of_its_own_and_the_next_one_soon_in_the_usual_one():
    decoder, recalibration = begun(measured(np.random.default_rng(0), GOOD), GOOD, 3)
    usual = decoder.tree
    decoder.decode_texts(recalibration, [GOOD] * 3, 150)
    assert decoder.tree == usual
    decoder.decode_texts(recalibration, [BAD], 150)
    assert decoder.tree.max_depth < usual.max_depth
    decoder.decode_texts(recalibration, [GOOD], 150)
    assert decoder.tree == usual, recalibration.changes
    assert "this text: " in recalibration.changes[0].why
    assert recalibration.changes[-1].after == usual
    assert all(np.isfinite(each.noise) for each in recalibration.changes)  # it is written as JSON


def test_trees_that_cannot_gain_are_not_replayed_and_what_is_chosen_is_as_if_they_were(monkeypatch):
    told = measured(np.random.default_rng(0), GOOD)
    tables = [*unlike(np.random.default_rng(5), 16, GOOD), *[BAD] * 4]

    def chosen():
        decoder, recalibration = begun(told, GOOD, 3)
        replayed = len(recalibration._candidates._factors)
        decoder.decode_texts(recalibration, tables, 150)
        return decoder.trees, len(recalibration._candidates._factors) - replayed

    trees, replayed = chosen()
    monkeypatch.setattr(Candidates, "_most_replayed", Candidates._replayed)
    of_all, all_replayed = chosen()
    assert len(trees) > 2
    assert trees == of_all
    assert replayed < all_replayed


def test_a_tree_that_is_returned_as_faster_was_replayed():
    _, recalibration = begun(measured(np.random.default_rng(1), GOOD), GOOD, 3)
    candidates, known = recalibration._candidates, recalibration._ways.known
    before = set(candidates._factors)
    other = np.where(np.arange(known.shape[1]) == 0, -1.5, 1.0)  # first children worse, later ones better
    learnt = Learnt(Outcomes.none(*known.shape), known, before=other)
    _, faster = candidates.faster(learnt, recalibration._times, chain(0), None, lambda *_: True)
    ways = [each.way for each in faster]
    assert set(ways) - before
    assert set(ways) <= set(candidates._factors)


def test_after_a_change_that_all_texts_ask_for_this_text_is_compared_with_what_is_known_of_it_then():
    decoder, recalibration = begun(measured(np.random.default_rng(0), GOOD), GOOD, 3)
    for _ in range(20):
        decoder.decode_texts(recalibration, [BAD], 150)
        before = len(recalibration.changes)
        decoder.decode_texts(recalibration, [BAD], 1)  # the text before it ends now
        if len(recalibration.changes) > before and not recalibration.changes[-1].why.startswith("this text"):
            break
    else:
        pytest.fail("nothing changed for good")
    known = recalibration._texts.this_text(recalibration._ways.known).expected
    assert np.allclose(recalibration._expected_of_text, known)
