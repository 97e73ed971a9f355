"""The streams of `treeopt bench --drift`: what changes in each, and what a plan for it would be measured on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treeopt.methods.stream_names import DRIFTS, STEADY
from treeopt.profiler.bench.drift import StreamPart
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.decoding.limits import trained_tokens
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.pair import ModelPair

SHORT_TOKENS = 64
"""Of prompts before the context grows, and of all others at most."""
SAMPLED = Sampling(1.0)
SHORTENED = 5
"""Tokens by which a prompt is shorter each time that it comes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a part of a stream is decoded under."""

    draft: LanguageModel
    measured_prompts: Sequence[Sequence[int]]
    """What a plan for it is measured on."""
    prompts: Sequence[Sequence[int]]
    """What is decoded, others."""
    context_tokens: int
    """In the cache when a text begins, about."""
    sampling: Sampling = GREEDY
    also_measured: Sampling | None = None
    """Another way of sampling that a profile of it has, too."""
    busy: bool = False
    lookups: bool = False
    """Whether prompt lookup is measured beside the draft model, so that a plan may be that."""

    def part(self, texts: int) -> StreamPart:
        """Return so many texts of it."""
        return StreamPart(prompts=[_again(self.prompts, number) for number in range(texts)], busy=self.busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream of texts."""

    name: str
    what: str
    before: Circumstances
    behind: Circumstances

    @property
    def steady(self) -> bool:
        """Whether nothing changes."""
        return self.before is self.behind


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTexts:
    """What streams are made of, token ids."""

    measured: Sequence[Sequence[int]]
    """Prompts that plans are measured on."""
    held_out: Sequence[Sequence[int]]
    """Prompts that are decoded."""
    prose: Sequence[Sequence[int]]


def streams_of(
    models: ModelPair, texts: StreamTexts, *, new_tokens: int, spoilt: LanguageModel | None
) -> tuple[Stream, ...]:
    """Return all streams; without a spoilt draft those that need none.

    Args:
        models: the pair.
        texts: prompts.
        new_tokens: of every text.
        spoilt: the draft that takes the place of the pair's.
    """
    trained = trained_tokens(models.target, models.draft)
    longest = max(SHORT_TOKENS, trained - max(new_tokens + 1, ROOM_TOKENS))
    short = Circumstances(
        draft=models.draft,
        measured_prompts=_cut(texts.measured, SHORT_TOKENS),
        prompts=_cut(texts.held_out, SHORT_TOKENS),
        context_tokens=SHORT_TOKENS + new_tokens // 2,
    )
    half = len(texts.prose) // 2
    prose = replace(
        short,
        measured_prompts=_cut(texts.prose[:half], SHORT_TOKENS),
        prompts=_cut(texts.prose[half:], SHORT_TOKENS),
    )
    long = replace(
        short,
        measured_prompts=joined(texts.measured, longest),
        prompts=joined(texts.held_out, longest),
        context_tokens=longest,
    )
    sampled = replace(short, sampling=SAMPLED)
    found = [
        Stream(name=DRIFTS[0], what="the texts are English prose, then", before=short, behind=prose),
        Stream(name=DRIFTS[1], what=f"prompts have {longest} tokens, then", before=short, behind=long),
        Stream(name=DRIFTS[2], what="tokens are sampled at temperature 1, then", before=short, behind=sampled),
        Stream(name=DRIFTS[3], what="another process computes, then", before=short, behind=replace(short, busy=True)),
    ]
    freely, likeliest = replace(sampled, lookups=True), replace(short, lookups=True)
    found.append(
        Stream(
            name=DRIFTS[4], what="tokens are the likeliest and repeat themselves, then", before=freely, behind=likeliest
        )
    )
    found.append(
        Stream(
            name=DRIFTS[5],
            what="tokens are sampled at temperature 1, which was measured before too, then",
            before=replace(short, also_measured=SAMPLED),
            behind=sampled,
        )
    )
    steady = [(STEADY[0], "code, prompts of few tokens", short), (STEADY[1], "the same at temperature 1", sampled)]
    if spoilt is not None:
        with_spoilt = replace(short, draft=spoilt)
        found.append(
            Stream(name=DRIFTS[6], what="the draft has noise on its weights, then", before=short, behind=with_spoilt)
        )
        found.append(
            Stream(name=DRIFTS[7], what="the draft has noise on its weights until", before=with_spoilt, behind=short)
        )
        steady.append((STEADY[2], "the draft has noise on its weights", with_spoilt))
    return (*found, *(Stream(name=name, what=what, before=each, behind=each) for name, what, each in steady))


def joined(prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Return as many prompts of so many tokens, made of several that follow one another.

    >>> joined([[1, 2], [3], [4, 5]], 4)
    [[1, 2, 3, 4], [3, 4, 5, 1], [4, 5, 1, 2]]
    """
    found = []
    for first in range(len(prompts)):
        text: list[int] = []
        following = first
        while len(text) < tokens:
            text += prompts[following % len(prompts)]
            following += 1
        found.append(text[:tokens])
    return found


def _cut(prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    return [list(prompt[:tokens]) for prompt in prompts]


def _again(prompts: Sequence[Sequence[int]], number: int) -> list[int]:
    """Return a prompt of a row without end: those that come again are a little shorter each time."""
    prompt, round_ = prompts[number % len(prompts)], number // len(prompts)
    return list(prompt[: max(1, len(prompt) - SHORTENED * round_)])
