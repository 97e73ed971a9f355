"""The acceptance of heads that fill static trees, sequence by sequence, and the accepted ranks below every root."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from treeopt.profiler.acceptance.heads import (
    LAST,
    build_head_sequence,
    child_ranks,
    count_children,
    head_children,
)
from treeopt.profiler.acceptance.per_prompt import SequenceCounts
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.drafters.plain_sequences import PlainSequences
from treeopt.profiler.latency.rounds import Recorder
from treeopt.profiler.processes.processes import Numbers
from treeopt.profiler.settings import Settings
from treeopt.records.acceptance_counts import AcceptanceCounts, combine_counts
from treeopt.records.accepted_ranks import RootRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance, select_categories
from treeopt.records.measured_drafter import MeasuredTrees
from treeopt.records.rules import TARGET_RULE
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.models.transformer import Transformer


def count_sequences(
    count: Callable[[int], Numbers],
    numbers: Iterable[int],
    kind: str,
    recorder: Recorder,
    deadline: Deadline = NO_DEADLINE,
) -> dict[int, Numbers]:
    """Return one row for each sequence, counting those that the checkpoint lacks.

    Args:
        count: returns the row of a prompt number; empty if its sequence ends too early.
        numbers: of the prompts.
        kind: of the entries in the checkpoint.
        recorder: stores every row; its `tick` is called after every sequence.
        deadline: after which no sequence is counted, if two are.
    """
    rows = recorder.checkpoint.rows(kind)
    for number in numbers:
        if number not in rows:
            if deadline.over() and sum(map(bool, rows.values())) >= 2:
                break
            rows[number] = count(number)
            recorder.checkpoint.append(kind, number, rows[number])
        recorder.tick()
    return rows


def measure_trees(
    drafter: LoadedDrafter,
    sequences: PlainSequences,
    settings: Settings,
    recorder: Recorder,
    deadline: Deadline = NO_DEADLINE,
    categories: Sequence[str] = (),
) -> MeasuredTrees:
    """Return the acceptance along sequences of plain decoding.

    Prompts whose sequences end before the context length count as sequences without positions.

    Args:
        drafter: heads that fill static trees.
        sequences: of plain decoding.
        settings: children per node, and the levels of an EAGLE head; other heads have their own number.
        recorder: stores the counts of every sequence.
        deadline: see `count_sequences`.
        categories: one for each prompt, `""` for none.

    Raises TreeoptError if the sequences are too few.
    """
    point = sequences.point

    def count_row(number: int) -> Numbers:
        if number not in sequences.prompts:
            return ()
        return count_roots(drafter, sequences, number, settings.branching, settings.depth).numbers

    numbers = [
        number for number in range(len(point.source)) if number in sequences.tokens or number not in sequences.prompts
    ]
    kind = f"acceptance {drafter.label} {point.name}"
    rows = count_sequences(count_row, numbers, kind, recorder, deadline)
    counted = _fill_missing(
        [SequenceCounts.from_numbers(rows[number]) if rows[number] else None for number in sorted(rows)]
    )
    sums = combine_counts([sequence.counts for sequence in counted])
    acceptance = MeasuredAcceptance(
        rule=TARGET_RULE,
        sampling=point.sampling,
        prompts=sums.prompts,
        positions=sums.positions,
        table=sums.table(),
        sequences=sums,
        categories=select_categories(categories, sorted(rows)),
    )
    depths = sums.reached.shape[1]
    prompts = [sequences.prompts[number] for number in sequences.tokens]
    new_tokens = [min(len(tokens), sequences.positions) for tokens in sequences.tokens.values()]
    return MeasuredTrees(
        acceptance=acceptance,
        root_ranks=RootRanks([sequence.ranks[:, :depths].tolist() for sequence in counted]),
        context_tokens=point.middle_tokens(prompts, new_tokens),
    )


def count_roots(
    drafter: LoadedDrafter, sequences: PlainSequences, number: int, branching: int, depth: int
) -> SequenceCounts:
    """Return the counts along the counted positions of one sequence; arguments as in `measure_trees`."""
    target, heads = drafter.target, drafter.heads
    assert isinstance(target, Transformer)  # heads are loaded for no other
    requested_states = LAST if isinstance(heads, MedusaHeads) else heads.requested_states
    prompt, tokens = sequences.prompts[number], sequences.tokens[number][: sequences.positions]
    sequence = build_head_sequence(target, prompt, tokens, sequences.point.sampling, requested_states)
    children = head_children(heads, sequence, branching, depth)
    return SequenceCounts(count_children(children, sequence), child_ranks(children, sequence.tokens))


def _fill_missing(sequences: Sequence[SequenceCounts | None]) -> list[SequenceCounts]:
    """Return zero counts for sequences that end too early, so that every context has the same number of sequences."""
    first = next(sequence for sequence in sequences if sequence is not None)
    reached, accepted = np.zeros_like(first.counts.reached), np.zeros_like(first.counts.accepted)
    zero = SequenceCounts(AcceptanceCounts(reached, accepted), first.ranks[:0])
    return [zero if sequence is None else sequence for sequence in sequences]
