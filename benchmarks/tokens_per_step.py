"""Tokens per step of drafters that need no draft model, setting by setting, on the held-out prompts.

    python benchmarks/tokens_per_step.py

No time is measured: at temperature 0 the numbers are the same on every machine whose target writes the same text, above
it they depend on the seeds alone.
"""

import argparse
from collections.abc import Callable
from functools import partial

from conditions import bar, conditions, say

from treeopt.runtime import Decoder
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.lookahead import LookaheadDrafter
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.prompts import bench_prompts, load_prompts
from treeopt.trees import chain

DRAFTERS: dict[str, dict[str, Callable[[], Drafter]]] = {
    "prompt lookup: ngram, length": {
        f"{ngram:>5}{length:>7}": partial(PromptLookupDrafter, ngram, length)
        for ngram, length in ((2, 4), (4, 4), (8, 4), (8, 8), (8, 16))
    },
    "lookahead: W, N, G": {
        f"{window:>3}{ngram:>3}{candidates:>3}": partial(LookaheadDrafter, window, ngram, candidates)
        for window, ngram, candidates in ((1, 3, 1), (1, 4, 4), (4, 4, 4), (8, 4, 8), (8, 5, 8), (15, 5, 15))
    },
}


def decoded(decoder: Decoder, prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], float]:
    """Return the texts, and tokens per step over all of them."""
    texts, steps = [], 0
    for seed, prompt in enumerate(prompts):
        committed = list(decoder.steps(prompt, tokens, seed=seed))
        texts.append([token for step in committed for token in step])
        steps += len(committed)
    return texts, sum(map(len, texts)) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128, help="decoded after every prompt")
    tokens = parser.parse_args().tokens
    print(conditions())
    pair = load_pair()
    prompts = [pair.tokenizer.encode(text) for text in bench_prompts(load_prompts())]
    print(
        f"{len(prompts)} held-out prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens, {tokens} new each"
    )
    plain, _ = decoded(Decoder(pair.target, None, chain(0), temperature=0.0), prompts, tokens)
    for title, settings in DRAFTERS.items():
        print(f"\n{title}; tokens per step at temperature 0 and 0.6")
        for name, make in bar(settings.items(), title.partition(":")[0]):
            texts, greedy = decoded(Decoder(pair.target, make(), temperature=0.0), prompts, tokens)
            _, warm = decoded(Decoder(pair.target, make(), temperature=0.6), prompts, tokens)
            say(f"{name}{greedy:>8.2f}{warm:>8.2f}   {'plain decoding' if texts == plain else 'texts DIFFER'}")


if __name__ == "__main__":
    main()
