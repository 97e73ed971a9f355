"""The best of every drafter against brute force: all small trees, all settings, on machines whose every step is known."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.cli.invented import TABLE, invented, verify_s
from treeopt.errors import InfeasibleError
from treeopt.planner import (
    PlanRequest,
    best_drafter,
    choice_confidence,
    drafter_choices,
    requested_plan,
    tree_file,
)
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.latency import Estimate, LatencyTable, Timing
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.measured_drafter import (
    DecodedSequences,
    DrafterLatency,
    MeasuredDrafter,
    MeasuredSetting,
    MeasuredSettings,
    MeasuredTrees,
    ReplayedSequences,
)
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import TimedTree
from treeopt.trees import TokenTree, chain, level_widths
from treeopt.trees.drafter_setting import drafter_setting

OWN = AcceptanceTable([[0.8, 0.2], [0.5, 0.3], [0.2, 0.1]])
"""Of the heads: wider and shallower than the draft model's."""
PLAIN_S = verify_s(1, 256, 1) + 2e-4  # the profile's overhead is of steps that draft; a plain step has a pass alone
SLOWER = 1.7
"""How much slower the machine was when drafters were decoded with than when passes were timed."""
TREES = (chain(1), chain(3), level_widths([2, 2, 1]), level_widths([2, 4, 4]), level_widths([2]), level_widths([2, 4]))


def level_s(width):
    """Return the seconds to draft a level of `width` internal nodes."""
    return 3e-4 + 2e-5 * width


BLOCK_S = 2e-3
"""What drafting all levels in one pass takes."""


def rest_s(tree):
    """Return the seconds per step of heads that draft level by level, without the target's pass."""
    drafting_s = sum(level_s(int(width)) for width in tree.draft_widths)
    return 1e-3 + drafting_s + 1e-4 * tree.max_depth + 5e-5 * tree.nodes + 2e-4 * (tree.child_counts.max() > 1)


def at_once_s(tree):
    """Return likewise where one pass drafts all levels, however wide."""
    return 1e-3 + BLOCK_S + 5e-5 * tree.nodes


def sequences(tokens_per_step, step_s, *, steps=(40, 60), sequences=2, most=1):
    """Return sequences whose steps took so long, each with a pass over `most` tokens."""
    return DecodedSequences(
        tokens=tuple(round(tokens_per_step * steps[place]) for place in range(sequences)),
        pass_tokens=(most,),
        passes=tuple((steps[place],) for place in range(sequences)),
        seconds=Timing([steps[place] * step_s for place in range(sequences)]),
    )


def plain_s(profile):
    return requested_plan(profile, PlanRequest(temperature=0.0)).plain.step_s.value


def heads(profile, table=OWN, trees=TREES, name="medusa", temperature=0.0, rest=rest_s):
    """Return heads that were timed under every condition of a profile, all of which cost the same without the pass."""
    latencies = tuple(drafting_at(item.context_tokens, item.batch_size, trees, rest=rest) for item in profile.latencies)
    return MeasuredDrafter(
        setting=drafter_setting(name), latencies=latencies, trees=(trees_at(256, table, temperature),)
    )


def drafting_at(context, batch=1, trees=TREES, rest=rest_s, slower=1.0):
    """Return what drafting costs under one condition."""
    per_block = rest is at_once_s
    drafting_s = [BLOCK_S] * 2 if per_block else [level_s(1), level_s(9)]
    steps = [
        TimedTree(tree=tree, steps=Timing([verify_s(tree.nodes, context, batch) + slower * rest(tree)]))
        for tree in trees
    ]
    return DrafterLatency(
        context_tokens=context,
        batch_size=batch,
        draft=LatencyTable([1, 3 if per_block else 9], [Timing([slower * item]) for item in drafting_s]),
        per_block=per_block,
        overhead=Timing([1e-3]),
        sampled=False,
        steps=tuple(steps),
    )


def trees_at(context, table=OWN, temperature=0.0):
    """Return how often static trees are accepted at a context length."""
    return MeasuredTrees(
        acceptance=MeasuredAcceptance(
            rule="target", sampling=Sampling(temperature), prompts=9, positions=999, table=table
        ),
        context_tokens=context,
    )


def lookup(profile, rows, temperature=0.0, name="prompt-lookup", top_k=0):
    """Return a drafter with a row of settings: values, largest pass, tokens per step, seconds without the pass."""
    return MeasuredDrafter(
        setting=drafter_setting(name), decodes=(decodes_at(256, plain_s(profile), rows, temperature, name, top_k),)
    )


def decodes_at(context, plain, rows, temperature=0.0, name="prompt-lookup", top_k=0):
    """Return settings decoded at a context length, where a plain step takes `plain` seconds."""
    settings = tuple(
        MeasuredSetting(
            values=drafter_setting(name, **values).values,
            max_tokens=most,
            decoded=sequences(tokens, SLOWER * (verify_s(most, context, 1) + other_s), most=most),
        )
        for values, most, tokens, other_s in rows
    )
    return MeasuredSettings(
        sampling=Sampling(temperature, top_k=top_k),
        context_tokens=context,
        plain=sequences(1, SLOWER * plain),
        settings=settings,
    )


def options(profile, request, plan=None):
    """Return the option of every drafter."""
    return [item.option for item in drafter_choices(profile, request, plan=plan)]


def test_settings_take_tokens_and_passes_from_the_replay():
    profile = invented()
    other_s = 3e-4
    (result,) = lookup(profile, [({"length": 3, "ngram": 2}, 4, 2.0, other_s)]).decodes
    replayed = ReplayedSequences(tokens=(30, 16, 20), pass_tokens=(1, 4), passes=((0, 10), (13, 3), (12, 2)))
    (setting,) = result.settings
    decodes = replace(result, settings=(replace(setting, replayed=replayed),))
    profile = replace(
        profile, drafters=(MeasuredDrafter(setting=drafter_setting("prompt-lookup"), decodes=(decodes,)),)
    )
    _, choice = options(profile, PlanRequest())
    step_s = (25 * verify_s(1, 256, 1) + 15 * verify_s(4, 256, 1)) / 40 + other_s
    assert choice.tokens_per_step.value == pytest.approx(66 / 40)
    assert choice.step_s.value == pytest.approx(step_s, rel=2e-3)
    assert choice.speedup.value == pytest.approx(66 / 40 / step_s * plain_s(profile), rel=2e-3)
    assert choice.tokens_per_step.low < 1.4  # three sequences that differ
    assert choice.tokens_per_step.high > 1.8


def lookup_rows():
    return [
        ({"length": length, "ngram": ngram}, length + 1, 1 + 0.3 * ngram * (1 - 0.7**length), 1e-4 * ngram)
        for length, ngram in product((1, 3, 7), (1, 2, 4))
    ]


def all_trees(nodes, depth, branching):
    """Return every tree in level order of at most `nodes` nodes: siblings by rank, no rank left out."""
    result, kept = {(-1,)}, [TokenTree([-1])]
    while result:
        grown = set()
        for parents in result:
            for parent in range(max(0, parents[-1]), len(parents)):
                tree = (*parents, parent)
                if parents.count(parent) < branching and TokenTree(tree).max_depth <= depth:
                    grown.add(tree)
        kept += [TokenTree(item) for item in grown]
        result = {item for item in grown if len(item) < nodes}
    return kept


def expected_tokens(table, tree):
    reach = np.ones(tree.nodes)
    for node in range(1, tree.nodes):
        parent = int(tree.parents[node])
        rank = node - int(np.flatnonzero(tree.parents == parent)[0])
        reach[node] = reach[parent] * table.p[tree.depth[node] - 1, rank]
    return reach.sum()


def test_a_block_is_no_deeper_than_one_pass_drafts():
    """A tree of four levels would be faster, but the pass drafts three."""
    deep = AcceptanceTable([[0.95, 0.02]] * 4)
    profile = invented()
    for drafter, depth in ((heads(profile, deep), 4), (heads(profile, deep, rest=at_once_s), 3)):
        _, choice = options(replace(profile, drafters=(drafter,)), PlanRequest(max_nodes=7))
        assert choice.tree.max_depth == depth


@pytest.mark.parametrize("rest", [rest_s, at_once_s])
def test_a_static_tree_is_the_best_of_all_trees(rest):
    profile = invented()
    profile = replace(profile, drafters=(heads(profile, rest=rest),))
    _, choice = drafter_choices(profile, PlanRequest(max_nodes=7, raw=True))
    result = choice.option
    plain = plain_s(profile)

    def speedup(tree):
        return expected_tokens(OWN, tree) / (verify_s(tree.nodes, 256, 1) + rest(tree)) * plain

    known = {tree: speedup(tree) for tree in all_trees(7, 3, 2) if tree.nodes > 1}
    assert len(known) > 40
    assert known[result.tree] == pytest.approx(max(known.values()), rel=1e-3)
    assert result.speedup.value == pytest.approx(known[result.tree], rel=1e-3)
    assert result.tokens_per_step.value == pytest.approx(expected_tokens(OWN, result.tree))
    assert result.step_s.value == pytest.approx(verify_s(result.tree.nodes, 256, 1) + rest(result.tree), rel=1e-3)
    assert choice.bound is not None
    assert choice.bound >= result.speedup.value * (1 - 1e-9)
    assert (result.rule, result.drafter.name) == ("target", "medusa")


def test_setting_is_the_fastest_of_the_decoded_ones():
    profile, rows = invented(), lookup_rows()
    profile = replace(profile, drafters=(lookup(profile, rows),))
    _, result = options(profile, PlanRequest())
    (decodes,) = profile.drafters[0].decodes
    rates = [sum(item.decoded.tokens) / item.decoded.seconds.samples_s.sum() for item in decodes.settings]
    plain = sum(decodes.plain.tokens) / decodes.plain.seconds.samples_s.sum()
    best = decodes.settings[int(np.argmax(rates))]
    assert (result.drafter.values, result.max_nodes, result.kind) == (best.values, best.max_tokens, "setting")
    assert result.speedup.value == pytest.approx(max(rates) / plain)
    assert result.tokens_per_step.value == pytest.approx(best.decoded.tokens_per_step)
    assert result.step_s.value == pytest.approx(best.decoded.step_s / SLOWER)
    tokens = options(profile, PlanRequest(objective="tokens"))[1]
    assert tokens.tokens_per_step.value == max(item.decoded.tokens_per_step for item in decodes.settings)


def noisy(decodes, generator, noise):
    """Return the decodes with noise on the seconds of every sequence, `noise` as a fraction."""

    def timed_again(decoded):
        factors = generator.normal(1, noise, decoded.count)
        return replace(decoded, seconds=Timing(decoded.seconds.samples_s * factors))

    settings = tuple(replace(setting, decoded=timed_again(setting.decoded)) for setting in decodes.settings)
    return replace(decodes, plain=timed_again(decodes.plain), settings=settings)


def chosen_and_true_speedup(noise, rows, generator):
    """Return the speedup of the setting that is chosen from noisy times, as predicted, and without the noise."""
    profile = invented()
    drafter = lookup(profile, rows)
    (decodes,) = drafter.decodes
    many = replace(
        decodes,
        plain=repeat(decodes.plain),
        settings=tuple(replace(item, decoded=repeat(item.decoded)) for item in decodes.settings),
    )
    drafters = (replace(drafter, decodes=(noisy(many, generator, noise),)),)
    choice = options(replace(profile, drafters=drafters), PlanRequest())[1]
    true_s = next(
        verify_s(most, 256, 1) + other_s
        for values, most, _, other_s in rows
        if drafter_setting("prompt-lookup", **values) == choice.drafter
    )
    return choice.speedup.value, choice.tokens_per_step.value / true_s * plain_s(profile)


def repeat(decoded, times=4):
    """Return the sequences several times."""
    seconds = Timing(np.tile(decoded.seconds.samples_s, times))
    return replace(decoded, tokens=decoded.tokens * times, passes=decoded.passes * times, seconds=seconds)


def test_choice_among_noisy_settings_is_not_predicted_too_fast():
    rows = [({"length": 3, "ngram": ngram}, 4, 2.0, 1e-4) for ngram in (1, 2, 3, 4, 5)]
    generator = np.random.default_rng(3)
    ratios = [
        predicted / true for predicted, true in (chosen_and_true_speedup(0.3, rows, generator) for _ in range(30))
    ]
    assert 0.95 < np.mean(ratios) < 1.1  # 1.17 if each setting keeps its own overhead: the least of five noisy times


def test_overheads_that_noise_does_not_explain_stay_apart():
    rows = [({"length": 3, "ngram": ngram}, 4, 2.0, 4e-3 * ngram) for ngram in (1, 2, 3, 4)]
    generator = np.random.default_rng(4)
    for _ in range(10):
        predicted, true = chosen_and_true_speedup(0.002, rows, generator)
        assert predicted == pytest.approx(true, rel=0.01)


def test_passes_are_those_of_the_operating_point():
    profile = invented(conditions=[(256, 1), (4096, 1)])
    profile = replace(profile, drafters=(lookup(profile, lookup_rows()), heads(profile)))
    request = PlanRequest(context_tokens=4096, max_nodes=8, raw=True)
    plan = requested_plan(profile, request)
    _, counted, static = options(profile, request, plan=plan)
    length, ngram = (value for _, value in counted.drafter.values)
    assert counted.step_s.value == pytest.approx(verify_s(length + 1, 4096, 1) + 1e-4 * ngram, rel=2e-3)
    assert counted.speedup.value == pytest.approx(
        counted.tokens_per_step.value / counted.step_s.value * plan.plain.step_s.value
    )
    assert static.step_s.value == pytest.approx(verify_s(static.tree.nodes, 4096, 1) + rest_s(static.tree), rel=2e-3)


def test_settings_beyond_the_budget_are_left_out():
    profile = invented()
    profile = replace(profile, drafters=(lookup(profile, lookup_rows()),))
    for most in (1, 2, 5, 9):
        result = options(profile, PlanRequest(max_nodes=most))
        assert len(result) == 1 + (most >= 2)
        assert all(item.max_nodes <= most for item in result)


def test_settings_of_larger_passes_than_timed_where_decoded_are_left_out():
    profile = invented(conditions=[(256, 1), (4096, 1)])
    first, last = profile.latencies
    few = LatencyTable(last.verify.tokens[:2], last.verify.timings[:2])
    profile = replace(profile, latencies=(first, replace(last, verify=few)))
    for most, expected in ((few.tokens[-1], ["model", "prompt-lookup"]), (few.tokens[-1] + 1, ["model"])):
        decodes = decodes_at(4096, plain_s(profile), [({"length": int(most) - 1, "ngram": 2}, int(most), 2.0, 1e-4)])
        measured = replace(
            profile, drafters=(MeasuredDrafter(setting=drafter_setting("prompt-lookup"), decodes=(decodes,)),)
        )
        assert [item.drafter.name for item in options(measured, PlanRequest(context_tokens=256))] == expected


def test_step_times_below_0_raise():
    """A step that took less than its pass alone takes less than nothing where passes are faster."""
    profile = invented(conditions=[(256, 1), (4096, 1)])
    plain = requested_plan(profile, PlanRequest(context_tokens=4096)).plain.step_s.value
    decodes = decodes_at(4096, plain, [({"length": 3, "ngram": 2}, 4, 2.0, 1e-5 - verify_s(4, 4096, 1))])
    profile = replace(
        profile, drafters=(MeasuredDrafter(setting=drafter_setting("prompt-lookup"), decodes=(decodes,)),)
    )
    with pytest.raises(InfeasibleError, match="extrapolated to 0 seconds or fewer"):
        options(profile, PlanRequest(context_tokens=256))


def test_dynamic_trees_have_as_many_nodes_as_their_passes():
    profile = invented()
    rows = [({"depth": 2, "nodes": 7, "top_k": 2}, 7, 2.0, 1e-4)]
    _, option = options(replace(profile, drafters=(lookup(profile, rows, name="eagle2"),)), PlanRequest())
    assert (option.tree, option.max_nodes) == (chain(2), 7)


def test_unmeasured_drafters_are_left_out():
    profile = invented(conditions=[(256, 1), (256, 4)], tables=(TABLE, TABLE))
    profile = replace(profile, drafters=(heads(profile), lookup(profile, lookup_rows(), top_k=0)))

    def names(**request):
        return [item.drafter.name for item in options(profile, PlanRequest(**request))]

    assert names() == ["model", "medusa", "prompt-lookup"]
    assert names(temperature=0.2) == ["model"]
    assert names(batch_size=4) == ["model", "medusa"]  # settings were decoded with by single sequences
    (single, _), (lookups,) = profile.drafters[0].latencies, profile.drafters[1:]
    single = replace(profile.drafters[0], latencies=(single,))
    at_four = options(replace(profile, drafters=(single, lookups)), PlanRequest(batch_size=4))
    assert [item.drafter.name for item in at_four] == ["model"]
    assert names(rule="sequoia") == ["model", "medusa", "prompt-lookup"]  # greedily all rules are one
    sampled = replace(profile, drafters=(lookup(profile, lookup_rows(), temperature=0.2),))
    assert [item.drafter.name for item in options(sampled, PlanRequest(temperature=0.2))] == [
        "model",
        "prompt-lookup",
    ]
    assert [item.drafter.name for item in options(sampled, PlanRequest(temperature=0.2, rule="sequoia"))] == ["model"]
    other = replace(profile, drafters=(lookup(profile, lookup_rows(), temperature=0.2, top_k=5),))
    assert [item.drafter.name for item in options(other, PlanRequest(temperature=0.2))] == ["model"]


def test_the_best_of_all_and_its_tree_file():
    profile = invented()
    slow = [({"length": 9, "ngram": 2}, 10, 9.0, 0.2)]  # most tokens of all
    for drafters, expected in (
        ((), "model"),
        ((lookup(profile, slow),), "model"),
        ((lookup(profile, lookup_rows()[-1:]), heads(profile)), None),
    ):
        made = replace(profile, drafters=drafters)
        choices = drafter_choices(made, PlanRequest())
        best = best_drafter(choices)
        assert best.option.speedup.value == max(item.option.speedup.value for item in choices)
        assert expected in (None, best.option.drafter.name)
        for item in choices:
            plan = requested_plan(made, PlanRequest())
            file = tree_file(plan, made, source="p.yaml", choice=item)
            assert file.provenance.speedup == item.option.speedup.value
            assert file.provenance.rule == item.option.rule
            assert file.tree == item.option.tree
            assert (file.drafter is None) == (item.option.drafter.name == "model")
        assert tree_file(plan, made, source="p.yaml") == tree_file(plan, made, source="p.yaml", choice=choices[0])


def test_intervals_grow_with_the_spread_of_sequences():
    profile = invented(verify_noise=0.05)
    drafter = lookup(profile, lookup_rows())
    (decodes,) = drafter.decodes
    noisy = replace(
        decodes,
        settings=tuple(
            replace(item, decoded=replace(item.decoded, seconds=Timing(item.decoded.seconds.samples_s * [0.8, 1.2])))
            for item in decodes.settings
        ),
    )
    same = options(replace(profile, drafters=(drafter,)), PlanRequest())[1].speedup
    differ = options(replace(profile, drafters=(replace(drafter, decodes=(noisy,)),)), PlanRequest())[1].speedup
    assert same.low <= same.value <= same.high
    assert differ.high - differ.low > 3 * (same.high - same.low)


CONTEXTS = (256, 1024, 4096)
TABLES = (
    OWN,
    AcceptanceTable([[0.6, 0.2], [0.4, 0.2], [0.2, 0.1]]),
    AcceptanceTable([[0.3, 0.1], [0.1, 0.1], [0.1, 0.05]]),
)
SLOWDOWNS = (1.0, 2.0, 4.0)
"""Seconds of heads without the pass, by context, relative to the shortest."""


def by_context():
    """Return a profile of heads and prompt lookup that change with the context, the latter for the better."""
    profile = invented(conditions=[(item, 1) for item in CONTEXTS])
    plain = [requested_plan(profile, PlanRequest(context_tokens=item)).plain.step_s.value for item in CONTEXTS]
    trees = [trees_at(at, table) for at, table in zip(CONTEXTS, TABLES, strict=True)]
    latencies = [drafting_at(at, slower=slower) for at, slower in zip(CONTEXTS, SLOWDOWNS, strict=True)]
    decodes = [
        decodes_at(
            at, step_s, [(values, most, 1 + gain * (tokens - 1), other_s) for values, most, tokens, other_s in rows]
        )
        for at, step_s, gain in zip(CONTEXTS, plain, (0.5, 1.0, 2.0), strict=True)
        for rows in [lookup_rows()]
    ]
    return replace(
        profile,
        drafters=(
            # the order in the file is no matter
            MeasuredDrafter(
                setting=drafter_setting("medusa"), latencies=tuple(latencies[::-1]), trees=tuple(reversed(trees))
            ),
            MeasuredDrafter(setting=drafter_setting("prompt-lookup"), decodes=tuple(decodes)),
        ),
    )


def between(context, values):
    """Return what lies on the straight line between two measured contexts."""
    return float(np.interp(context, CONTEXTS, values))


@pytest.mark.parametrize("context", [256, 512, 3000])
def test_tokens_and_seconds_are_interpolated_between_contexts(context):
    profile = by_context()
    request = PlanRequest(context_tokens=context, max_nodes=8, raw=True)
    plan = requested_plan(profile, request)
    _, static, counted = options(profile, request, plan=plan)

    def pass_s(nodes):
        return between(context, [verify_s(nodes, entry, 1) for entry in CONTEXTS])

    tokens = [expected_tokens(table, static.tree) for table in TABLES]
    assert static.tokens_per_step.value == pytest.approx(between(context, tokens))
    other_s = between(context, SLOWDOWNS) * rest_s(static.tree)
    assert static.step_s.value == pytest.approx(pass_s(static.tree.nodes) + other_s, rel=2e-3)
    assert static.speedup.value == pytest.approx(
        static.tokens_per_step.value / static.step_s.value * plan.plain.step_s.value
    )
    length, ngram = (value for _, value in counted.drafter.values)
    decodes = profile.drafters[1].decodes_at(0.0)
    (*result,) = (
        entry.decoded for item in decodes for entry in item.settings if entry.values == counted.drafter.values
    )
    assert counted.tokens_per_step.value == pytest.approx(between(context, [entry.tokens_per_step for entry in result]))
    assert counted.step_s.value == pytest.approx(pass_s(length + 1) + 1e-4 * ngram, rel=2e-3)
    assert counted.speedup.low <= counted.speedup.value <= counted.speedup.high


def test_nearest_context_holds_outside():
    medusa, lookups = by_context().drafters
    profile = invented(conditions=[(16, 1), (9000, 1)])
    profile = replace(profile, drafters=(replace(medusa, latencies=(drafting_at(16), drafting_at(9000))), lookups))
    for context, table, gain in ((16, TABLES[0], 0.5), (9000, TABLES[2], 2.0)):
        request = PlanRequest(context_tokens=context, max_nodes=8, raw=True)
        _, static, counted = options(profile, request)
        assert static.tokens_per_step.value == pytest.approx(expected_tokens(table, static.tree))
        length, ngram = (value for _, value in counted.drafter.values)
        assert counted.tokens_per_step.value == pytest.approx(1 + gain * 0.3 * ngram * (1 - 0.7**length), rel=0.02)


def with_speedup(option, speedup):
    return replace(option, prediction=replace(option.prediction, speedup=speedup))


class TestConfidence:
    def test_confidence_is_the_fraction_of_draws_near_the_fastest(self):
        profile = replace(invented(), drafters=(heads(invented()),))
        first, second = drafter_choices(profile, PlanRequest(temperature=0.0))
        draws = np.full(4, 9.0)
        chosen = replace(
            first, option=with_speedup(first.option, Estimate(9.0, 9.0, 9.0)), draws=draws, fastest_draws=draws
        )
        slower = with_speedup(second.option, Estimate(1.0, 1.0, 9.0))
        rival = replace(second, option=slower, fastest_draws=np.array([1.0, 9.08, 9.1, 20.0]))
        assert choice_confidence([chosen, rival]) == 0.5  # 9.08 is within 1 %
        assert choice_confidence([chosen]) == 1.0

    @pytest.mark.parametrize("beside_s", [10.0, -1e-2])
    def test_a_clear_loser_and_a_clear_winner_change_nothing(self, beside_s):
        rows = [({"length": 3, "ngram": 2}, 4, 3.0, max(beside_s, 1e-5 - verify_s(4, 256, 1)))]
        profile = replace(invented(), drafters=(lookup(invented(), rows),))
        choices = drafter_choices(profile, PlanRequest(temperature=0.0))
        assert (best_drafter(choices) is choices[1]) == (beside_s < 0)
        alone = choices[1:] if beside_s < 0 else choices[:1]
        assert choice_confidence(choices) == choice_confidence(alone)
