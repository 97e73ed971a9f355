"""The acceptance of heads that fill static trees, text by text, with the ranks below every root."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64
from treeopt.profiler.acceptance.heads import (
    HeadText,
    children_counts,
    dflash_children,
    eagle_children,
    head_text,
    medusa_children,
)
from treeopt.profiler.budget import UNLIMITED, Slice
from treeopt.profiler.journal import Journal
from treeopt.records.acceptance_counts import REJECTED, AcceptanceCounts, text_sums
from treeopt.records.categories import text_categories
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.root_ranks import RootRanks
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.dflash import DFlashHead
from treeopt.runtime.drafters.eagle import EagleHead
from treeopt.runtime.drafters.loaded import LoadedDrafter
from treeopt.runtime.models.transformer import Transformer


class CountedRoots(NamedTuple):
    """One text, every position of it a root once."""

    counts: AcceptanceCounts
    ranks: Int64
    """int64 (roots, D): the rank of the text's token at each depth below each root, `REJECTED` for none."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it in one row, as a journal keeps it: D, the sums, and the ranks."""
        return (self.ranks.shape[1], self.ranks.size, *map(float, self.ranks.ravel()), *self.counts.numbers)

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "CountedRoots":
        """Return the text of which `numbers` gave a row."""
        depths, size = int(numbers[0]), int(numbers[1])
        ranks = np.array(numbers[2 : 2 + size]).astype(np.int64).reshape(-1, depths)
        return cls(AcceptanceCounts.from_numbers(np.array(numbers[2 + size :]), depths), ranks)


class CountedAcceptance(NamedTuple):
    """What all texts come to."""

    acceptance: MeasuredAcceptance
    ranks: RootRanks


def counted_acceptance(
    count: Callable[[int], CountedRoots | None],
    numbers: Iterable[int],
    sampling: Sampling,
    kind: str,
    journal: Journal,
    tick: Callable[[], object],
    time: Slice = UNLIMITED,
    categories: Sequence[str] = (),
) -> CountedAcceptance:
    """Return the acceptance over some texts, counting those that the journal does not hold.

    Args:
        count: from a text's number to what was counted on it, None where it ends before.
        numbers: of the texts.
        sampling: how they were sampled.
        kind: their name in the journal.
        journal: where each is kept.
        tick: called after every text.
        time: after which no further text is begun, two long enough ones and those of the journal excepted.
        categories: one for each prompt, `""` for none.

    Raises TreeoptError for too little text.
    """
    known = {entry.key: entry.values for entry in journal.entries(kind)}
    for number in numbers:
        if number not in known:
            if time.over() and sum(map(bool, known.values())) >= 2:
                break
            counted = count(number)
            known[number] = () if counted is None else counted.numbers
            journal.append(kind, number, known[number])
        tick()
    found = _all_texts([CountedRoots.of(known[number]) if known[number] else None for number in sorted(known)])
    sums = text_sums([each.counts for each in found])
    acceptance = MeasuredAcceptance(
        rule=GIVEN_TOKENS,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        prompts=int(np.count_nonzero(sums.reached[:, 0])),
        positions=int(sums.reached[:, 0].sum()),
        table=sums.table(),
        texts=sums,
        categories=text_categories(categories, sorted(known)),
    )
    depths = sums.reached.shape[1]
    return CountedAcceptance(acceptance, RootRanks([each.ranks[:, :depths].tolist() for each in found]))


def counter(
    drafter: LoadedDrafter,
    prompts: Mapping[int, Sequence[int]],
    texts: Mapping[int, Sequence[int]],
    *,
    sampling: Sampling,
    branching: int,
    depth: int,
) -> Callable[[int], CountedRoots | None]:
    """Return what counts one prompt's text by its number.

    Args:
        drafter: one that fills static trees.
        prompts: token ids, by number.
        texts: what the target generated after each.
        sampling: how.
        branching: tokens after each node that are counted.
        depth: levels of an EAGLE head; Medusa and DFlash have their own number.
    """
    target, heads = drafter.target, drafter.heads
    assert isinstance(target, Transformer)  # heads are loaded for no other

    def count(number: int) -> CountedRoots | None:
        if number not in prompts:
            return None
        if isinstance(heads, DFlashHead):
            text = head_text(target, prompts[number], texts[number], sampling, heads.wants)
            return counted_roots(dflash_children(heads, text, branching), text)
        if isinstance(heads, EagleHead):
            text = head_text(target, prompts[number], texts[number], sampling, heads.wants)
            return counted_roots(eagle_children(heads, text, branching, depth), text)
        text = head_text(target, prompts[number], texts[number], sampling)
        return counted_roots(medusa_children(heads, text, branching), text)

    return count


def counted_roots(children: Tensor, text: HeadText) -> CountedRoots:
    """Return the sums and the ranks of one text; arguments as for `children_counts`."""
    places, depths, _ = children.shape
    ranks = np.full((places, depths), REJECTED, np.int64)
    for depth in range(min(depths, places)):
        hits = children[: places - depth, depth] == text.tokens[depth:, None]
        rank = torch.where(hits.any(1), hits.int().argmax(1), REJECTED)
        ranks[: len(rank), depth] = rank.cpu().numpy()
    return CountedRoots(children_counts(children, text), ranks)


def _all_texts(found: Sequence[CountedRoots | None]) -> list[CountedRoots]:
    """Return all texts, those that ended before without a position, so that texts are the same at every context."""
    counted = next(each for each in found if each is not None)
    reached, accepted = (np.zeros_like(each) for each in (counted.counts.reached, counted.counts.accepted))
    nothing = CountedRoots(AcceptanceCounts(reached, accepted), counted.ranks[:0])
    return [nothing if each is None else each for each in found]
