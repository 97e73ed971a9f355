"""A draft that was spoilt by noise, beside a copy of it that learns while it drafts: acceptance and speed over a stream.

    python benchmarks/osd.py [--temperatures 0,0.6] [--noise 0.3] [--shifted]

Both decode every prompt in turn, so that what disturbs the machine disturbs both; the learning draft's time holds its
learning.  Prompts are the bundled ones, each once at each temperature.  Acceptance is the share of drafted tokens met, of which
a draft's first wrong one is the last.  --shifted adds a draft that learns from the target's distributions one
position late, as OSD's own code seems to.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from conditions import bar, conditions, say

from treeopt import bundled
from treeopt.runtime import Decoder
from treeopt.runtime.learning.learner import Learner, LearningSettings
from treeopt.runtime.learning.lessons import Excerpt
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.runtime.models.spoilt import spoilt_model
from treeopt.runtime.models.trainable import copied
from treeopt.runtime.models.transformer import Transformer
from treeopt.texts.prompts import load_prompts
from treeopt.trees import chain


class Shifted(Learner):
    """Learns, at every position, what the target says one position later."""

    def _gradients(self, excerpts: Sequence[Excerpt]) -> None:
        super()._gradients([replace(each, rows=[max(0, row - 1) for row in each.rows]) for each in excerpts])


class Text(NamedTuple):
    """What decoding one text came to."""

    tokens: list[int]
    accepted: int
    met: int
    """Drafted tokens that were accepted, and the first that was not."""
    seconds: float


@dataclass(slots=True)
class Way:
    """One draft in one decoder, and the texts so far."""

    name: str
    decoder: Decoder
    learner: Learner | None
    texts: list[Text] = field(default_factory=list)

    def decode(self, prompt: Sequence[int], tokens: int, seed: int, length: int) -> None:
        """Decode one text of the stream."""
        found: list[int] = []
        accepted = met = 0
        start_s = time.perf_counter()
        for step in self.decoder.steps(prompt, tokens, seed=seed):
            found += step
            accepted += len(step) - 1
            met += min(len(step), length)
        self.texts.append(Text(found, accepted, met, time.perf_counter() - start_s))


def ways_of(pair: ModelPair, spoilt: Transformer, options: argparse.Namespace, temperature: float) -> list[Way]:
    """Return a decoder with the draft as it is, and with copies that learn."""
    settings = LearningSettings(rate=options.rate, positions=options.positions)
    kinds: dict[str, type[Learner] | None] = {"fixed": None, "learning": Learner}
    if options.shifted:
        kinds["shifted"] = Shifted
    found = []
    for name, kind in kinds.items():
        draft = copied(spoilt)
        learner = None if kind is None else kind(draft, settings)
        tree = chain(options.length)
        found.append(Way(name, Decoder(pair.target, draft, tree, temperature=temperature, on_step=learner), learner))
    return found


def print_bins(ways: Sequence[Way], bins: int) -> None:
    """Print acceptance and tokens per second of all ways, one line for each part of the stream."""
    say("".join([f"{'tokens':>8}", *(f"{way.name + ' acceptance':>22}{'tokens/s':>10}" for way in ways)]))
    count, done = len(ways[0].texts), 0
    for number in range(bins):
        part = slice(number * count // bins, (number + 1) * count // bins)
        done += sum(len(text.tokens) for text in ways[0].texts[part])
        line = f"{done:>8}"
        for way in ways:
            texts = way.texts[part]
            tokens, seconds = sum(len(text.tokens) for text in texts), sum(text.seconds for text in texts)
            share = sum(text.accepted for text in texts) / max(1, sum(text.met for text in texts))
            line += f"{share:>22.3f}{tokens / seconds:>10.0f}"
        say(line)


def print_sums(ways: Sequence[Way], *, greedy: bool) -> None:
    """Print the speed over the whole stream, what learning took, and whether the texts are the same."""
    rates = {way.name: sum(len(t.tokens) for t in way.texts) / sum(t.seconds for t in way.texts) for way in ways}
    for way in ways[1:]:
        gain = rates[way.name] / rates["fixed"] - 1
        say(
            f"{way.name}: {100 * gain:+.1f} % tokens per second over the whole stream; {way.learner and way.learner.stats}"
        )
        if greedy:
            same = [text.tokens for text in way.texts] == [text.tokens for text in ways[0].texts]
            say(f"{way.name}: texts {'identical' if same else 'DIFFER'}")


def main() -> None:
    """Parse the arguments, decode the stream at each temperature, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperatures", default="0,0.6")
    parser.add_argument("--noise", type=float, default=0.3, help="share of each matrix' standard deviation")
    parser.add_argument("--length", type=int, default=5, help="drafted tokens of a step")
    parser.add_argument("--tokens", type=int, default=384, help="new tokens of each prompt")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--bins", type=int, default=8)
    parser.add_argument("--rate", type=float, default=LearningSettings().rate)
    parser.add_argument("--positions", type=int, default=LearningSettings().positions)
    parser.add_argument("--shifted", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    say(conditions())
    pair = load_pair(threads=1)
    prompts = [pair.tokenizer.encode(text) for text in load_prompts()[: options.prompts]]
    spoilt = spoilt_model(bundled.DRAFT, options.noise)
    for temperature in map(float, options.temperatures.split(",")):
        say(f"\ntemperature {temperature:g}, chain of {options.length + 1} nodes, noise {options.noise:g}")
        ways = ways_of(pair, spoilt, options, temperature)
        for seed, prompt in enumerate(bar(prompts, "texts")):
            for way in ways:
                way.decode(prompt, options.tokens, seed, options.length)
        print_bins(ways, options.bins)
        print_sums(ways, greedy=temperature == 0)


if __name__ == "__main__":
    main()
