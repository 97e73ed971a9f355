"""Rotary positions (Su et al., 2021)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from treeopt.files.fields import Fields

KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: all frequencies divided by `factor` (Chen et al., 2023)."""

    factor: float
    amplitude: ClassVar[float] = 1.0
    """Factor of rotated queries and keys."""

    def scale(self, frequencies: Tensor) -> Tensor:
        """Return the scaled frequencies, in radians per position."""
        return frequencies / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones unchanged, a ramp between them (Llama 3.1).

    Low frequencies make fewer than `low_frequency_factor` turns over the original positions, high ones more than
    `high_frequency_factor`.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: int
    amplitude: ClassVar[float] = 1.0

    def scale(self, frequencies: Tensor) -> Tensor:
        turns = frequencies * self.original_positions / (2 * math.pi)
        span = self.high_frequency_factor - self.low_frequency_factor
        unscaled = ((turns - self.low_frequency_factor) / span).clamp(0, 1)
        return torch.lerp(frequencies / self.factor, frequencies, unscaled)


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Like Llama 3's, with a ramp over the index of the frequency and larger scores (YaRN, Peng et al., 2023).

    Low frequencies come after the one that makes `slow_turns` turns over the original positions, high ones before the
    one that makes `fast_turns`.
    """

    factor: float
    original_positions: int
    amplitude: float
    """Factor of rotated queries and keys, by default 0.1 ln(factor) + 1 (section 3.4)."""
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    truncate: bool = True
    """Whether the ramp begins and ends at whole indices."""

    @property
    def max_positions(self) -> int:
        """Maximum sequence length after scaling."""
        return int(self.factor * self.original_positions)

    def scale(self, frequencies: Tensor) -> Tensor:
        """Return the scaled frequencies, given a geometric series from 1, in radians per position."""
        ratio = float(frequencies[min(1, len(frequencies) - 1)])

        def index(turns: float) -> float:
            """Return the index of the frequency that makes these turns: ratio**index * positions = 2 pi * turns."""
            return math.log(2 * math.pi * turns / self.original_positions) / math.log(ratio) if ratio < 1 else 0.0

        first, last = index(self.fast_turns), index(self.slow_turns)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(frequencies) - 1)
        steps = torch.arange(len(frequencies), dtype=frequencies.dtype) - first
        unscaled = 1 - (steps / (last - first if last != first else 0.001)).clamp(0, 1)
        return torch.lerp(frequencies / self.factor, frequencies, unscaled)


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


def parse_rope(fields: Fields, content: dict[str, object], max_positions: int) -> tuple[float, RopeScaling | None]:
    """Return the base and the scaling of the frequencies; `max_positions` is the default of the original positions.

    Newer files have `rope_parameters`, older ones `rope_theta` and `rope_scaling`.  Raises FormatError for other kinds
    of scaling and invalid fields.
    """
    name = next((key for key in ("rope_scaling", "rope_parameters") if content.get(key)), "rope_parameters")
    settings = content.get(name) or {}
    if not isinstance(settings, dict):
        raise fields.error(name, f"expected fields with names. Got {settings!r}.")
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in KINDS or any(isinstance(value, dict) for value in settings.values()):
        raise fields.error(name, f"expected one of {', '.join(KINDS)}, the same for all layers. Got {kind!r}.")
    for mapping in (content, settings):
        factor = mapping.get("partial_rotary_factor")
        if factor not in (None, 1):
            raise fields.error("partial_rotary_factor", f"expected 1. Got {factor!r}.")
    base = settings.get("rope_theta", content.get("rope_theta", 10_000.0))
    if isinstance(base, bool) or not isinstance(base, int | float) or not 0 < base < math.inf:
        raise fields.error("rope_theta", f"expected a number above 0. Got {base!r}.")
    if kind == "default":
        return float(base), None
    key = "original_max_position_embeddings"
    inner = fields.mapping(name)
    original = next((mapping.integer(key) for mapping in (fields, inner) if key in mapping), max_positions)
    if kind == "yarn":
        present = {field for field, value in settings.items() if value is not None}
        return float(base), _parse_yarn(inner, present, original)
    return float(base), _parse_scaling(kind, inner, original)


def _parse_scaling(kind: str, settings: Fields, original_positions: int) -> RopeScaling:
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


def _parse_yarn(settings: Fields, present: set[str], original_positions: int) -> YarnScaling:
    factor = settings.number("factor", least=1.0)

    def number(field: str, default: float) -> float:
        return settings.number(field) if field in present else default

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1

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
        truncate="truncate" not in present or settings.flag("truncate"),
    )


class Rotations:
    """A table of rotations by position, which grows on demand; each frequency rotates two numbers of a head."""

    def __init__(self, head_size: int, base: float, scaling: RopeScaling | None, device: torch.device) -> None:
        exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
        frequencies = base**-exponents
        self._frequencies = frequencies if scaling is None else scaling.scale(frequencies)
        self._amplitude = 1.0 if scaling is None else scaling.amplitude
        self._table = self._compute(0).to(device)
        self.device = device

    def up_to(self, positions: int) -> Tensor:
        """Return complex64 (positions, 1, head_size / 2), amplitude * e^(i * position * frequency); rows never change."""
        if positions > len(self._table):
            self._table = self._compute(positions).to(self.device)
        return self._table[:positions]

    def _compute(self, positions: int) -> Tensor:
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), self._frequencies)
        return torch.polar(torch.full_like(angles, self._amplitude), angles).to(torch.complex64)[:, None, :]


def rotate(heads: Tensor, rotations: Tensor) -> Tensor:
    """Return heads (batch, n, heads, head_size), each pair of adjacent numbers rotated by rotations (n, 1, head_size / 2)."""
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(heads.dtype)
