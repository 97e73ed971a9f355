"""Lookahead decoding: the target's own proposals further on, read beside the text in one pass (Fu et al., 2024).

No draft model takes part.  A window of proposals rides along in every pass of the target, which improves each of them;
the n-grams that come of it go to a pool, and those that begin with the root are verified as a tree in the same pass.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from treeopt.arrays import Bool, Int64
from treeopt.runtime.drafters.beams import merged
from treeopt.runtime.drafters.drafter import Proposal, SideTokens, Step
from treeopt.runtime.drafters.ngram_pool import NgramPool
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.model import NOTHING, States
from treeopt.trees.own_trees import LookaheadSetting

POOL_KEYS = 8192


class LookaheadDrafter:
    """Keeps a window of proposals, a pool of n-grams, and proposes those of the pool that begin with the root.

    The window has levels 0 … N-2 of W columns.  The token (l, j) stands j + l places behind the root; (0, 0) is the
    root itself, all others are proposals that ride along as side tokens.  Invariant, before and after every step:

    1. (l, j) sees the text, level 0 up to column j, and its own column down to itself: the root and j + l proposals,
       one at each place, in a row.
    2. (l, j) with l > 0 is the target's likeliest token behind (l-1, j), as it was seen when that was the last level;
       (1, 0) behind the token that the root has replaced.

    So (0, j), …, (N-2, j) and the token likeliest behind them are N in a row from one Jacobi trajectory.  After a pass
    these likeliest tokens are level N-1.  Every column's N-gram goes to the pool, level 0 is dropped, all others move
    up, and the new root takes the place (0, 0).  The window moves on by one token a step, also where the step accepted
    more: then proposals stand further behind the root than where they were made, which costs acceptance and nothing
    else (the authors' implementation does the same).

    At the start level 0 holds the tokens at the text's end, over again where it is shorter than W; each of the first
    N - 2 passes adds a level and drops none.  The pool begins with the N-grams of the text, and every N-gram of the
    text that is decoded is added.  It begins anew with each text.

    Memory: that of the window, (N - 1) W tokens, and of the pool, see `NgramPool`: at most `pool_keys * G` entries.

    Args:
        window: W, columns.
        ngram: N, tokens of an n-gram.
        candidates: G, most n-grams that are verified in a step, and that the pool keeps for a first token.
        pool_keys: most first tokens in the pool.

    Raises InvalidValueError for numbers out of range.
    """

    sampled = False
    wants = NOTHING

    def __init__(self, window: int, ngram: int, candidates: int, *, pool_keys: int = POOL_KEYS) -> None:
        self.setting = LookaheadSetting(window, ngram, candidates)
        self.max_tokens = self.setting.max_nodes
        self._texts = Texts(
            lambda texts: [LookaheadText(self.setting, NgramPool(ngram, pool_keys, candidates)) for _ in range(texts)]
        )

    def begin(self, text: int, tokens: Sequence[int], states: States | None = None) -> None:  # noqa: ARG002
        self._texts.begin(text).begin(tokens)

    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator] = ()) -> list[Proposal]:  # noqa: ARG002
        """Return the trees of the pools' n-grams below the roots, and the windows beside them."""
        return [self._texts[text].propose() for text in texts]

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        for text, step in zip(texts, steps, strict=True):
            self._texts[text].accept(step)

    def end(self, text: int) -> None:
        self._texts.end(text)

    def pool(self, text: int) -> NgramPool:
        """Return the pool of a text."""
        return self._texts[text].pool


class LookaheadText:
    """Window and pool of one text; see `LookaheadDrafter`."""

    def __init__(self, setting: LookaheadSetting, pool: NgramPool) -> None:
        self.setting = setting
        self.pool = pool
        self._levels: deque[list[int]] = deque(maxlen=setting.ngram - 1)
        self._tail: list[int] = []
        """The text's last N - 1 tokens, the root last."""
        self._sees = _sees(setting.window, setting.ngram - 1)
        self._depth = np.add.outer(np.arange(setting.ngram - 1), np.arange(setting.window)).ravel()
        self._masks: dict[tuple[int, int], tuple[Bool, Int64]] = {}
        """By the sizes of tree and window, at most (G + 1)(N - 1) + N of them."""

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a text whose last token is the root."""
        seeds = tokens[-self.setting.window :]
        self._levels.clear()
        self._levels.append([seeds[column % len(seeds)] for column in range(self.setting.window)])
        self.pool.clear()
        self._tail.clear()
        self._go_on(tokens)

    def propose(self) -> Proposal:
        """Return the tree of the pool's n-grams below the root, and the window beside it."""
        root = self._tail[-1]
        tree, tokens = merged(self.pool.find(root))
        window = [token for level in self._levels for token in level][1:]
        side = SideTokens(torch.tensor(window, dtype=torch.int64), *self._beside(tree.nodes, len(window)))
        return Proposal(tree, torch.tensor([root, *tokens]), side=side)

    def accept(self, step: Step) -> None:
        """Add what the pass gave to window and pool, and move on to the new root."""
        rows = len(step.logits)
        window = [0, *range(rows + 1 - len(self._levels) * self.setting.window, rows)]
        proposals = step.logits[window[-self.setting.window :]].argmax(-1).tolist()
        if len(self._levels) == self.setting.ngram - 1:
            for ngram in zip(*self._levels, proposals, strict=True):
                self.pool.add(ngram)
        self._levels.append(proposals)
        self._go_on(step.tokens)

    def _go_on(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text; the last is the root."""
        text = [*self._tail, *tokens]
        self.pool.add_all(text)
        self._tail = text[1 - self.setting.ngram :]
        self._levels[0][0] = text[-1]

    def _beside(self, nodes: int, window: int) -> tuple[Bool, Int64]:
        """Return what each token of the window beside so many nodes sees, and its depth; the same objects again."""
        found = self._masks.get((nodes, window))
        if found is None:
            visible = np.zeros((window, nodes + window), np.bool_)
            visible[:, 0] = True
            visible[:, nodes:] = self._sees[1 : window + 1, 1 : window + 1]
            found = self._masks[nodes, window] = visible, self._depth[1 : window + 1]
        return found


def _sees(window: int, levels: int) -> Bool:
    """Return bool (levels * window, levels * window): which tokens of the window each sees, level after level."""
    level, column = (index.ravel() for index in np.indices((levels, window)))
    first = (level == 0) & (column <= column[:, None])
    own = (level <= level[:, None]) & (column == column[:, None])
    seen: Bool = first | own
    return seen
