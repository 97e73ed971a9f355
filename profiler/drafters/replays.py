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
from treeopt.planner.drafter_costs import mean_pass_s, relative_step_s
from treeopt.profiler.acceptance.heads import block_marginals, build_head_sequence
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.drafters.acceptance import count_sequences
from treeopt.profiler.drafters.decodes import DecodedSequence, join_sequences
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
    sizes = [size for size in (1, setting.max_nodes) if any(passes[size] for passes in by_sequence)]
    return ReplayedSequences(
        tokens=tuple(replay.tokens for replay in replays),
        pass_tokens=tuple(sizes),
        passes=tuple(tuple(passes[size] for size in sizes) for passes in by_sequence),
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
            pass_tokens=(min(budget, most),),
            passes=tuple((count,) for count in budget_steps),
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
    decoded = [join_sequences(probe) for probe in probes]
    steps_s = costs.plain_s[0] * relative_step_s(join_sequences(plain), decoded)
    sizes = [sequences.pass_tokens[-1] for sequences in decoded]
    overheads_s = np.maximum(0.0, steps_s - [mean_pass_s(sequences, costs) for sequences in decoded])
    return lambda tokens: costs.verify.at(tokens) + np.interp(tokens, sizes, overheads_s)
