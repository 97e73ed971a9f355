"""Acceptance of heads over prompts, counted as `treeopt profile --drafter` counts it."""

from treeopt.profiler.acceptance.heads import children_counts, eagle_children, medusa_children
from treeopt.profiler.drafters.acceptance import counted_acceptance, counter
from treeopt.profiler.journal import Journal
from treeopt.runtime.drafters.eagle import EagleHead
from treeopt.runtime.drafters.loaded import LoadedDrafter


def loaded(target, heads, name=None):
    name = name or ("eagle" if isinstance(heads, EagleHead) else "medusa")
    return LoadedDrafter(
        name=name,
        source=None,
        digest=None,
        target=target,
        draft=target,
        heads=heads,
        capacity=target.config.max_positions,
    )


def head_acceptance(target, heads, prompts, *, sampling, positions, branching=16, depth=8):
    """Return the `MeasuredAcceptance` over `positions` generated tokens, shared out among the prompts."""
    each = -(-positions // len(prompts))
    count = counter(
        loaded(target, heads),
        dict(enumerate(prompts)),
        positions=each,
        sampling=sampling,
        branching=branching,
        depth=depth,
    )
    return counted_acceptance(count, len(prompts), sampling, "kind", Journal(None, ""), lambda: None).acceptance


def head_counts(heads, text, branching):
    return children_counts(medusa_children(heads, text, branching), text)


def eagle_counts(head, text, branching, depths):
    return children_counts(eagle_children(head, text, branching, depths), text)
