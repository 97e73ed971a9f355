"""How much is timed under a time budget: what it takes, and what more of it buys."""

from dataclasses import replace

import numpy as np
import pytest

from tests.profiler.pretended import NO_WARM_UP, faults, machine_and_pair
from treeopt.errors import InvalidValueError
from treeopt.profiler import Journal, Measurement, Settings
from treeopt.profiler.clock import WarmUp
from treeopt.profiler.latency.condition import WIDTHS_BEFORE
from treeopt.profiler.latency.effort import ROUNDS_PER_BLOCK, FixedEffort, TimeBudget
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.passes import PROBE_TREES
from treeopt.profiler.latency.rounds import first_points
from treeopt.profiler.profile_run import LEAST_POSITIONS, POSITIONS

CONTEXTS, MOST = (30, 400), 160
SETTINGS = Settings(context_tokens=CONTEXTS, max_tokens=MOST)
PROMPTS = [[1, 2, 3], [4, 5], [6]]


def two_steps_s(tokens, context, batch):
    return 1e-3 + 1e-6 * context * batch + 1e-6 * tokens + 1e-3 * (tokens > 70) + 1e-3 * (tokens > 132)


def straight_s(width, context, batch):
    return 2e-4 + 1e-7 * context * batch + 1e-6 * width


def measured(make_model, budget_s, *, journal=None, contexts=CONTEXTS, sigma=0.03, warm_up=NO_WARM_UP):
    pretended = {"verify": two_steps_s, "draft": straight_s, "sigma": sigma, "warm_up": warm_up}
    clock, target, draft = machine_and_pair(make_model, contexts, **pretended)
    settings = replace(SETTINGS, time_budget_s=budget_s, context_tokens=contexts)
    grid = LatencyGrid(target, draft, [1, 2], settings, clock=clock, journal=journal or Journal(None, ""))
    return clock, grid.measure(lambda: None)


def block_s(latencies):
    """Return what one block takes: its rounds with the untimed calls before, and all rounds of one count added to each."""
    round_s = 0.0
    for latency in latencies:
        rounds = max(len(timing.samples_s) for timing in latency.verify.timings)
        between_s = sum(float(latency.draft.seconds(width)) for width in WIDTHS_BEFORE)
        verify_s = [with_leads_s(each, between_s) for each in latency.verify.medians_s.tolist()]
        draft_s = [with_leads_s(each) for each in latency.draft.medians_s.tolist()]
        round_s += (max(verify_s) + max(draft_s)) * rounds / ROUNDS_PER_BLOCK + sum(verify_s) + sum(draft_s)
        for tree in PROBE_TREES:
            passes_s = latency.verify.seconds(tree.nodes) + latency.draft.seconds(tree.draft_widths).sum()
            round_s += with_leads_s(float(passes_s) + latency.overhead.median_s)
    return ROUNDS_PER_BLOCK * round_s


def with_leads_s(seconds, between_s=0.0):
    """Return what a timed call takes with the untimed ones before it."""
    leads = min(8, max(1, -(-10e-3 // seconds)))
    return seconds + leads * (seconds + between_s)


def half_width(latencies):
    table = latencies[0].verify
    low, high = table.interval_s(table.tokens)
    return float(np.median((high - low) / 2 / table.medians_s))


class TestTime:
    @pytest.mark.parametrize("budget_s", [6.0, 12.0])
    def test_half_the_budget_is_used_and_no_more_than_a_block_beyond(self, make_model, budget_s):
        clock, latencies = measured(make_model, budget_s, warm_up=WarmUp())
        assert 0.8 * budget_s / 2 < clock.passes_s < 1.03 * budget_s / 2 + block_s(latencies)  # texts begin anew

    def test_a_tiny_budget_measures_the_least(self, make_model):
        clock, latencies = measured(make_model, 1e-6, warm_up=WarmUp())
        assert len(latencies) == len(CONTEXTS)
        for latency in latencies:
            for table in (latency.verify, latency.draft):
                assert set(first_points(MOST)) <= set(table.tokens.tolist())
                assert all(len(timing.samples_s) >= ROUNDS_PER_BLOCK for timing in table.timings)
        assert clock.passes_s < 2 * block_s(latencies)  # a block and the first calls

    def test_more_of_it_gives_more_counts_and_narrower_intervals(self, make_model):
        little, more = (measured(make_model, budget_s)[1] for budget_s in (1e-6, 8.0))
        for few, many in zip(little, more, strict=True):
            assert set(few.verify.tokens.tolist()) < set(many.verify.tokens.tolist())
            assert len(many.overhead.samples_s) > len(few.overhead.samples_s)
        assert half_width(more) < half_width(little) / 1.3

    def test_counts_are_added_where_the_curve_steps_and_not_where_it_is_straight(self, make_model):
        _, latencies = measured(make_model, 5.0, sigma=0.0, contexts=(30,))
        assert {70, 71, 132, 133} <= set(latencies[0].verify.tokens.tolist())
        assert latencies[0].draft.tokens.tolist() == first_points(MOST)
        assert faults(latencies, two_steps_s, straight_s) == []

    def test_conditions_share_it(self, make_model):
        _, latencies = measured(make_model, 3.0)
        spent = [
            sum(float(timing.samples_s.sum()) for table in (each.verify, each.draft) for timing in table.timings)
            for each in latencies
        ]
        assert spent[1] == pytest.approx(spent[0], rel=0.3)

    def test_a_finished_budget_is_not_spent_again(self, make_model):
        journal = Journal(None, "")
        first, latencies = measured(make_model, 3.0, journal=journal, warm_up=WarmUp())
        second, _ = measured(make_model, 3.0, journal=journal, warm_up=WarmUp())
        assert second.timed * 4 < first.timed
        assert second.passes_s < block_s(latencies)


class TestEffort:
    def test_fixed_rounds_go_in_blocks(self):
        effort, rounds = FixedEffort(12), [0]
        while (more := effort.next_rounds(rounds[-1])) is not None:
            rounds.append(more)
        assert rounds == [0, 5, 10, 12]

    def test_a_budget_ends_after_the_block_in_which_it_is_spent(self):
        spent = [0.0]
        effort, rounds = TimeBudget(10.0, lambda: spent[0]), 0
        while (more := effort.next_rounds(rounds)) is not None:
            rounds, spent[0] = more, spent[0] + 4.0
        assert (rounds, spent[0]) == (3 * ROUNDS_PER_BLOCK, 12.0)

    @pytest.mark.parametrize("seconds", [0.0, -1.0])
    def test_no_time_is_refused(self, seconds):
        with pytest.raises(InvalidValueError, match="time_budget: expected more than 0 seconds"):
            Settings(time_budget_s=seconds)


class TestPositions:
    def profile(self, make_model, budget_s, journal, *, slower=1.0):
        pretended = {"verify": lambda *place: slower * two_steps_s(*place), "draft": straight_s}
        clock, target, draft = machine_and_pair(make_model, (30,), **pretended)
        settings = Settings(context_tokens=(30,), max_tokens=8, time_budget_s=budget_s, depth=3, branching=3)
        return Measurement(target, draft, PROMPTS, settings, clock=clock, journal=journal).profile(show_progress=False)

    @pytest.mark.parametrize("budget_s", [0.5, 2.0])
    def test_half_the_budget_is_for_them(self, make_model, budget_s):
        journal = Journal(None, "")
        profile = self.profile(make_model, budget_s, journal)
        position_s = two_steps_s(1, 30, 1) + straight_s(1, 30, 1)
        each = int(budget_s / 2 / position_s / len(PROMPTS))
        assert each > LEAST_POSITIONS
        assert profile.acceptance().positions == len(PROMPTS) * each
        assert [entry.values for entry in journal.entries(POSITIONS)] == [(each,)]

    def test_some_are_counted_however_small_it_is(self, make_model):
        profile = self.profile(make_model, 1e-6, Journal(None, ""))
        assert profile.acceptance().positions == len(PROMPTS) * LEAST_POSITIONS

    @pytest.mark.slow
    def test_no_text_outgrows_the_models(self, make_model):
        profile = self.profile(make_model, 10.0, Journal(None, ""))
        assert profile.acceptance().positions == len(PROMPTS) * (1024 - 3)

    def test_a_resumed_run_counts_as_many(self, make_model, tmp_path):
        path = tmp_path / "journal"
        whole = self.profile(make_model, 0.5, Journal(path, "h"))
        kept = [line for line in path.read_text().splitlines() if not line.startswith('["acceptance", 2')]
        path.write_text("\n".join(kept) + "\n")
        again = self.profile(make_model, 0.5, Journal(path, "h", resume=True), slower=7.0)
        assert again.acceptance().positions == whole.acceptance().positions
        assert again.acceptance().table.p.tolist() == whole.acceptance().table.p.tolist()
        other = self.profile(make_model, 0.5, Journal(None, ""), slower=7.0)
        assert other.acceptance().positions < whole.acceptance().positions
