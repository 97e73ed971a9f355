"""An invented draft model, its record, and dynamic trees grown from it token by token: all in plain loops."""

import numpy as np

from treeopt.records.draft_record import DraftRecord

VOCABULARY = 6
Path = tuple[int, ...]


class InventedDraft:
    """Distributions that hang on the whole text; some are certain of one token, some have exact ties."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._known: dict[Path, list[np.float32]] = {}

    def log_probs(self, text: Path) -> list[np.float32]:
        if text not in self._known:
            rng = np.random.default_rng([self._seed, *text])
            logits = rng.normal(0, 2, VOCABULARY)
            if rng.random() < 0.2:
                logits[rng.integers(VOCABULARY)] += 80  # rounds to a probability of 1
            if rng.random() < 0.2:
                logits[:2] = logits.max()
            distribution = logits - logits.max()
            distribution = distribution - np.log(np.exp(distribution).sum())
            self._known[text] = list(np.minimum(distribution, 0).astype(np.float32))
        return self._known[text]

    def ranked(self, text: Path) -> list[int]:
        distribution = self.log_probs(text)
        return sorted(range(VOCABULARY), key=lambda token: (-distribution[token], token))


def beams(
    draft: InventedDraft, text: Path, top_k: int, depth: int
) -> tuple[list[list[Path]], list[tuple[Path, np.float32]]]:
    """Return the paths fed at each depth, and the pool of candidates in the order of drafting."""
    fed, pool = [[()]], []
    scores = {(): np.float32(0)}
    for _ in range(depth):
        level = []
        for path in fed[-1]:
            distribution = draft.log_probs(text + path)
            for token in draft.ranked(text + path)[:top_k]:
                child = (*path, token)
                scores[child] = np.float32(scores[path] + distribution[token])
                level.append(child)
        pool += level
        fed.append(sorted(level, key=lambda path: -scores[path])[:top_k])  # sorted() keeps the order of equals
    return fed[:depth], [(path, scores[path]) for path in pool]


def selected(draft: InventedDraft, text: Path, top_k: int, depth: int, nodes: int) -> set[Path]:
    """Return the paths of the tree that is verified, the root's () included."""
    _, pool = beams(draft, text, top_k, depth)
    best = sorted(pool, key=lambda item: -item[1])[: nodes - 1]
    return {(), *(path for path, _ in best)}


def invented_text(draft: InventedDraft, seed: int, length: int) -> Path:
    """Return a text that follows the draft often, but not always."""
    rng = np.random.default_rng([seed, 7])
    text: Path = (int(rng.integers(VOCABULARY)),)
    while len(text) < length:
        ranked = draft.ranked(text)
        text = (*text, ranked[int(min(rng.geometric(0.7) - 1, VOCABULARY - 1))])
    return text


def recorded(draft: InventedDraft, sequences: list[Path], roots: int, top_k: int, depth: int) -> DraftRecord:
    """Return the record of the first `roots` positions of every text, whose first token is the prompt."""
    sequence_starts, node_starts = [0], [0]
    parent, rank, log_probs, accepted_ranks = [], [], [], []
    for text in sequences:
        for root in range(1, roots + 1):
            before, after = text[:root], text[root : root + depth]
            nodes: list[Path] = []
            for k in range(1, top_k + 1):
                for level in beams(draft, before, k, depth)[0]:
                    nodes += [path for path in level if path not in nodes]
            nodes.sort(key=len)
            for path in nodes:
                ranked = draft.ranked(before + path)
                log_probs.append([draft.log_probs(before + path)[token] for token in ranked[:top_k]])
                parent.append(nodes.index(path[:-1]) if path else -1)
                rank.append(draft.ranked(before + path[:-1]).index(path[-1]) if path else 0)
            ranks = []
            for d, token in enumerate(after):
                place = draft.ranked(before + after[:d]).index(token)
                if after[:d] not in nodes or place >= top_k:
                    break
                ranks.append(place)
            accepted_ranks.append(ranks + [-1] * (depth - len(ranks)))
            node_starts.append(len(parent))
        sequence_starts.append(len(accepted_ranks))
    return DraftRecord(
        pair="big + small",
        created="2026-11-21T00:00:00Z",
        temperature=0.0,
        top_p=1.0,
        target_top_k=0,
        depth=depth,
        sequence_starts=np.array(sequence_starts, np.int64),
        node_starts=np.array(node_starts, np.int64),
        parent=np.array(parent, np.int32),
        rank=np.array(rank, np.int32),
        log_probs=np.array(log_probs, np.float32),
        accepted_ranks=np.array(accepted_ranks, np.int32),
    )


def decoded_steps(draft: InventedDraft, text: Path, roots: int, top_k: int, depth: int, nodes: int) -> tuple[int, int]:
    """Return the tokens and steps of decoding a text with the dynamic tree, as an engine does it."""
    position, tokens, steps = 1, 0, 0
    while position <= roots:
        tree = selected(draft, text[:position], top_k, depth, nodes)
        accepted = 0
        while accepted < depth and text[position : position + accepted + 1] in tree:
            accepted += 1
        position, tokens, steps = position + accepted + 1, tokens + accepted + 1, steps + 1
    return tokens, steps
