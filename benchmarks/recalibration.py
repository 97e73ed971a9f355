"""What re-calibration decides, without a machine's noise: streams of recorded ranks, walked with trees.

    python benchmarks/recalibration.py

Texts of the bundled target are recorded once: of every token, the rank that a draft gives it, the bundled one and perturbed
ones.  That is all that a tree's steps hang on, and prompt lookup's hang on the text itself, so that every plan can be walked
along the same texts, in times that the profile says (`rank_decoding.py`).  Texts are greedy, save those before the texts
that repeat themselves, and those behind a change of temperature: these are sampled at temperature 1, and a token is ranked
first as often as a first child would be accepted, else last; re-calibration is told where the sampling changes.  All
plans are made for these times, the one behind the change from what was measured behind it.

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
from rank_decoding import RANKS, RankDecoder, RankText, SimulatedMachine, walk
from streams import RULE, Effort, Part, measure_profile, perturbed_model, plan_for, request_for, streams_of, way_of

from treeopt import bundled
from treeopt.adaptation import Recalibration
from treeopt.adaptation.ways import Way
from treeopt.arrays import Float64
from treeopt.planner import PlanRequest
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import DecodedStep
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.runtime.rules.distributions import distribution
from treeopt.trees import TokenTree, chain

NOISE, LESS_NOISE = 0.5, 0.3
"""On the weights of perturbed drafts."""
POOL = 2
"""Texts that are recorded, for each that a stream has."""
WORTH = 0.05
"""The gain from which on its share is told."""
ROW = "{:<32}{:>8}{:>9}{:>9}{:>7}{:>8}{:>9}   {}"


class Recorded(NamedTuple):
    """Texts under one draft."""

    texts: list[RankText]
    profile: Profile
    request: PlanRequest
    plan: Way

    @property
    def sampling(self) -> Sampling:
        """Of the texts."""
        return self.profile.acceptance(rule=RULE, temperature=self.request.temperature).sampling

    @property
    def first_ranked(self) -> Float64:
        """Of each text, the share of tokens that the draft ranks first."""
        return np.array([np.mean(np.array(text.ranks) == 0) for text in self.texts])


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

    def texts(self, seed: int, texts: int, change: int) -> list[RankText]:
        """Return so many texts, each drawn once, that change behind some of them; as one text, without prompts in it."""
        drawn = np.random.default_rng(seed).permutation(len(self.before.texts))[:texts]
        found = [self.before.texts[i] for i in drawn[:change]] + [self.behind.texts[i] for i in drawn[change:]]
        if not self.one_text:
            return found
        tokens = [*found[0].tokens, *(token for text in found[1:] for token in text.tokens[text.prompt_tokens :])]
        return [RankText(tokens, [rank for text in found for rank in text.ranks])]


class Gains(NamedTuple):
    """One seed of a stream, as shares of the speed of the plan that stays."""

    behind: float
    adapted: float
    decided: float
    """Of re-calibration without its own time."""
    changes: float


def parts_of(models: ModelPair, effort: Effort) -> dict[str, Part]:
    """Return code with the bundled draft and with two perturbed ones, prose, and code sampled and greedy with lookups."""
    perturbed, less = (perturbed_model(bundled.DRAFT, noise, dtype=models.draft.dtype) for noise in (NOISE, LESS_NOISE))
    named = streams_of(models, perturbed, effort.new_tokens)
    other, repeating = named["draft perturbed"].after, named["text that repeats itself"]
    return {
        "code": named["draft perturbed"].before,
        "perturbed": other,
        "less perturbed": replace(other, draft=less),
        "prose": named["code to prose"].after,
        "sampled": repeating.before,
        "greedy": repeating.after,
    }


def decoded(models: ModelPair, where: Part, texts: int, new_tokens: int) -> list[list[int]]:
    """Return texts of the target, prompts included."""
    decoder = Decoder(models.target, models.draft, chain(4), rule=RULE, sampling=where.sampling)
    prompts = [where.prompt(number) for number in range(texts)]
    return [[*prompt, *decoder.generate(prompt, new_tokens, seed=seed)] for seed, prompt in enumerate(prompts)]


def ranked(models: ModelPair, where: Part, text: Sequence[int], new_tokens: int) -> RankText:
    """Return a text with how a draft ranks every token behind the prompt, 0 for the likeliest."""
    draft, own = _logits(models, where.draft, text[:-1]), torch.tensor(text[1:])
    if where.sampling.greedy:
        rank = (draft > draft.gather(1, own[:, None])).sum(dim=1).clamp(max=RANKS - 1)
    else:
        target = _logits(models, models.target, text[:-1])
        p, q = (distribution(logits, where.sampling) for logits in (target, draft))
        noise = torch.rand(len(own), generator=torch.Generator().manual_seed(len(text)))
        rank = torch.where(noise < torch.minimum(p, q).sum(dim=1), 0, RANKS - 1)
    return RankText(list(text), rank[-new_tokens:].tolist())


def _logits(models: ModelPair, model: LanguageModel, tokens: Sequence[int]) -> torch.Tensor:
    """Return what a model says after each of some tokens."""
    found = Decoder(models.target, model, chain(1)).draft_logits(tokens)
    assert found is not None  # it has a draft model
    return found


def recorded(
    models: ModelPair, where: Part, texts: Sequence[Sequence[int]], profile: Profile, effort: Effort
) -> Recorded:
    """Return what the draft makes of texts, and the plan of a profile for it."""
    plan = way_of(plan_for(profile, where))
    return Recorded(
        [ranked(models, where, text, effort.new_tokens) for text in texts], profile, request_for(where), plan
    )


def with_profile_of(before: Recorded, other: Recorded) -> Recorded:
    """Return texts whose profile has what was measured of others too."""
    measured = before.profile, other.profile
    acceptances, latencies = (
        tuple(one for each in measured for one in getattr(each, name)) for name in ("acceptances", "latencies")
    )
    return before._replace(profile=replace(before.profile, acceptances=acceptances, latencies=latencies))


def streams(models: ModelPair, effort: Effort) -> tuple[RankStream, ...]:
    """Measure and record, and return what there is to walk along."""
    each = parts_of(models, effort)
    timed = ("code", "sampled", "greedy")  # the others' steps take what code's do
    measured: dict[str, Profile] = {}
    texts: dict[str, list[list[int]]] = {}
    for name, where in bar(list(each.items()), "parts"):
        of = effort if name in timed else replace(effort, rounds=1, max_nodes=2)
        measured[name] = measure_profile(models, where, of, show_progress=False)
        if name not in timed:
            measured[name] = replace(measured[name], latencies=measured["code"].latencies)
        of_code = where.sampling.greedy and where.prompts == each["code"].prompts and name != "code"
        texts[name] = texts["code"] if of_code else decoded(models, where, POOL * effort.sequences, effort.new_tokens)
    found = {name: recorded(models, where, texts[name], measured[name], effort) for name, where in each.items()}
    code, perturbed, less, prose, sampled, greedy = found.values()
    return (
        RankStream("steady code", code, code),
        RankStream("steady perturbed draft", perturbed, perturbed),
        RankStream(f"draft perturbed by {NOISE}", code, perturbed),
        RankStream(f"draft perturbed by {LESS_NOISE}", code, less),
        RankStream("draft restored", perturbed, code),
        RankStream("code to prose", code, prose),
        RankStream("text that repeats itself", sampled, greedy),
        RankStream("steady: repeats itself", greedy, greedy),
        RankStream("steady: temperature 1", sampled, sampled),
        RankStream("temperature 0 to 1", code, sampled),
        RankStream("both temperatures measured", with_profile_of(code, sampled), sampled),
        RankStream("one text: steady code", code, code, one_text=True),
        RankStream(f"one text: draft perturbed by {NOISE}", code, perturbed, one_text=True),
    )


def gains(stream: RankStream, target: LanguageModel, effort: Effort, seed: int) -> Gains:
    """Walk along a stream with both plans and with re-calibration, on one machine."""
    change = 0 if stream.steady else max(1, round(effort.change_at * effort.sequences))
    texts, place = stream.texts(seed, effort.sequences, change), change * effort.new_tokens
    request = stream.before.request

    def machine() -> list[SimulatedMachine]:
        before, behind = (SimulatedMachine(each.profile, each.request, seed) for each in (stream.before, stream.behind))
        return [before if number < change else behind for number in range(len(texts))]

    fixed = walk(texts, RankDecoder(target, stream.before.plan), machine()).seconds(place)
    behind = walk(texts, RankDecoder(target, stream.behind.plan), machine()).seconds(place)
    plan = stream.before.plan
    decoder = RankDecoder(target, plan)
    begin_with = None if isinstance(plan, TokenTree) else plan
    recalibration = Recalibration(stream.before.profile, request, begin_with=begin_with, now_s=decoder.now_s)
    decoder.sample(stream.before.sampling)
    recalibration.attach(decoder)

    def observer(step: DecodedStep) -> None:
        if step.text >= change > 0 and decoder.sampling != stream.behind.sampling:  # as another decoder would have it
            decoder.sample(stream.behind.sampling)
            recalibration.attach(decoder)
            decoder.changed = False
        recalibration(step)

    adapted = walk(texts, decoder, machine(), observer)
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
    models, effort = load_pair(), Effort(tokens=asked.tokens)
    every = streams(models, effort)
    print(f"{asked.streams_of} seeds of {effort.sequences} texts of {effort.new_tokens} tokens, or of one text as long")
    print(ROW.format("stream", "behind", "adapted", "decided", "share", "least", "changes", "first-ranked"))
    for stream in bar(every, "streams"):
        say(row(stream, [gains(stream, models.target, effort, seed) for seed in range(asked.streams_of)]))


if __name__ == "__main__":
    main()
