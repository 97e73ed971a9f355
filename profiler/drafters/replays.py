"""Drafters whose settings are replayed along sequences of plain decoding, without decoding: prompt lookup and DDTree.

Under rule `target` the steps are those of decoding, in distribution above temperature 0: it accepts a draft token that
equals the sampled one.  The DDTree of a budget is a prefix of every larger one.  So one number for each root and depth
determines the steps of all budgets: the tokens of the smallest tree that contains the sequence's token at that depth.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import add

import numpy as np

from treeopt.arrays import Float64, Int64, Integers
from treeopt.planner.costs import StepCosts
from treeopt.planner.drafter_costs import relative_step_s
from treeopt.profiler.acceptance.heads import block_marginals, build_head_sequence
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.drafters.acceptance import count_sequences
from treeopt.profiler.drafters.decodes import DecodedSequence, count_passes, join_sequences
from treeopt.profiler.drafters.plain_sequences import PlainSequences
from treeopt.profiler.latency.rounds import Recorder
from treeopt.profiler.processes.processes import Numbers
from treeopt.records.measured_acceptance import select_categories
from treeopt.records.measured_drafter import ReplayedSequences
from treeopt.runtime.drafters.dflash import DFlashHead
from treeopt.runtime.drafters.lookup_replay import MAX_REPLAYED_TOKENS, LookupReplay, ReplayedSteps
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.models.transformer import Transformer
from treeopt.trees.drafter_parameters import PromptLookupSetting


def replay_lookups(
    settings: Sequence[PromptLookupSetting], sequences: PlainSequences, categories: Sequence[str] = ()
) -> list[ReplayedSequences | None]:
    """Return the steps of prompt lookup with each setting; None if all sequences are too short for a step.

    Args:
        settings: of prompt lookup.
        sequences: of plain decoding.
        categories: one for each prompt, `""` for none.
    """
    by_setting: list[dict[int, ReplayedSteps]] = [{} for _ in settings]
    for number, tokens in sequences.tokens.items():
        replay, sequence = LookupReplay(settings), list(sequences.prompts[number])
        steps = dict.fromkeys(settings, ReplayedSteps(0, 0, 0))
        for first in range(0, len(tokens), MAX_REPLAYED_TOKENS):
            new = tokens[first : first + MAX_REPLAYED_TOKENS]
            replay.add(number, sequence, new)
            sequence += new
            for setting, more in zip(replay.settings, replay.replay(), strict=True):
                steps[setting] = ReplayedSteps(*map(add, steps[setting], more))
        for replayed, setting in zip(by_setting, settings, strict=True):
            if steps[setting].steps:
                replayed[number] = steps[setting]
    return [
        _join_lookups(list(replayed.values()), setting, select_categories(categories, replayed)) if replayed else None
        for replayed, setting in zip(by_setting, settings, strict=True)
    ]


def _join_lookups(
    replays: Sequence[ReplayedSteps], setting: PromptLookupSetting, categories: tuple[str, ...]
) -> ReplayedSequences:
    by_sequence = [{1: replay.steps - replay.drafted, setting.max_nodes: replay.drafted} for replay in replays]
    totals = {size: sum(passes[size] for passes in by_sequence) for size in by_sequence[0]}
    sizes = [size for size, passes in totals.items() if passes]
    return ReplayedSequences(
        tokens=tuple(replay.tokens for replay in replays),
        steps=tuple(replay.steps for replay in replays),
        pass_tokens=tuple(sizes),
        passes=tuple(totals[size] for size in sizes),
        passes_by_sequence=tuple(tuple(passes[size] for size in sizes) for passes in by_sequence) if categories else (),
        categories=categories,
    )


def count_needed_tokens(
    drafter: LoadedDrafter,
    sequences: PlainSequences,
    max_tokens: int,
    recorder: Recorder,
    deadline: Deadline = NO_DEADLINE,
) -> dict[int, Int64]:
    """Return how large DDTrees have to be, by prompt number.

    Args:
        drafter: DDTree, with its head.
        sequences: of plain decoding.
        max_tokens: of the largest tree.
        recorder: stores the counts of every sequence.
        deadline: see `count_sequences`.

    Returns int64 (roots, D): tokens of the smallest tree with the sequence's token at each depth, `NEVER` for none.
    """
    from treeopt.runtime.drafters.dflash import best_first  # numba is slow to import

    target, head = drafter.target, drafter.heads
    assert isinstance(target, Transformer)  # heads are loaded for no other

    def count(number: int) -> Numbers:
        prompt, tokens = sequences.prompts[number], sequences.tokens[number]
        sequence = build_head_sequence(target, prompt, tokens, sequences.point.sampling, head.requested_states)
        marginals = block_marginals(head, sequence, max_tokens - 1)
        needed = best_first.count_tokens_to_reach(marginals.log_probs, marginals.ranks, max_tokens)
        return tuple(map(float, needed.ravel()))

    kind = f"needed tokens {drafter.label} {sequences.point.name}"
    rows = count_sequences(count, sequences.tokens, kind, recorder, deadline)
    return {
        number: np.array(row, np.int64).reshape(-1, head.levels)
        for number, row in rows.items()
        if number in sequences.tokens
    }


def count_steps(needed: Int64, budgets: Int64) -> tuple[Int64, Int64]:
    """Return the tokens and steps of one sequence with each budget, both int64 (budgets,).

    A sequence is replayed up to the last step that its end cannot truncate with any budget.

    Args:
        needed: int64 (roots, D), as `count_needed_tokens` returns it.
        budgets: int64 (budgets,).
    """
    roots, levels = needed.shape
    committed = 1 + (needed[:, :, None] <= budgets).sum(axis=1)
    tokens, steps = np.zeros((2, len(budgets)), np.int64)
    while (running := tokens < roots - levels).any():
        tokens += np.where(running, committed[np.minimum(tokens, roots - 1), np.arange(len(budgets))], 0)
        steps += running
    return tokens, steps


def replay_budgets(
    budgets: Sequence[int],
    needed: Mapping[int, Int64],
    head: DFlashHead,
    categories: Sequence[str] = (),
) -> list[ReplayedSequences | None]:
    """Return the steps with each budget; None if all sequences are too short for a step.

    Args:
        budgets: tokens of the trees, root included.
        needed: by prompt number, as `count_needed_tokens` returns it.
        head: that drafts.
        categories: one for each prompt, `""` for none.
    """
    long_enough = {number: rows for number, rows in sorted(needed.items()) if len(rows) > head.levels}
    if not long_enough:
        return [None] * len(budgets)
    counts = [count_steps(rows, np.array(budgets)) for rows in long_enough.values()]
    tokens, steps = (np.stack(columns, axis=1).tolist() for columns in zip(*counts, strict=True))
    selected = select_categories(categories, list(long_enough))
    most = sum(head.tokens**depth for depth in range(head.levels + 1))
    return [
        ReplayedSequences(
            tokens=tuple(budget_tokens),
            steps=tuple(budget_steps),
            pass_tokens=(min(budget, most),),
            passes=(sum(budget_steps),),
            passes_by_sequence=tuple((count,) for count in budget_steps) if selected else (),
            categories=selected,
        )
        for budget, budget_tokens, budget_steps in zip(budgets, tokens, steps, strict=True)
    ]


def step_seconds(
    costs: StepCosts, plain: Sequence[DecodedSequence], probes: Sequence[Sequence[DecodedSequence]]
) -> Callable[[Integers], Float64]:
    """Return a function from sizes of the target's passes to the seconds of whole steps.

    Drafting, building the tree and the rest of the host's work take what the decoded steps took beyond their passes, linear
    between the sizes of the probes.

    Args:
        costs: of the target's passes.
        plain: sequences decoded plainly.
        probes: the same sequences decoded with the smallest and the largest budget.
    """
    relative = relative_step_s(join_sequences(plain), [join_sequences(probe) for probe in probes])
    sizes, overheads_s = [], []
    for probe, ratio in zip(probes, relative, strict=True):
        passes = count_passes(probe)
        counts = np.array(list(passes.values()))
        pass_s = float(costs.verify.at(np.array(list(passes))) @ counts) / counts.sum()
        sizes.append(max(passes))
        overheads_s.append(max(0.0, float(costs.plain_s[0] * ratio) - pass_s))
    return lambda tokens: costs.verify.at(tokens) + np.interp(tokens, sizes, overheads_s)
