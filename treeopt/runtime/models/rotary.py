"""Rotary positions (Su et al., 2021): the angles that queries and keys are turned by, and tables of them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from treeopt.files.fields import Fields

KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All frequencies divided by `factor`, as if the positions were (Chen et al., 2023)."""

    factor: float

    @property
    def amplitude(self) -> float:
        """What turned queries and keys are multiplied by."""
        return 1.0

    def scaled(self, frequencies: Tensor) -> Tensor:
        """Return the frequencies, radians per position, that take the place of these."""
        return frequencies / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, those between in between (Llama 3.1).

    A frequency's turns over the positions of the first training decide: low are those of fewer than
    `low_frequency_factor`, high those of more than `high_frequency_factor`.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: int

    @property
    def amplitude(self) -> float:
        """What turned queries and keys are multiplied by."""
        return 1.0

    def scaled(self, frequencies: Tensor) -> Tensor:
        """Return the frequencies, radians per position, that take the place of these."""
        turns = frequencies * self.original_positions / (2 * math.pi)
        span = self.high_frequency_factor - self.low_frequency_factor
        kept = ((turns - self.low_frequency_factor) / span).clamp(0, 1)
        return torch.lerp(frequencies / self.factor, frequencies, kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """As Llama 3's, but the ramp between is over the number of the frequency, and scores grow (YaRN, Peng et al., 2023).

    Low frequencies are those behind the one that turns `slow_turns` times over the positions of the first training,
    high ones those before the one that turns `fast_turns` times.
    """

    factor: float
    original_positions: int
    amplitude: float
    """What turned queries and keys are multiplied by: 0.1 ln(factor) + 1 unless a file says otherwise (section 3.4)."""
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    whole: bool = True
    """Whether the ramp begins and ends at whole numbers."""

    def scaled(self, frequencies: Tensor) -> Tensor:
        """Return the frequencies, a geometric series from 1 in radians per position, that take the place of these."""
        ratio = float(frequencies[min(1, len(frequencies) - 1)])

        def number(turns: float) -> float:
            """Return which frequency, counted from 0, turns so often: ratio**number * positions = 2 pi * turns."""
            return math.log(2 * math.pi * turns / self.original_positions) / math.log(ratio) if ratio < 1 else 0.0

        first, last = number(self.fast_turns), number(self.slow_turns)
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(frequencies) - 1)
        steps = torch.arange(len(frequencies), dtype=frequencies.dtype) - first
        kept = 1 - (steps / (last - first if last != first else 0.001)).clamp(0, 1)
        return torch.lerp(frequencies / self.factor, frequencies, kept)


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


def parse_rope(fields: Fields, content: dict[str, object], longest: int) -> tuple[float, RopeScaling | None]:
    """Return base and scaling of a `config.json`, whose `fields` and parsed `content` are given.

    They stand in `rope_parameters` in newer files, in `rope_theta` and `rope_scaling` in older ones; `longest` is the
    length trained at last. Raises FormatError for other kinds of scaling and for wrong fields.
    """
    name = next((key for key in ("rope_scaling", "rope_parameters") if content.get(key)), "rope_parameters")
    settings = content.get(name) or {}
    if not isinstance(settings, dict):
        raise fields.error(name, f"expected fields with names. Got {settings!r}.")
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in KINDS or any(isinstance(value, dict) for value in settings.values()):
        raise fields.error(name, f"expected one of {', '.join(KINDS)}, the same for all layers. Got {kind!r}.")
    for each in (content, settings):
        if each.get("partial_rotary_factor") not in (None, 1):
            raise fields.error("partial_rotary_factor", f"expected 1. Got {each['partial_rotary_factor']!r}.")
    base = settings.get("rope_theta", content.get("rope_theta", 10_000.0))
    if isinstance(base, bool) or not isinstance(base, int | float) or not 0 < base < math.inf:
        raise fields.error("rope_theta", f"expected a number above 0. Got {base!r}.")
    if kind == "default":
        return float(base), None
    key = "original_max_position_embeddings"
    inner = fields.mapping(name)
    original = next((each.integer(key) for each in (fields, inner) if key in each), longest)
    said = {field for field, value in settings.items() if value is not None}
    return float(base), _yarn(inner, said, original) if kind == "yarn" else _scaling(kind, inner, original)


def _scaling(kind: str, settings: Fields, original_positions: int) -> RopeScaling:
    factor = settings.number("factor", least=1.0)
    if kind == "linear":
        return LinearScaling(factor)
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    if low >= high:
        raise settings.error("high_freq_factor", f"expected more than low_freq_factor, {low:g}. Got {high:g}.")
    return Llama3Scaling(
        factor=factor,
        low_frequency_factor=low,
        high_frequency_factor=high,
        original_positions=original_positions,
    )


def _yarn(settings: Fields, said: set[str], original_positions: int) -> YarnScaling:
    factor = settings.number("factor", least=1.0)

    def number(field: str, default: float) -> float:
        return settings.number(field) if field in said else default

    def magnitude(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1

    scale, scale_all = number("mscale", 0.0), number("mscale_all_dim", 0.0)
    amplitude = magnitude(scale) / magnitude(scale_all) if scale and scale_all else magnitude(1.0)
    fast, slow = number("beta_fast", 32.0), number("beta_slow", 1.0)
    if slow >= fast:
        raise settings.error("beta_fast", f"expected more than beta_slow, {slow:g}. Got {fast:g}.")
    return YarnScaling(
        factor=factor,
        original_positions=original_positions,
        amplitude=number("attention_factor", amplitude),
        fast_turns=fast,
        slow_turns=slow,
        whole="truncate" not in said or settings.flag("truncate"),
    )


class Rotations:
    """Rotations of the positions 0, 1, 2, … on a device, computed as far as they were asked for.

    Args:
        head_size: numbers of a head, two to a frequency.
        base: of the geometric series of frequencies.
        scaling: of the frequencies.
        device: where they lie.
    """

    def __init__(self, head_size: int, base: float, scaling: RopeScaling | None, device: torch.device) -> None:
        exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
        frequencies = base**-exponents
        self._frequencies = frequencies if scaling is None else scaling.scaled(frequencies)
        self._amplitude = 1.0 if scaling is None else scaling.amplitude
        self._table = self._computed(0).to(device)
        self.device = device

    def up_to(self, positions: int) -> Tensor:
        """Return complex64 (positions, 1, head_size / 2), amplitude * e^(i * position * frequency); it never changes."""
        if positions > len(self._table):
            self._table = self._computed(positions).to(self.device)
        return self._table[:positions]

    def _computed(self, positions: int) -> Tensor:
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), self._frequencies)
        return torch.polar(torch.full_like(angles, self._amplitude), angles).to(torch.complex64)[:, None, :]


def rotate(heads: Tensor, rotations: Tensor) -> Tensor:
    """Return heads (batch, n, heads, head_size), each pair of neighbouring numbers turned by (n, 1, head_size / 2)."""
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(heads.dtype)
