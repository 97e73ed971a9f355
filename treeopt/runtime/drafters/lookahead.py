"""Lookahead decoding: the target drafts n-grams of future tokens in its own verification passes (Fu et al., 2024).

Every pass of the target also updates a window of guesses by Jacobi iteration.  The n-grams along its columns go to a pool,
and those that begin with the root are verified as a tree in the same pass.  No draft model takes part.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from treeopt.arrays import Bool, Int64
from treeopt.runtime.drafters.beams import Beam, merge_beams
from treeopt.runtime.drafters.drafter import Proposal, SideTokens, Step
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.model import HiddenStates
from treeopt.trees.drafter_parameters import LookaheadSetting

POOL_KEYS = 8192
"""First tokens in the pool of a sequence."""
CACHED_MASKS = 256
"""One for each number of tree nodes, and of window tokens while the window grows."""


class LookaheadSequence:
    """Window and pool of one sequence."""

    ready = True

    def __init__(self, setting: LookaheadSetting) -> None:
        self.setting = setting
        self._levels: deque[list[int]] = deque(maxlen=setting.ngram - 1)
        self._tail: list[int] = []
        """The last N - 1 committed tokens, the root last."""

    @property
    def root(self) -> int:
        return self._tail[-1]

    def begin(self, tokens: Sequence[int], states: HiddenStates | None = None) -> None:  # noqa: ARG002
        window, seeds = self.setting.window, tokens[-self.setting.window :]
        self.pool = NgramPool(self.setting.ngram, POOL_KEYS, self.setting.candidates)
        self._levels.clear()
        self._levels.append([seeds[column % len(seeds)] for column in range(window)])
        self._tail = []
        self._commit(tokens)

    def propose(self) -> Proposal:
        tree, tokens = merge_beams(self.pool.find(self.root))
        window = [token for level in self._levels for token in level][1:]
        side = SideTokens(torch.tensor(window, dtype=torch.int64), *side_mask(self.setting, tree.nodes, len(window)))
        return Proposal(tree, torch.tensor([self.root, *tokens]), side=side)

    def accept(self, step: Step) -> None:
        """Move the new level into the window, and the n-gram of each column into the pool."""
        rows = len(step.logits)
        window_rows = [0, *range(rows + 1 - len(self._levels) * self.setting.window, rows)]
        new_level = step.logits[window_rows[-self.setting.window :]].argmax(-1).tolist()
        if len(self._levels) == self.setting.ngram - 1:
            for ngram in zip(*self._levels, new_level, strict=True):
                self.pool.add(ngram)
        self._levels.append(new_level)  # drops level 0 of a full window
        self._commit(step.tokens)

    def _commit(self, tokens: Sequence[int]) -> None:
        """Append committed tokens, the last of which is the root."""
        tail = [*self._tail, *tokens]
        self.pool.add_all(tail)
        self._tail = tail[1 - self.setting.ngram :]
        self._levels[0][0] = tail[-1]


class LookaheadDrafter(SequenceDrafter[LookaheadSequence]):
    """Drafts the n-grams of a pool that begin with the root, and fills the pool from a window of guesses.

    The window has levels 0 … N-2 of W columns.  Token (l, j) is at position j + l after the root; (0, 0) is the root
    itself, all others are guesses, fed as side tokens.  Invariant, before and after every step:

    1. (l, j) attends to the committed tokens, to level 0 up to column j, and to its own column down to itself: the root
       and j + l guesses, one at each position.
    2. (l, j) with l > 0 is the target's most likely token after (l-1, j), from the pass in which that was the last
       level; (1, 0) after the token that the root has replaced.

    So (0, j), …, (N-2, j) and the most likely token after them are an N-gram of one Jacobi trajectory.  After a pass
    these most likely tokens are level N-1.  The N-gram of every column goes to the pool, level 0 is dropped, the others
    move up, and the new root becomes (0, 0).  The window advances by one token in each step, even if the step accepted
    more: the guesses are then further from the root than where they were made, which costs only acceptance (the
    authors' implementation does the same).

    At the start, level 0 has the last W tokens of the prompt, repeated if it is shorter; each of the first N - 2 passes
    adds a level and drops none.  The pool starts with the N-grams of the prompt, and receives those of every committed
    token.

    Memory: (N - 1) W tokens of the window, and at most `POOL_KEYS * G` entries of the pool.

    Args:
        window: W, columns.
        ngram: N, tokens of an n-gram.
        candidates: G, n-grams that are verified in a step, and that the pool keeps for each first token.

    Raises InvalidValueError for numbers out of range.
    """

    def __init__(self, window: int, ngram: int, candidates: int) -> None:
        self.setting = LookaheadSetting(window, ngram, candidates)
        self.max_tokens = self.setting.max_nodes
        super().__init__(lambda count: [LookaheadSequence(self.setting) for _ in range(count)])

    def _fill(self, states: Sequence[LookaheadSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        return [state.propose() for state in states]


@lru_cache(maxsize=CACHED_MASKS)
def side_mask(setting: LookaheadSetting, nodes: int, tokens: int) -> tuple[Bool, Int64]:
    """Return mask and depths of the first `tokens` side tokens after `nodes` tree nodes, the same objects each time."""
    level, column = (index.ravel()[: tokens + 1] for index in np.indices((setting.ngram - 1, setting.window)))
    level_0 = (level == 0) & (column <= column[:, None])
    same_column = (level <= level[:, None]) & (column == column[:, None])
    visible = np.zeros((tokens, nodes + tokens), np.bool_)
    visible[:, 0] = True
    visible[:, nodes:] = (level_0 | same_column)[1:, 1:]
    return visible, (level + column)[1:]


class NgramPool:
    """N-grams by their first token, the key; the other `ngram` - 1 tokens are a continuation of it.

    A key has at most `per_key` different continuations; a new one evicts the one added longest ago.  A new key evicts
    the least recently used of `capacity_keys` keys.  Adding and finding n-grams touch one key only.

    Memory: at most `capacity_keys * per_key` continuations; a token takes 40 bytes in CPython, a continuation 64 more,
    a key 320 more.
    """

    def __init__(self, ngram: int, capacity_keys: int, per_key: int) -> None:
        self.ngram = ngram
        self.capacity_keys = capacity_keys
        self.per_key = per_key
        self._continuations: OrderedDict[int, list[Beam]] = OrderedDict()
        """Keys in order of use, continuations in order of addition, the newest last."""

    def add(self, ngram: Sequence[int]) -> None:
        """Add an n-gram as the newest of its key."""
        key, continuation = ngram[0], tuple(ngram[1:])
        continuations = self._continuations.setdefault(key, [])
        self._continuations.move_to_end(key)
        if continuation in continuations:
            continuations.remove(continuation)
        continuations.append(continuation)
        del continuations[: -self.per_key]
        if len(self._continuations) > self.capacity_keys:
            self._continuations.popitem(last=False)

    def add_all(self, tokens: Sequence[int]) -> None:
        for first in range(len(tokens) - self.ngram + 1):
            self.add(tokens[first : first + self.ngram])

    def find(self, key: int) -> list[Beam]:
        """Return the continuations of a key, newest first."""
        if key not in self._continuations:
            return []
        self._continuations.move_to_end(key)
        return self._continuations[key][::-1]
