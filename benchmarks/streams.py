"""Streams of sequences that change at one point, and the profiles and plans that fit before and after the change."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from common import prose_prompts

from treeopt.planner import PlanRequest, requested_plan
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
from treeopt.trees import TokenTree

RULE = "sequoia"
SAMPLED = Sampling(1.0)
PROMPT_TOKENS = 64
"""Longest prompt."""
PROSE_PROMPTS = 16
SHORTENED_TOKENS = 5
"""Reduction of a prompt's length every time that it is reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Size of the measurements and of the streams."""

    tokens: int = 4000
    """Of each stream."""
    new_tokens: int = 200
    """Of each sequence."""
    change_at: float = 0.25
    """Share of the sequences before the change."""
    time_budget_s: float = 60
    """Of each profile."""
    max_nodes: int = 64
    positions: int = 1536
    """Most that are counted."""
    branching: int = 8
    depth: int = 12

    @property
    def sequences(self) -> int:
        return max(2, self.tokens // self.new_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One side of a stream's change: prompts, draft model and sampling of decoding and of the profile."""

    name: str
    draft: LanguageModel
    measured_prompts: Sequence[Sequence[int]]
    prompts: Sequence[Sequence[int]]
    """Token ids, different from the measured ones."""
    context_tokens: int
    sampling: Sampling = GREEDY

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
    prompts, prose = load_prompts(), list(islice(prose_prompts(4 * PROMPT_TOKENS), PROSE_PROMPTS))
    kinds = profile_prompts(prompts), bench_prompts(prompts), prose[::2], prose[1::2]
    measured, held_out, measured_prose, other_prose = (
        [models.tokenizer.encode(text)[:PROMPT_TOKENS] for text in texts] for texts in kinds
    )
    code = Part(
        name="code",
        draft=models.draft_model,
        measured_prompts=measured,
        prompts=held_out,
        context_tokens=PROMPT_TOKENS + new_tokens // 2,
    )
    other_draft = replace(code, name="perturbed", draft=perturbed)
    parts = {
        "draft perturbed": (code, other_draft),
        "draft restored": (other_draft, code),
        "temperature 0 to 1": (code, replace(code, name="sampled", sampling=SAMPLED)),
        "code to prose": (code, replace(code, name="prose", measured_prompts=measured_prose, prompts=other_prose)),
        "steady: short code": (code, code),
        "steady: perturbed draft": (other_draft, other_draft),
    }
    return {name: Stream(name=name, before=before, after=after) for name, (before, after) in parts.items()}


def measure_profile(models: ModelPair, part: Part, effort: Effort, *, show_progress: bool = True) -> Profile:
    """Measure acceptance and times for one part, as `treeopt profile` does."""
    max_tokens = max_sequence_tokens(models.target, part.draft)
    longest = max_tokens - ROOM_TOKENS
    available = (max_tokens - max(map(len, part.measured_prompts))) * len(part.measured_prompts)
    settings = Settings(
        rules=(RULE,),
        samplings=(part.sampling,),
        context_tokens=tuple(sorted({min(longest, tokens) for tokens in (part.context_tokens, longest // 2, longest)})),
        max_tokens=effort.max_nodes,
        time_budget_s=effort.time_budget_s,
        positions=min(effort.positions, available),
        branching=effort.branching,
        depth=effort.depth,
    )
    clock, checkpoint = clock_for(models.target.device), Checkpoint(None, "")
    measurement = Measurement(
        models.target, part.draft, part.measured_prompts, settings, clock=clock, checkpoint=checkpoint
    )
    return measurement.profile(show_progress=show_progress)


def request_for(part: Part) -> PlanRequest:
    return PlanRequest(rule=RULE, temperature=part.sampling.temperature, context_tokens=part.context_tokens)


def plan_for(profile: Profile, part: Part) -> TokenTree:
    return requested_plan(profile, request_for(part)).choice.tree


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
