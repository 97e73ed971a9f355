"""Schedules: against the fastest of the rivals at every single context length and batch size."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.solver.oracles import Table
from tests.support.invented_machines import Seconds, acceptance, latency, profile, seconds
from tests.support.planner_oracles import every_speedup, speedup
from treeopt.errors import InvalidValueError
from treeopt.planner import Option, PlanRequest, Schedule, Segment, plan, schedule
from treeopt.planner.scheduling import schedule_if_measured
from treeopt.planner.segments import chain_schedule
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.trees import TokenTree

NODES = 7
P: Table = [[0.7, 0.15], [0.6, 0.2], [0.6, 0.2], [0.5, 0.2]]
CONTEXTS, BATCHES = (0, 7, 30), (1, 4, 9)

Grid = dict[tuple[int, int], Seconds]
"""A machine for every measured batch size and context length."""


Pair = tuple[str, TokenTree]
"""A rule and a tree."""
ALONE: dict[str, Table] = {"sequoia": P}


def measured(grid: Grid, overheads: Mapping[str, float] | None = None, **tables: object) -> Profile:
    latencies = [
        latency(machine, batch_size=batch, context_tokens=context, overheads=overheads)
        for (batch, context), machine in grid.items()
    ]
    return profile(
        latencies, [acceptance(P)] if not tables else [acceptance(p, rule=rule) for rule, p in tables.items()]
    )


def drawn(seed: int, conditions: Sequence[tuple[int, int]] = tuple(itertools.product(BATCHES, CONTEXTS))) -> Grid:
    """Return straight curves, in which no padding pays, with prices of a node that differ from place to place."""
    rng = np.random.default_rng(seed)

    def machine() -> Seconds:
        node, width, first = rng.choice([0.0, 0.02, 0.1, 0.3, 1.2]), rng.uniform(0, 0.1), rng.uniform(0.02, 0.3)
        return seconds(lambda n: 1 + node * n, lambda w: first + width * w, rng.uniform(0, 0.2), nodes=NODES)

    return {condition: machine() for condition in conditions}


def between(grid: Grid, batch: int, context: int) -> Seconds:
    """Return the machine at any place: straight between its neighbours in context, and then in batch size."""
    sizes = sorted({size for size, _ in grid})
    at_sizes = []
    for size in sizes:
        contexts = sorted(length for s, length in grid if s == size)
        of_size = np.array([[*grid[size, c].verify, *grid[size, c].draft, grid[size, c].overhead] for c in contexts])
        inside = contexts[0] <= context <= contexts[-1]
        at_sizes.append([np.interp(context, contexts, column) if inside else np.nan for column in of_size.T])
    if batch in sizes:
        numbers = np.array(at_sizes[sizes.index(batch)])
    else:
        right = int(np.searchsorted(sizes, batch))
        share = (batch - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        numbers = (1 - share) * np.array(at_sizes[right - 1]) + share * np.array(at_sizes[right])
    assert not np.isnan(numbers).any()
    return Seconds(numbers[:NODES].tolist(), numbers[NODES:-1].tolist(), float(numbers[-1]))


def rivals(result: Schedule) -> list[Pair]:
    return list({(item.rule, item.tree) for made in result.plans for item in made.rules})


def speed(tree: TokenTree, p: Table, machine: Seconds) -> float:
    return speedup(tree.parents.tolist(), p, machine)


def check(
    grid: Grid,
    segments: Sequence[Segment],
    pairs: Sequence[Pair],
    axis: str,
    tables: Mapping[str, Table] = ALONE,
    overheads: Mapping[str, float] | None = None,
) -> None:
    """Expect segments that tile the measured range, each with the fastest rival everywhere in it."""

    def speed_of(pair: Pair, machine: Seconds) -> float:
        rule, tree = pair
        return speed(tree, tables[rule], machine._replace(overhead=(overheads or {}).get(rule, machine.overhead)))

    groups = itertools.groupby(segments, lambda item: item.batch_sizes if axis == "context" else item.context_tokens)
    for (fixed, same), group in groups:
        assert fixed == same
        expected_start, before = None, None
        for segment in group:
            low, high = segment.context_tokens if axis == "context" else segment.batch_sizes
            assert expected_start in (None, low)
            assert low <= high
            chosen = (segment.option.rule, segment.option.tree)
            assert before != chosen
            for value in range(low, high + 1):
                machine = between(grid, *((fixed, value) if axis == "context" else (value, fixed)))
                best = max(speed_of(pair, machine) for pair in pairs)
                assert speed_of(chosen, machine) >= best * (1 - 1e-8), (axis, fixed, value)
            start = between(grid, *((fixed, low) if axis == "context" else (low, fixed)))
            assert segment.option.speedup.value == pytest.approx(speed_of(chosen, start), rel=1e-9)
            expected_start, before = high + 1, chosen


def slower_places(grid: Grid, result: Schedule) -> list[tuple[int, int]]:
    """Return the batch sizes and contexts at which some tree is faster than the schedule's."""
    slower = []
    for segment in result.over_batch_sizes:
        (first, last), (shortest, longest) = segment.batch_sizes, segment.context_tokens
        for batch, context in itertools.product(range(first, last + 1), range(shortest, longest + 1)):
            machine = between(grid, batch, context)
            best = every_speedup(P, machine, NODES, len(P)).max()
            if speed(segment.option.tree, P, machine) < best * (1 - 1e-8):
                slower.append((batch, context))
    return slower


def ranges(segments: Sequence[Segment], axis: str) -> dict[int, tuple[int, int]]:
    """Return the first and the last value for everything that is fixed."""
    result: dict[int, tuple[int, int]] = {}
    for segment in segments:
        fixed, (low, high) = (
            (segment.batch_sizes[0], segment.context_tokens)
            if axis == "context"
            else (segment.context_tokens[0], segment.batch_sizes)
        )
        result[fixed] = (min(low, result.get(fixed, (low,))[0]), max(high, result.get(fixed, (0, high))[1]))
    return result


@functools.cache
def of_drawn(seed: int) -> Schedule:
    return schedule(measured(drawn(seed)), NODES)


class TestSegments:
    @pytest.mark.parametrize("seed", range(3))
    def test_segments_have_the_fastest_planned_tree(self, seed):
        grid, result = drawn(seed), of_drawn(seed)
        check(grid, result.over_contexts, rivals(result), "context")
        check(grid, result.over_batch_sizes, rivals(result), "batch")
        assert ranges(result.over_contexts, "context") == dict.fromkeys(BATCHES, (0, 30))
        assert ranges(result.over_batch_sizes, "batch") == dict.fromkeys(CONTEXTS, (1, 9))

    @pytest.mark.parametrize("seed", range(3))
    def test_no_other_tree_is_faster(self, seed):
        """Between measured batch sizes a tree may be the best that is the best at none of them."""
        assert slower_places(drawn(seed), of_drawn(seed)) == []

    @pytest.mark.slow
    def test_some_trees_are_fastest_between_measured_points_only(self):
        new = 0
        for seed in range(12):
            result = of_drawn(seed)
            new += any((item.option.rule, item.option.tree) not in rivals(result) for item in result.over_batch_sizes)
        assert new > 3

    @pytest.mark.slow
    def test_drawn_machines_need_a_schedule(self):
        result = [of_drawn(seed) for seed in range(12)]
        assert sum(len(item.over_contexts) for item in result) > 12 * len(BATCHES) * 1.5
        assert {segment.option.kind for item in result for segment in item.over_contexts} == {"plain", "chain", "tree"}

    def test_moved_switch_fails_the_check(self):
        grid, result = drawn(0), of_drawn(0)
        first, second = next(
            pair for pair in itertools.pairwise(result.over_contexts) if pair[0].batch_sizes == pair[1].batch_sizes
        )
        for by in (-1, 1):
            end = first.context_tokens[1] + by
            moved = [
                Segment(**{**fields(first), "context_tokens": (first.context_tokens[0], end)}),
                Segment(**{**fields(second), "context_tokens": (end + 1, second.context_tokens[1])}),
            ]
            with pytest.raises(AssertionError):
                check(grid, moved, rivals(result), "context")

    def test_a_switch_is_exact(self):
        """A chain of one yields 1.5 tokens in 1.2 + context / 1000 seconds: slower than 1 from 301 on, and not at 300."""
        p = [[0.5]]
        near = Seconds([1.0, 1.0, 1.0], [0.2, 0.2, 0.2])
        far = Seconds([1.0, 1.0, 1.0], [1.2, 1.2, 1.2])
        made = profile([latency(near, context_tokens=0), latency(far, context_tokens=1000)], [acceptance(p)])
        result = schedule(made, 3).over_contexts
        assert [(item.option.kind, item.context_tokens) for item in result] == [
            ("chain", (0, 299)),
            ("plain", (300, 1000)),
        ]

    def test_one_tree_fastest_everywhere_is_one_segment(self):
        grid = dict.fromkeys(itertools.product(BATCHES, CONTEXTS), seconds(lambda _: 1.0, lambda _: 0.01, nodes=NODES))
        result = schedule(measured(grid), NODES)
        assert [item.context_tokens for item in result.over_contexts] == [(0, 30)] * 3
        assert [item.batch_sizes for item in result.over_batch_sizes] == [(1, 9)] * 3
        assert len({item.option.tree for item in result.over_contexts + result.over_batch_sizes}) == 1

    def test_plain_decoding_wins_where_batches_are_large(self):
        """A node of every sequence fills the machine: at batch 1 nodes are free, at batch 64 they cost all they can."""
        grid = {
            (batch, 256): seconds(lambda n, b=batch: 1 + 0.02 * b * (n - 1), lambda _: 0.05, nodes=NODES)
            for batch in (1, 64)
        }
        result = schedule(measured(grid), NODES).over_batch_sizes
        assert result[0].option.kind == "tree"
        assert result[-1].option.kind == "plain"
        assert result[-1].batch_sizes[1] == 64
        check(grid, result, [(item.option.rule, item.option.tree) for item in result], "batch")


def fields(segment: Segment) -> dict[str, object]:
    return {name: getattr(segment, name) for name in Segment.__dataclass_fields__}


PARTIAL = [(1, 0), (1, 7), (1, 30), (4, 3), (9, 0), (9, 30)]


class TestGaps:
    @pytest.mark.parametrize("seed", range(2))
    def test_contexts_measured_at_some_batch_sizes(self, seed):
        grid = drawn(seed, PARTIAL)
        result = schedule(measured(grid), NODES)
        check(grid, result.over_contexts, rivals(result), "context")
        assert ranges(result.over_contexts, "context") == {1: (0, 30), 4: (3, 3), 9: (0, 30)}

    def test_batch_size_measured_at_another_context(self):
        """At context 256 batches 1 and 4 were measured, at 512 batch 2: batch 2 at 256 is unknown, or between 1 and 4."""
        cheap = seconds(lambda _: 1.0, lambda _: 0.01, nodes=NODES)
        dear = seconds(lambda n: 1.0 * n, lambda _: 1.0, nodes=NODES)
        result = schedule(measured({(1, 256): cheap, (4, 256): dear, (2, 512): cheap}), NODES)
        assert {item.context_tokens for item in result.over_batch_sizes} <= {(256, 256)}
        assert [item.option.kind for item in result.over_contexts] == ["tree", "tree", "plain"]

    def test_the_order_of_measuring_does_not_matter(self):
        grid = drawn(1)
        turned = schedule(measured(dict(reversed(grid.items()))), NODES)
        assert [(item.model.point.batch_size, item.context_tokens) for item in turned.plans] == sorted(grid)
        assert turned.to_records() == of_drawn(1).to_records()


OTHERS: dict[str, Table] = {"target": P, "traversal": [[0.45, 0.4]] * 4, "typical": [[0.5, 0.3]] * 4}
OVERHEADS = {"traversal": 0.0, "typical": 0.3}


class TestRules:
    def test_segments_have_the_fastest_rule_and_tree(self):
        grid = drawn(0)
        result = schedule(measured(grid, OVERHEADS, **OTHERS), NODES, lossy=True)
        assert len(result.plans) == 9
        for axis, segments in (("context", result.over_contexts), ("batch", result.over_batch_sizes)):
            check(grid, segments, rivals(result), axis, OTHERS, OVERHEADS)

    @pytest.mark.slow
    def test_some_of_the_drawn_machines_change_the_rule(self):
        result = [schedule(measured(drawn(seed), OVERHEADS, **OTHERS), NODES, lossy=True) for seed in range(6)]
        assert len({segment.option.rule for item in result for segment in item.over_contexts}) > 1

    def test_the_best_rule_changes_with_the_context(self):
        """A rule that costs much per step and accepts more pays where passes are dear: where contexts are long."""
        tables = {"sequoia": [[0.6, 0.1]] * 4, "traversal": [[0.7, 0.1]] * 4}
        grid = {
            (1, context): seconds(lambda n, c=context: 1 + 0.1 * c + 0.02 * n, lambda _: 0.02, nodes=NODES)
            for context in (0, 100)
        }
        overheads = {"traversal": 0.6}
        result = schedule(measured(grid, overheads, **tables), NODES)
        rules = [item.option.rule for item in result.over_contexts]
        assert (rules[0], rules[-1]) == ("sequoia", "traversal")
        assert [item.rule for item in result.plans] == ["sequoia", "traversal"]
        check(grid, result.over_contexts, rivals(result), "context", tables, overheads)
        one_rule = [replace(item, option=replace(item.option, rule="traversal")) for item in result.over_contexts]
        with pytest.raises(AssertionError):
            check(grid, one_rule, rivals(result), "context", tables, overheads)

    def test_plain_decoding_is_one_segment_whatever_the_rule(self):
        grid = {(1, context): seconds(lambda n: 1.0 * n, lambda _: 1.0, nodes=NODES) for context in CONTEXTS}
        result = schedule(measured(grid, target=P, traversal=OTHERS["traversal"]), NODES).over_contexts
        assert [(item.option.rule, item.option.kind, item.context_tokens) for item in result] == [
            ("target", "plain", (0, 30))
        ]


class TestPlans:
    def test_plans_are_those_of_each_point_alone(self):
        grid = drawn(3)
        grid |= {
            point: Seconds(machine.verify[:4], machine.draft[:4]) for point, machine in grid.items() if point[0] > 4
        }
        made = measured(grid)
        plans = schedule(made, NODES, max_depth=2, level_widths=2).plans
        assert max(item.choice.tree.nodes for item in plans) > 4, "the smaller passes limit no plan"
        for item in plans:
            alone = plan(
                made,
                NODES,
                max_depth=2,
                level_widths=2,
                context_tokens=item.context_tokens,
                batch_size=item.model.point.batch_size,
            )
            assert numbers(item.choice) == numbers(alone.choice)
            assert item.choice.tree.max_depth <= 2
            assert item.choice.tree.level_widths.max() <= 2

    def test_single_points_of_greedy_and_sampled_steps_have_no_schedule_of_one_temperature(self):
        greedy = latency(drawn(0)[1, 0])
        made = profile(
            [replace(greedy, sampled=sampled) for sampled in (False, True)],
            [acceptance(P, sampling=Sampling(temperature)) for temperature in (0.0, 0.6)],
        )
        assert len(schedule_if_measured(made, PlanRequest()).plans) == 2
        assert schedule_if_measured(made, PlanRequest(temperature=0.6)) is None

    def test_budgets_are_limited_to_what_was_measured(self):
        made = measured(drawn(0, [(1, 0)]))
        with pytest.raises(InvalidValueError, match="max_nodes"):
            schedule(made, 0)
        assert schedule(made, NODES + 1).plans[0].choice == schedule(made, NODES).plans[0].choice

    @pytest.mark.parametrize("block", [3, 6])
    def test_trees_are_no_deeper_than_one_pass_drafts(self, block):
        """With drafting times of blocks that are shorter or longer than the four measured depths."""
        blocks = [
            replace(latency(machine, context_tokens=context, draft_counts=[1, block]), per_block=True)
            for context, machine in zip((0, 10), drawn(0).values(), strict=False)
        ]
        made = profile(blocks, [acceptance([[0.9, 0.05]] * 4)])
        segments = schedule(made, NODES).over_contexts + chain_schedule(made)
        assert max(segment.option.tree.max_depth for segment in segments) <= min(block, 4)
        assert plan(made).tree == schedule(made).plans[0].tree

    def test_raw_tables_are_left_as_measured(self):
        table = [[0.3, 0.4]] * 2
        machine = seconds(lambda n: 1 + 0.01 * n, lambda _: 0.1, nodes=NODES)
        made = profile([latency(machine)], [acceptance(table, counts=[20.0] * 2)])
        raw, smooth = (schedule(made, NODES, raw=raw) for raw in (True, False))
        assert raw.plans[0].model.tokens.smoothing is None
        assert smooth.plans[0].model.tokens.smoothing is not None
        assert raw.over_contexts[0].option.speedup.value == pytest.approx(
            speed(raw.over_contexts[0].option.tree, table, machine)
        )

    def test_trees_wider_than_measured_are_left_out(self):
        wide, narrow = (seconds(lambda _: 1.0, lambda _: 0.01, nodes=NODES) for _ in range(2))
        made = profile(
            [latency(wide, context_tokens=0), latency(narrow, context_tokens=10, draft_counts=[1])],
            [acceptance([[0.45, 0.45]] * 4)],
        )
        result = schedule(made, NODES).over_contexts
        assert [item.context_tokens for item in result] == [(0, 0), (1, 10)]
        assert result[1].option.tree.draft_widths.max() == 1

    def test_plain_decoding_remains_where_no_planned_tree_was_measured(self):
        """Between small passes with deep trees and large passes with shallow ones."""
        small, large = (seconds(lambda _: 1.0, lambda _: 0.01, nodes=nodes) for nodes in (4, NODES))
        made = profile(
            [latency(small, context_tokens=0), latency(large, context_tokens=10)],
            [
                acceptance([[0.9, 0.05]] * 3, context_tokens=0),
                acceptance([[0.3, 0.2, 0.1, 0.1, 0.1]], context_tokens=10),
            ],
        )
        result = schedule(made).over_contexts
        assert [(item.context_tokens, item.option.kind) for item in result] == [
            ((0, 0), "chain"),
            ((1, 9), "plain"),
            ((10, 10), "tree"),
        ]


def numbers(candidate: Option) -> tuple:
    return candidate.tree, candidate.tokens_per_step, candidate.step_s, candidate.speedup
