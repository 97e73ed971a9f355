"""What each drafter costs beside model passes: the share of a step that is neither the target, nor a draft model, nor heads."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from conditions import bar, conditions, say

from treeopt import bundled as bundle
from treeopt.profiler.bench.timed_steps import TimedSteps, decoded_text
from treeopt.runtime import Decoder, Transformer
from treeopt.runtime.drafters import expanding_drafter
from treeopt.runtime.drafters.best_first import SpecExecDrafter, SpecExecSetting
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.dynamic_tree import DynamicDrafter
from treeopt.runtime.drafters.lookahead import LookaheadDrafter
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads, load_medusa
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, RedrafterHead, load_redrafter
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.runtime.models.passes import TreePasses
from treeopt.texts.prompts import bench_prompts, load_prompts
from treeopt.trees import TokenTree, chain, level_widths
from treeopt.trees.dynamic_tree import DynamicTree

POSITIONS = 192
PASSES: dict[object, tuple[str, ...]] = {
    Transformer: ("forward", "logits"),
    MedusaHeads: ("likeliest",),
    RedrafterHead: ("advance", "log_probs"),
    TreePasses: ("once",),
    expanding_drafter: ("likeliest_children",),
}
"""What is a model pass, as profiles time it: a drafted level's children included; one may call another."""


@contextmanager
def passes_timed() -> Iterator[list[float]]:
    """Collect the seconds of all model passes while the block runs."""
    seconds, inside = [0.0], [0]

    def timed(original: Callable[..., object]) -> Callable[..., object]:
        def method(*arguments: object, **keywords: object) -> object:
            inside[0] += 1
            start_s = time.perf_counter()
            try:
                return original(*arguments, **keywords)
            finally:
                inside[0] -= 1
                if inside[0] == 0:
                    seconds[0] += time.perf_counter() - start_s

        return method

    originals = [(owner, name, getattr(owner, name)) for owner, names in PASSES.items() for name in names]
    for owner, name, original in originals:
        setattr(owner, name, timed(original))
    try:
        yield seconds
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def decoders(pair: ModelPair) -> dict[str, Callable[[float], Decoder]]:
    """Return how the decoder of each drafter is made at a temperature."""

    def static(tree: TokenTree, rule: str = "sequoia") -> Callable[[float], Decoder]:
        return lambda temperature: Decoder(pair.target, pair.draft, tree, rule=rule, temperature=temperature)

    def own(make: Callable[[], Drafter]) -> Callable[[float], Decoder]:
        return lambda temperature: Decoder(pair.target, make(), temperature=temperature)

    tree = level_widths([2, 2, 2, 1])
    return {
        "plain decoding": lambda temperature: Decoder(pair.target, None, temperature=temperature),
        "chain of 6": static(chain(6)),
        "tree of 8 nodes, sequoia": static(tree),
        "tree of 8 nodes, traversal": static(tree, "traversal"),
        **{name: own(make) for name, make in drafters(pair).items()},
    }


def drafters(pair: ModelPair) -> dict[str, Callable[[], Drafter]]:
    assert isinstance(pair.target, Transformer)  # the bundled one is
    capacity = pair.target.config.max_positions
    heads, head = load_medusa(bundle.MEDUSA, pair.target), load_redrafter(bundle.REDRAFTER, pair.target)
    specexec = SpecExecSetting(budget=16, branching=8, batch=8, max_passes=8)
    return {
        "prompt-lookup, 4 and 8": partial(PromptLookupDrafter, 4, 8),
        "lookahead, W 4, N 4, G 4": partial(LookaheadDrafter, 4, 4, 4),
        "medusa, 8 nodes": partial(MedusaDrafter, heads, level_widths([3, 2, 2])),
        "redrafter, 2 beams of 4": partial(RedrafterDrafter, head, 2, 4),
        "specexec, budget 16": partial(SpecExecDrafter, pair.draft, specexec, capacity=capacity),
        "eagle2, top-k 2, depth 5, 9 nodes": partial(
            DynamicDrafter, pair.draft, DynamicTree(top_k=2, depth=5, nodes=9), capacity=capacity
        ),
    }


def main() -> None:
    print(conditions())
    pair = load_pair()
    prompts = [pair.tokenizer.encode(text) for text in bench_prompts(load_prompts())]
    print(f"\n{'drafter':<36}{'temperature':>12}{'step, ms':>10}{'passes, ms':>12}{'the rest':>10}")
    for name, make in bar(decoders(pair).items(), "drafters"):
        for temperature in (0.0, 0.6):
            decoder = make(temperature)
            decoded_text(TimedSteps(decoder), decoder, prompts[0], 32)
            steps = TimedSteps(decoder)
            with passes_timed() as passes_s:
                for prompt in prompts:
                    decoder.start(prompt)
                    decoded = 0
                    while decoded < POSITIONS:
                        decoded += len(steps.step().tokens)
            count = len(steps.draft_s)
            whole_s = (sum(steps.draft_s) + sum(steps.verify_s) + sum(steps.rest_s)) / count
            say(
                f"{name:<36}{temperature:>12g}{1000 * whole_s:>10.2f}{1000 * passes_s[0] / count:>12.2f}"
                f"{1 - passes_s[0] / count / whole_s:>10.1%}"
            )


if __name__ == "__main__":
    main()
