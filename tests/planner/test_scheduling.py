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
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner import Option, Schedule, Segment, plan, schedule
from treeopt.planner.segments import chain_schedule
from treeopt.records.profile import Profile
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


def rivals(found: Schedule) -> list[Pair]:
    return list({(each.rule, each.tree) for made in found.plans for each in made.rules})


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

    groups = itertools.groupby(segments, lambda each: each.batch_sizes if axis == "context" else each.context_tokens)
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


def slower_places(grid: Grid, found: Schedule) -> list[tuple[int, int]]:
    """Return the batch sizes and contexts at which some tree is faster than the schedule's."""
    slower = []
    for segment in found.over_batch_sizes:
        (first, last), (shortest, longest) = segment.batch_sizes, segment.context_tokens
        for batch, context in itertools.product(range(first, last + 1), range(shortest, longest + 1)):
            machine = between(grid, batch, context)
            best = every_speedup(P, machine, NODES, len(P)).max()
            if speed(segment.option.tree, P, machine) < best * (1 - 1e-8):
                slower.append((batch, context))
    return slower


def ranges(segments: Sequence[Segment], axis: str) -> dict[int, tuple[int, int]]:
    """Return the first and the last value for everything that is fixed."""
    found: dict[int, tuple[int, int]] = {}
    for segment in segments:
        fixed, (low, high) = (
            (segment.batch_sizes[0], segment.context_tokens)
            if axis == "context"
            else (segment.context_tokens[0], segment.batch_sizes)
        )
        found[fixed] = (min(low, found.get(fixed, (low,))[0]), max(high, found.get(fixed, (0, high))[1]))
    return found


@functools.cache
def of_drawn(seed: int) -> Schedule:
    return schedule(measured(drawn(seed)), NODES)


class TestSegments:
    @pytest.mark.parametrize("seed", range(4))
    def test_the_fastest_rival_at_every_place(self, seed):
        grid, found = drawn(seed), of_drawn(seed)
        check(grid, found.over_contexts, rivals(found), "context")
        check(grid, found.over_batch_sizes, rivals(found), "batch")
        assert ranges(found.over_contexts, "context") == dict.fromkeys(BATCHES, (0, 30))
        assert ranges(found.over_batch_sizes, "batch") == dict.fromkeys(CONTEXTS, (1, 9))

    @pytest.mark.parametrize("seed", range(4))
    def test_no_tree_at_all_is_faster_anywhere(self, seed):
        """Neither at measured batch sizes nor between them, where a tree may be best that is best at none of them."""
        assert slower_places(drawn(seed), of_drawn(seed)) == []

    @pytest.mark.slow
    def test_some_of_the_fastest_are_so_between_measured_conditions_only(self):
        """Schedules of the trees that are best where it was measured fail the test above."""
        new = 0
        for seed in range(12):
            found = of_drawn(seed)
            new += any((each.option.rule, each.option.tree) not in rivals(found) for each in found.over_batch_sizes)
        assert new > 3

    @pytest.mark.slow
    def test_the_drawn_machines_are_worth_a_schedule(self):
        found = [of_drawn(seed) for seed in range(12)]
        assert sum(len(each.over_contexts) for each in found) > 12 * len(BATCHES) * 1.5
        assert {segment.option.kind for each in found for segment in each.over_contexts} == {"plain", "chain", "tree"}

    def test_another_choice_inside_a_segment_would_be_slower(self):
        """The check itself fails where any switch is moved by one."""
        grid, found = drawn(0), of_drawn(0)
        first, second = next(
            pair for pair in itertools.pairwise(found.over_contexts) if pair[0].batch_sizes == pair[1].batch_sizes
        )
        for by in (-1, 1):
            end = first.context_tokens[1] + by
            moved = [
                Segment(**{**fields(first), "context_tokens": (first.context_tokens[0], end)}),
                Segment(**{**fields(second), "context_tokens": (end + 1, second.context_tokens[1])}),
            ]
            with pytest.raises(AssertionError):
                check(grid, moved, rivals(found), "context")

    def test_a_switch_is_exact(self):
        """A chain of one yields 1.5 tokens in 1.2 + context / 1000 seconds: slower than 1 from 301 on, and not at 300."""
        p = [[0.5]]
        near = Seconds([1.0, 1.0, 1.0], [0.2, 0.2, 0.2])
        far = Seconds([1.0, 1.0, 1.0], [1.2, 1.2, 1.2])
        made = profile([latency(near, context_tokens=0), latency(far, context_tokens=1000)], [acceptance(p)])
        found = schedule(made, 3).over_contexts
        assert [(each.option.kind, each.context_tokens) for each in found] == [
            ("chain", (0, 299)),
            ("plain", (300, 1000)),
        ]

    def test_where_one_tree_is_fastest_everywhere_there_is_one_segment(self):
        grid = dict.fromkeys(itertools.product(BATCHES, CONTEXTS), seconds(lambda _: 1.0, lambda _: 0.01, nodes=NODES))
        found = schedule(measured(grid), NODES)
        assert [each.context_tokens for each in found.over_contexts] == [(0, 30)] * 3
        assert [each.batch_sizes for each in found.over_batch_sizes] == [(1, 9)] * 3
        assert len({each.option.tree for each in found.over_contexts + found.over_batch_sizes}) == 1

    def test_plain_decoding_wins_where_batches_are_large(self):
        """A node of every sequence fills the machine: at batch 1 nodes are free, at batch 64 they cost all they can."""
        grid = {
            (batch, 256): seconds(lambda n, b=batch: 1 + 0.02 * b * (n - 1), lambda _: 0.05, nodes=NODES)
            for batch in (1, 64)
        }
        found = schedule(measured(grid), NODES).over_batch_sizes
        assert found[0].option.kind == "tree"
        assert found[-1].option.kind == "plain"
        assert found[-1].batch_sizes[1] == 64
        check(grid, found, [(each.option.rule, each.option.tree) for each in found], "batch")

    def test_one_condition_is_a_schedule_too(self):
        found = schedule(measured(drawn(0, [(2, 100)])), NODES)
        assert [(each.batch_sizes, each.context_tokens) for each in found.over_contexts] == [((2, 2), (100, 100))]
        assert found.over_batch_sizes == ()
        assert found.over_contexts[0].option.tree == found.plans[0].choice.tree


def fields(segment: Segment) -> dict[str, object]:
    return {name: getattr(segment, name) for name in Segment.__dataclass_fields__}


PARTIAL = [(1, 0), (1, 7), (1, 30), (4, 3), (9, 0), (9, 30)]


class TestGaps:
    @pytest.mark.parametrize("seed", range(6))
    def test_contexts_that_were_not_measured_at_every_batch_size(self, seed):
        grid = drawn(seed, PARTIAL)
        found = schedule(measured(grid), NODES)
        check(grid, found.over_contexts, rivals(found), "context")
        assert ranges(found.over_contexts, "context") == {1: (0, 30), 4: (3, 3), 9: (0, 30)}

    def test_a_batch_size_between_measured_elsewhere_only(self):
        """At context 256 batches 1 and 4 were measured, at 512 batch 2: batch 2 at 256 is unknown, or between 1 and 4."""
        cheap = seconds(lambda _: 1.0, lambda _: 0.01, nodes=NODES)
        dear = seconds(lambda n: 1.0 * n, lambda _: 1.0, nodes=NODES)
        found = schedule(measured({(1, 256): cheap, (4, 256): dear, (2, 512): cheap}), NODES)
        assert {each.context_tokens for each in found.over_batch_sizes} <= {(256, 256)}
        assert [each.option.kind for each in found.over_contexts] == ["tree", "tree", "plain"]

    @pytest.mark.parametrize("order", [1, -1])
    def test_the_order_of_measuring_does_not_matter(self, order):
        grid = drawn(1)
        found = schedule(measured(dict(list(grid.items())[::order])), NODES)
        places = [(each.model.point.batch_size, each.context_tokens) for each in found.plans]
        assert places == sorted(grid)
        assert [each.batch_sizes[0] for each in found.over_contexts] == sorted(
            each.batch_sizes[0] for each in found.over_contexts
        )


OTHERS: dict[str, Table] = {"target": P, "traversal": [[0.45, 0.4]] * 4, "typical": [[0.5, 0.3]] * 4}
OVERHEADS = {"traversal": 0.0, "typical": 0.3}


class TestRules:
    @pytest.mark.parametrize("seed", range(2))
    def test_the_fastest_rule_and_tree_at_every_place(self, seed):
        grid = drawn(seed)
        found = schedule(measured(grid, OVERHEADS, **OTHERS), NODES, lossy=True)
        assert len(found.plans) == 9
        for axis, segments in (("context", found.over_contexts), ("batch", found.over_batch_sizes)):
            check(grid, segments, rivals(found), axis, OTHERS, OVERHEADS)

    @pytest.mark.slow
    def test_some_of_the_drawn_machines_change_the_rule(self):
        found = [schedule(measured(drawn(seed), OVERHEADS, **OTHERS), NODES, lossy=True) for seed in range(6)]
        assert len({segment.option.rule for each in found for segment in each.over_contexts}) > 1

    def test_the_best_rule_changes_with_the_context(self):
        """A rule that costs much per step and accepts more pays where passes are dear: where contexts are long."""
        tables = {"sequoia": [[0.6, 0.1]] * 4, "traversal": [[0.7, 0.1]] * 4}
        grid = {
            (1, context): seconds(lambda n, c=context: 1 + 0.1 * c + 0.02 * n, lambda _: 0.02, nodes=NODES)
            for context in (0, 100)
        }
        overheads = {"traversal": 0.6}
        found = schedule(measured(grid, overheads, **tables), NODES)
        rules = [each.option.rule for each in found.over_contexts]
        assert (rules[0], rules[-1]) == ("sequoia", "traversal")
        assert [each.rule for each in found.plans] == ["sequoia", "traversal"]
        check(grid, found.over_contexts, rivals(found), "context", tables, overheads)
        one_rule = [replace(each, option=replace(each.option, rule="traversal")) for each in found.over_contexts]
        with pytest.raises(AssertionError):
            check(grid, one_rule, rivals(found), "context", tables, overheads)

    def test_lossy_rules_need_leave_and_are_marked(self):
        made = measured(drawn(2), target=[[0.3, 0.1]] * 4, typical=[[0.9, 0.05]] * 4)
        for lossy in (False, True):
            segments = schedule(made, NODES, lossy=lossy).over_contexts
            assert {(each.option.rule, each.option.lossy) for each in segments} <= {
                ("target", False),
                ("typical", True),
            }
            assert any(each.option.lossy for each in segments) == lossy

    def test_plain_decoding_is_one_segment_whatever_the_rule(self):
        grid = {(1, context): seconds(lambda n: 1.0 * n, lambda _: 1.0, nodes=NODES) for context in CONTEXTS}
        found = schedule(measured(grid, target=P, traversal=OTHERS["traversal"]), NODES).over_contexts
        assert [(each.option.rule, each.option.kind, each.context_tokens) for each in found] == [
            ("target", "plain", (0, 30))
        ]

    def test_only_those_asked_for(self):
        made = profile(
            [latency(seconds(lambda _: 1.0, lambda _: 0.1, nodes=NODES))],
            [acceptance(P, rule=rule, temperature=t) for rule in ("target", "traversal") for t in (0.0, 0.6)],
        )
        for asked, count in (
            ({}, 2),
            ({"rule": "traversal"}, 2),
            ({"temperature": 0.6}, 1),
            ({"rule": "target", "temperature": 0.0}, 1),
        ):
            found = schedule(made, NODES, **asked)
            assert len(found.plans) == len(found.over_contexts) == count
            assert all(
                {"temperature": each.temperature, "rule": each.option.rule}.items() >= asked.items()
                for each in found.over_contexts
            )
            assert {len(each.rules) for each in found.plans} == {1 if "rule" in asked else 2}

    @pytest.mark.parametrize("asked", [{"rule": "target"}, {"temperature": 9.0}], ids=str)
    def test_what_was_not_measured_is_refused(self, asked):
        with pytest.raises(InfeasibleError, match=r"was not measured\. Measured: sequoia at 0\.6"):
            schedule(measured(drawn(0, [(1, 0)])), NODES, **asked)


class TestPlans:
    def test_they_are_those_of_the_conditions_alone(self):
        made = measured(drawn(3))
        for each in schedule(made, NODES, max_depth=2, level_widths=2).plans:
            alone = plan(
                made,
                NODES,
                max_depth=2,
                level_widths=2,
                context_tokens=each.context_tokens,
                batch_size=each.model.point.batch_size,
            )
            assert numbers(each.choice) == numbers(alone.choice)
            assert each.choice.tree.max_depth <= 2
            assert each.choice.tree.level_widths.max() <= 2

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
        assert raw.plans[0].model.smoothing is None
        assert smooth.plans[0].model.smoothing is not None
        assert raw.over_contexts[0].option.speedup.value == pytest.approx(
            speed(raw.over_contexts[0].option.tree, table, machine)
        )

    def test_a_tree_too_large_for_another_condition_is_no_rival_there(self):
        wide, narrow = (seconds(lambda _: 1.0, lambda _: 0.01, nodes=NODES) for _ in range(2))
        made = profile(
            [latency(wide, context_tokens=0), latency(narrow, context_tokens=10, draft_counts=[1])],
            [acceptance([[0.45, 0.45]] * 4)],
        )
        found = schedule(made, NODES).over_contexts
        assert [each.context_tokens for each in found] == [(0, 0), (1, 10)]
        assert found[1].option.tree.draft_widths.max() == 1


def numbers(candidate: Option) -> tuple:
    return candidate.tree, candidate.tokens_per_step, candidate.step_s, candidate.speedup
