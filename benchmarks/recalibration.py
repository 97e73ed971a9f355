"""What re-calibration decides, without a machine's noise: streams of recorded ranks, walked with trees.

    python benchmarks/recalibration.py

Greedy texts of the bundled target are recorded once: of every token, the rank that a draft gives it, the bundled one and
spoilt ones.  That is all that a tree's steps hang on, so that every tree can be walked along the same texts, in times that
the profile says (`rank_decoding.py`).  All plans are made for these times, the one behind the change from the acceptance
that was measured behind it.

Gains are over the plan that stays, behind the change, or over the whole stream where nothing changes; means over seeds,
each of which draws texts, deviations and noise anew.  `adapted` has re-calibration's own time in it, `decided` has not,
and `least` is the least `adapted` of a seed.  The share is that of `adapted` in the gain of the plan behind the change, where
that is more than 5 %.  `first-ranked` is the share of tokens that the draft ranks first: the least of the texts behind the
change, their mean and the most.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from conditions import bar, conditions, say
from rank_decoding import RANKS, RankDecoder, SimulatedMachine, walk

from treeopt import bundled
from treeopt.adaptation import Recalibration
from treeopt.arrays import Float64
from treeopt.methods.drift import RULE, DriftBench, DriftEffort
from treeopt.methods.drift_streams import SHORT_TOKENS, Circumstances, StreamTexts, streams_of
from treeopt.methods.prose import PROSE
from treeopt.methods.stream_names import DRIFTS, STEADY
from treeopt.planner import PlanRequest, Where, requested_plan
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.runtime.models.spoilt import spoilt_model
from treeopt.texts.prompts import bench_prompts, load_prompts, profile_prompts
from treeopt.trees import TokenTree, chain

SPOILT, LESS_SPOILT = 0.5, 0.3
"""Noise on the weights of spoilt drafts."""
POOL = 2
"""Texts that are recorded, for each that a stream has."""
WORTH = 0.05
"""The gain from which on its share is told."""
ROW = "{:<32}{:>8}{:>9}{:>9}{:>7}{:>8}{:>9}   {}"


class Text(NamedTuple):
    """A text of the target."""

    tokens: list[int]
    """Prompt included."""
    prompt_tokens: int


class Recorded(NamedTuple):
    """Texts under one draft."""

    ranks: list[list[int]]
    """Of every token of each text."""
    profile: Profile
    plan: TokenTree

    @property
    def first_ranked(self) -> Float64:
        """Of each text, the share of tokens that the draft ranks first."""
        return np.array([np.mean(np.array(text) == 0) for text in self.ranks])


class RankStream(NamedTuple):
    """What is decoded."""

    name: str
    before: Recorded
    behind: Recorded
    one_text: bool = False

    @property
    def steady(self) -> bool:
        """Whether nothing changes."""
        return self.before is self.behind

    def texts(self, seed: int, texts: int, change: int) -> list[list[int]]:
        """Return the ranks of so many texts, each drawn once, that change behind some of them."""
        drawn = np.random.default_rng(seed).permutation(len(self.before.ranks))[:texts]
        found = [self.before.ranks[i] for i in drawn[:change]] + [self.behind.ranks[i] for i in drawn[change:]]
        return [[rank for text in found for rank in text]] if self.one_text else found


class Gains(NamedTuple):
    """One seed of a stream, as shares of the speed of the plan that stays."""

    behind: float
    adapted: float
    decided: float
    """Of re-calibration without its own time."""
    changes: float


def circumstances(models: ModelPair, effort: DriftEffort) -> tuple[Circumstances, ...]:
    """Return code with the bundled draft, with the two spoilt ones, and prose."""
    spoilt, less = (spoilt_model(bundled.DRAFT, noise, dtype=models.draft.dtype) for noise in (SPOILT, LESS_SPOILT))
    encode, prompts = models.tokenizer.encode, load_prompts()
    texts = StreamTexts(
        measured=[encode(text) for text in profile_prompts(prompts)],
        held_out=[encode(text) for text in bench_prompts(prompts)],
        prose=[encode(text) for text in PROSE],
    )
    named = {each.name: each for each in streams_of(models, texts, new_tokens=effort.new_tokens, spoilt=spoilt)}
    with_spoilt = named[STEADY[2]].behind
    return named[STEADY[0]].behind, with_spoilt, replace(with_spoilt, draft=less), named[DRIFTS[0]].behind


def decoded(models: ModelPair, where: Circumstances, effort: DriftEffort) -> list[Text]:
    """Return greedy texts of the target."""
    decoder = Decoder(models.target, models.draft, chain(4), rule=RULE, sampling=where.sampling)
    prompts = where.part(POOL * effort.texts).prompts
    return [
        Text([*prompt, *decoder.generate(prompt, effort.new_tokens)], len(prompt)) for prompt in bar(prompts, "texts")
    ]


def ranks(decoder: Decoder, text: Text) -> list[int]:
    """Return how a decoder's draft ranks every token behind the prompt, 0 for the likeliest."""
    logits = decoder.draft_logits(text.tokens[:-1])
    assert logits is not None  # it has a draft model
    own = logits.gather(1, torch.tensor(text.tokens[1:])[:, None])
    found: list[int] = (logits > own).sum(dim=1)[text.prompt_tokens - 1 :].clamp(max=RANKS - 1).tolist()
    return found


def recorded(
    models: ModelPair, where: Circumstances, texts: Sequence[Text], profile: Profile, request: PlanRequest
) -> Recorded:
    """Return what the draft makes of texts, and the plan of a profile for it."""
    decoder = Decoder(models.target, where.draft, chain(1), rule=RULE, sampling=where.sampling)
    plan = requested_plan(profile, request).choice.tree
    return Recorded([ranks(decoder, text) for text in texts], profile, plan)


def streams(models: ModelPair, effort: DriftEffort, request: PlanRequest) -> tuple[RankStream, ...]:
    """Measure and record, and return what there is to walk along."""
    each = circumstances(models, effort)
    bench = DriftBench(models=models, effort=effort, show_progress=False)
    profiles = [bench.profile(where) for where in bar(each, "profiles")]
    profiles = [replace(profile, latencies=profiles[0].latencies) for profile in profiles]  # one machine for all
    of_code, of_prose = decoded(models, each[0], effort), decoded(models, each[-1], effort)
    all_texts = [of_code, of_code, of_code, of_prose]
    code, spoilt, less, prose = (
        recorded(models, where, texts, profile, request)
        for where, texts, profile in zip(each, all_texts, profiles, strict=True)
    )
    return (
        RankStream("steady code", code, code),
        RankStream("steady spoilt draft", spoilt, spoilt),
        RankStream(f"draft spoilt by {SPOILT}", code, spoilt),
        RankStream(f"draft spoilt by {LESS_SPOILT}", code, less),
        RankStream("draft mended", spoilt, code),
        RankStream("code to prose", code, prose),
        RankStream("one text: steady code", code, code, one_text=True),
        RankStream(f"one text: draft spoilt by {SPOILT}", code, spoilt, one_text=True),
    )


def gains(stream: RankStream, target: LanguageModel, effort: DriftEffort, request: PlanRequest, seed: int) -> Gains:
    """Walk along a stream with both plans and with re-calibration, on one machine."""
    change = 0 if stream.steady else max(1, round(effort.drift_at * effort.texts))
    texts, place = stream.texts(seed, effort.texts, change), change * effort.new_tokens

    def machine() -> SimulatedMachine:
        return SimulatedMachine(stream.before.profile, request, seed)

    fixed = walk(texts, RankDecoder(target, stream.before.plan), machine()).seconds(place)
    behind = walk(texts, RankDecoder(target, stream.behind.plan), machine()).seconds(place)
    decoder = RankDecoder(target, stream.before.plan)
    recalibration = Recalibration(stream.before.profile, request, now_s=decoder.now_s)
    recalibration.attach(decoder)
    adapted = walk(texts, decoder, machine(), recalibration)
    return Gains(
        behind=fixed / behind - 1,
        adapted=fixed / adapted.seconds(place) - 1,
        decided=fixed / adapted.seconds(place, with_observer=False) - 1,
        changes=len(recalibration.changes),
    )


def row(stream: RankStream, found: Sequence[Gains]) -> str:
    """Return a line of the table."""
    mean = Gains(*np.mean(found, axis=0))
    share = f"{mean.adapted / mean.behind:.2f}" if mean.behind > WORTH else ""
    least = min(each.adapted for each in found)
    first = stream.behind.first_ranked
    spread = f"{first.min():.0%} {first.mean():.0%} {first.max():.0%}"
    shown = (f"{value:+.1%}" for value in (mean.behind, mean.adapted, mean.decided))
    return ROW.format(stream.name, *shown, share, f"{least:+.1%}", f"{mean.changes:.1f}", spread)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams-of", type=int, default=16, help="seeds of every stream")
    parser.add_argument("--tokens", type=int, default=4000, help="of every stream")
    asked = parser.parse_args()
    print(conditions())
    models, effort = load_pair(), DriftEffort(tokens=asked.tokens)
    where = Where(context_tokens=SHORT_TOKENS + effort.new_tokens // 2)
    request = PlanRequest(rule=RULE, temperature=GREEDY.temperature, where=where)
    every = streams(models, effort, request)
    print(f"{asked.streams_of} seeds of {effort.texts} texts of {effort.new_tokens} tokens, or of one text as long")
    print(ROW.format("stream", "behind", "adapted", "decided", "share", "least", "changes", "first-ranked"))
    for stream in bar(every, "streams"):
        say(row(stream, [gains(stream, models.target, effort, request, seed) for seed in range(asked.streams_of)]))


if __name__ == "__main__":
    main()
