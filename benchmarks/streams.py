"""Streams of sequences that change at one point, and the profiles and plans that fit before and after the change."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from treeopt.adaptation.strategy import LOOKUP, Strategy, prompt_lookup_setting
from treeopt.methods.build import load_planned_drafter
from treeopt.planner import PlanRequest, requested_plan
from treeopt.planner.drafters import DrafterChoice, best_drafter, drafter_choices
from treeopt.profiler import Checkpoint, Measurement, Settings, clock_for
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.model import LanguageModel, max_sequence_tokens
from treeopt.runtime.models.pair import ModelPair
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.weights import Tensors, build_model
from treeopt.texts.prompts import bench_prompts, load_prompts, profile_prompts
from treeopt.trees.drafter_setting import DrafterSetting

RULE = "sequoia"
SAMPLED = Sampling(1.0)
SHORT_TOKENS = 64
"""Longest prompt, except where the context is long."""
SHORTENED_TOKENS = 5
"""Reduction of a prompt's length every time that it is reused."""
BUSY_LOOP = "import numpy; a = numpy.ones((600, 600), numpy.float32)\nwhile True: a @ a"
PROSE = (
    "The river had been low all summer, and the old bridge stood with its feet dry. Children crossed it twice a day, and",
    "When the letter came, nobody in the house wanted to open it. It lay on the table beside the bread until the evening,",
    "Bread is made of flour, water, salt and time. Of these four the last is the one that most people leave out, because",
    "The museum closes at five, but the guard at the east door has a habit of letting visitors finish their walk through",
    "In the spring the farmers of the valley meet to decide who may open which gate of the canal, and for how many hours",
    "My grandmother kept bees behind the church. She spoke to them every morning, and she believed that they would leave",
    "Most birds that cross the desert do so at night, when the air is cool and still. They rest in the shade of stones by",
    "The first train leaves before sunrise. On it are bakers, nurses, two men who mend the tracks, and sometimes a girl",
    "A good map leaves things out. The one that hung in our school showed three roads, a lake and the name of the village",
    "There was a clockmaker in the town who repaired nothing that was younger than himself. People brought him their old",
    "Winter came early that year. The harbour froze in a single night, and the boats that had not been pulled ashore were",
    "To learn an instrument is to be bad at something for a long time in the hearing of others, and to go on with it all",
    "The doctor listened without moving. When both sides had spoken she asked one question, and it was not the one for which",
    "Glass is neither as old nor as simple as it seems. The first windows were small and green, and the light that came in",
    "Every house on the street had a lemon tree, and every family claimed that theirs had been the first to be planted by",
    "The expedition carried food for ninety days. On the fortieth they found the hut, with its door open and its lamp still",
)
"""Openings of English prose; the bundled pair was trained on program source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Size of the measurements and of the streams."""

    tokens: int = 4000
    """Of each stream."""
    new_tokens: int = 200
    """Of each sequence."""
    change_at: float = 0.25
    """Share of the sequences before the change."""
    max_nodes: int = 64
    rounds: int = 9
    positions: int = 1536
    branching: int = 8
    depth: int = 12

    @property
    def sequences(self) -> int:
        return max(2, self.tokens // self.new_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One side of a stream's change: prompts, draft model and sampling of decoding and of the profile."""

    draft: LanguageModel
    measured_prompts: Sequence[Sequence[int]]
    prompts: Sequence[Sequence[int]]
    """Token ids, different from the measured ones."""
    context_tokens: int
    sampling: Sampling = GREEDY
    also_measured: Sampling | None = None
    """A second sampling to measure."""
    busy: bool = False
    """Whether another process computes at the same time."""
    lookups: bool = False
    """Whether the profile contains prompt lookup, so that a plan may choose it."""

    def prompt(self, number: int) -> list[int]:
        """Return the prompt of a sequence; reused prompts are shorter each time."""
        prompt, reuses = self.prompts[number % len(self.prompts)], number // len(self.prompts)
        return list(prompt[: max(1, len(prompt) - SHORTENED_TOKENS * reuses)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Sequences of one part, then of another; steady if both are the same."""

    name: str
    before: Part
    after: Part

    @property
    def steady(self) -> bool:
        return self.before is self.after


def streams_of(models: ModelPair, perturbed: LanguageModel, new_tokens: int) -> dict[str, Stream]:
    """Return all streams by name; `perturbed` is a draft model with noise on its weights."""
    encode, prompts = models.tokenizer.encode, load_prompts()
    measured, held_out = ([encode(text) for text in kind(prompts)] for kind in (profile_prompts, bench_prompts))
    prose, half = [encode(text)[:SHORT_TOKENS] for text in PROSE], len(PROSE) // 2
    longest = max(
        SHORT_TOKENS, max_sequence_tokens(models.target, models.draft_model) - max(new_tokens + 1, ROOM_TOKENS)
    )
    short = Part(
        draft=models.draft_model,
        measured_prompts=[prompt[:SHORT_TOKENS] for prompt in measured],
        prompts=[prompt[:SHORT_TOKENS] for prompt in held_out],
        context_tokens=SHORT_TOKENS + new_tokens // 2,
    )
    long = replace(
        short,
        measured_prompts=concatenate(measured, longest),
        prompts=concatenate(held_out, longest),
        context_tokens=longest,
    )
    sampled, other_draft = replace(short, sampling=SAMPLED), replace(short, draft=perturbed)
    parts = {
        "draft perturbed": (short, other_draft),
        "draft restored": (other_draft, short),
        "text that repeats itself": (replace(sampled, lookups=True), replace(short, lookups=True)),
        "temperature 0 to 1": (short, sampled),
        "both temperatures measured": (replace(short, also_measured=SAMPLED), sampled),
        "code to prose": (short, replace(short, measured_prompts=prose[:half], prompts=prose[half:])),
        "short to long context": (short, long),
        "free to busy machine": (short, replace(short, busy=True)),
        "steady: short code": (short, short),
        "steady: temperature 1": (sampled, sampled),
        "steady: perturbed draft": (other_draft, other_draft),
    }
    return {name: Stream(name=name, before=before, after=after) for name, (before, after) in parts.items()}


def concatenate(prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Return as many prompts of `tokens` tokens, each a concatenation of several."""
    concatenations = []
    for first in range(len(prompts)):
        sequence: list[int] = []
        while len(sequence) < tokens:
            for following in (*prompts[first:], *prompts[:first]):
                sequence += following
        concatenations.append(sequence[:tokens])
    return concatenations


def measure_profile(models: ModelPair, part: Part, effort: Effort, *, show_progress: bool = True) -> Profile:
    """Measure acceptance and times for one part, as `treeopt profile` does."""
    max_tokens = max_sequence_tokens(models.target, part.draft)
    available = (max_tokens - max(map(len, part.measured_prompts))) * len(part.measured_prompts)
    longest = max_tokens - ROOM_TOKENS
    drafters = [load_planned_drafter(DrafterSetting(name=LOOKUP), models)] if part.lookups else []
    settings = Settings(
        rules=(RULE,),
        samplings=tuple(sampling for sampling in (part.sampling, part.also_measured) if sampling is not None),
        context_tokens=tuple(sorted({min(longest, tokens) for tokens in (part.context_tokens, longest // 2, longest)})),
        max_tokens=effort.max_nodes,
        rounds=effort.rounds,
        positions=min(effort.positions, available),
        branching=effort.branching,
        depth=effort.depth,
        drafters=tuple(drafter.setting() for drafter in drafters),
    )
    with busy_machine(part.busy):
        return Measurement(
            models.target,
            part.draft,
            part.measured_prompts,
            settings,
            clock=clock_for(models.target.device),
            checkpoint=Checkpoint(None, ""),
            drafters=drafters,
        ).profile(show_progress=show_progress)


def request_for(part: Part) -> PlanRequest:
    return PlanRequest(rule=RULE, temperature=part.sampling.temperature, context_tokens=part.context_tokens)


def plan_for(profile: Profile, part: Part) -> DrafterChoice:
    """Return the faster plan: of the draft model, or of prompt lookup if it was measured."""
    request = request_for(part)
    return best_drafter(drafter_choices(profile, request, plan=requested_plan(profile, request)))


def strategy_of(choice: DrafterChoice) -> Strategy:
    return prompt_lookup_setting(choice.option.drafter) or choice.option.tree


@contextmanager
def busy_machine(busy: bool) -> Iterator[None]:
    """Run another process that computes meanwhile, if `busy`."""
    if not busy:
        yield
        return
    other = subprocess.Popen([sys.executable, "-c", BUSY_LOOP])
    try:
        yield
    finally:
        other.kill()
        other.wait()


class NoisyTensors:
    """Weights with noise on every matrix.

    Args:
        tensors: the weights.
        noise: standard deviation, relative to that of the matrix.
        seed: of the noise.
    """

    def __init__(self, tensors: Tensors, noise: float, seed: int) -> None:
        self._tensors, self._noise = tensors, noise
        self._generator = torch.Generator().manual_seed(seed)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._tensors.get(name, shape)
        if tensor.ndim < 2:
            return tensor
        noise = torch.randn(shape, generator=self._generator).to(tensor.device, tensor.dtype)
        return tensor + self._noise * float(tensor.float().std()) * noise


def perturbed_model(
    folder: Path | str,
    noise: float,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transformer:
    """Return the model of a folder with noise on its weights, like a draft model of another target."""
    source = ModelFolder.of(folder)
    tensors = TensorReader.open_files(source.path, source.weight_files, device=torch.device(device), dtype=dtype)
    return build_model(source.config, NoisyTensors(tensors, noise, seed), name=f"{source.path.name} perturbed")
