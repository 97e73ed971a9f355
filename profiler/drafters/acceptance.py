"""The acceptance of heads that fill static trees, sequence by sequence, and the accepted ranks below every root."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Int64
from treeopt.profiler.acceptance.heads import (
    LAST,
    build_head_sequence,
    child_ranks,
    count_children,
    head_children,
)
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.processes.processes import Numbers
from treeopt.records.acceptance_counts import AcceptanceCounts, combine_counts
from treeopt.records.accepted_ranks import RootRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance, select_categories
from treeopt.records.measured_drafter import MeasuredTrees
from treeopt.records.rules import TARGET_RULE
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.models.transformer import Transformer


class RootCounts(NamedTuple):
    """One sequence, with every position as a root once."""

    counts: AcceptanceCounts
    ranks: Int64
    """int64 (roots, D): the rank of the sequence's token at each depth below each root, `REJECTED` for none."""

    @property
    def numbers(self) -> Numbers:
        """One row for the checkpoint: D, the number of ranks, the ranks, and the sums."""
        return (self.ranks.shape[1], self.ranks.size, *map(float, self.ranks.ravel()), *self.counts.numbers)

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> "RootCounts":
        depths, size = int(numbers[0]), int(numbers[1])
        ranks = np.array(numbers[2 : 2 + size]).astype(np.int64).reshape(-1, depths)
        return cls(AcceptanceCounts.from_numbers(np.array(numbers[2 + size :]), depths), ranks)


def count_sequences(
    count: Callable[[int], Numbers],
    numbers: Iterable[int],
    kind: str,
    checkpoint: Checkpoint,
    tick: Callable[[], object],
    deadline: Deadline = NO_DEADLINE,
) -> dict[int, Numbers]:
    """Return one row for each sequence, counting those that the checkpoint lacks.

    Args:
        count: returns the row of a prompt number; empty if its sequence ends too early.
        numbers: of the prompts.
        kind: of the entries in the checkpoint.
        checkpoint: where every row is stored.
        tick: called after every sequence.
        deadline: after which no sequence is counted, if two are.
    """
    rows = checkpoint.rows(kind)
    for number in numbers:
        if number not in rows:
            if deadline.over() and sum(map(bool, rows.values())) >= 2:
                break
            rows[number] = count(number)
            checkpoint.append(kind, number, rows[number])
        tick()
    return rows


def measure_head_acceptance(
    count: Callable[[int], RootCounts | None],
    numbers: Iterable[int],
    sampling: Sampling,
    context_tokens: int,
    kind: str,
    checkpoint: Checkpoint,
    tick: Callable[[], object],
    deadline: Deadline = NO_DEADLINE,
    categories: Sequence[str] = (),
) -> MeasuredTrees:
    """Return the acceptance over some sequences; see `count_sequences`.

    Args:
        count: counts the sequence of a prompt number; returns None if it ends too early.
        numbers: of the prompts.
        sampling: how the sequences were sampled.
        context_tokens: sequence length halfway through decoding.
        kind: of the entries in the checkpoint.
        checkpoint: where the counts of every sequence are stored.
        tick: called after every sequence.
        deadline: see `count_sequences`.
        categories: one for each prompt, `""` for none.

    Raises TreeoptError if the sequences are too few.
    """

    def count_row(number: int) -> Numbers:
        counts = count(number)
        return () if counts is None else counts.numbers

    rows = count_sequences(count_row, numbers, kind, checkpoint, tick, deadline)
    sequences = _fill_missing(
        [RootCounts.from_numbers(rows[number]) if rows[number] else None for number in sorted(rows)]
    )
    sums = combine_counts([sequence.counts for sequence in sequences])
    acceptance = MeasuredAcceptance(
        rule=TARGET_RULE,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        prompts=int(np.count_nonzero(sums.reached[:, 0])),
        positions=int(sums.reached[:, 0].sum()),
        table=sums.table(),
        sequences=sums,
        categories=select_categories(categories, sorted(rows)),
    )
    depths = sums.reached.shape[1]
    ranks = RootRanks([sequence.ranks[:, :depths].tolist() for sequence in sequences])
    return MeasuredTrees(acceptance=acceptance, root_ranks=ranks, context_tokens=context_tokens)


def root_counter(
    drafter: LoadedDrafter,
    prompts: Mapping[int, Sequence[int]],
    generated: Mapping[int, Sequence[int]],
    *,
    sampling: Sampling,
    branching: int,
    depth: int,
) -> Callable[[int], RootCounts | None]:
    """Return a function that counts the sequence of a prompt number.

    Args:
        drafter: heads that fill static trees.
        prompts: token ids, by number.
        generated: the target's tokens after each prompt.
        sampling: how they were sampled.
        branching: children per node.
        depth: levels of an EAGLE head; other heads have their own number.
    """
    target, heads = drafter.target, drafter.heads
    assert isinstance(target, Transformer)  # heads are loaded for no other
    requested_states = LAST if isinstance(heads, MedusaHeads) else heads.requested_states

    def count(number: int) -> RootCounts | None:
        if number not in prompts:
            return None
        sequence = build_head_sequence(target, prompts[number], generated[number], sampling, requested_states)
        children = head_children(heads, sequence, branching, depth)
        return RootCounts(count_children(children, sequence), child_ranks(children, sequence.tokens))

    return count


def _fill_missing(sequences: Sequence[RootCounts | None]) -> list[RootCounts]:
    """Return zero counts for sequences that end too early, so that every context has the same number of sequences."""
    first = next(sequence for sequence in sequences if sequence is not None)
    reached, accepted = np.zeros_like(first.counts.reached), np.zeros_like(first.counts.accepted)
    zero = RootCounts(AcceptanceCounts(reached, accepted), first.ranks[:0])
    return [zero if sequence is None else sequence for sequence in sequences]
