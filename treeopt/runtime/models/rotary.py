"""Rotary positions (Su et al., 2021): the angles that queries and keys are turned by, and tables of them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from treeopt.files.fields import Fields

KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All frequencies divided by `factor`, as if the positions were (Chen et al., 2023)."""

    factor: float

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

    def scaled(self, frequencies: Tensor) -> Tensor:
        """Return the frequencies, radians per position, that take the place of these."""
        turns = frequencies * self.original_positions / (2 * math.pi)
        span = self.high_frequency_factor - self.low_frequency_factor
        kept = ((turns - self.low_frequency_factor) / span).clamp(0, 1)
        return torch.lerp(frequencies / self.factor, frequencies, kept)


RopeScaling = LinearScaling | Llama3Scaling


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
    return float(base), None if kind == "default" else _scaling(kind, fields, fields.mapping(name), longest)


def _scaling(kind: str, fields: Fields, settings: Fields, longest: int) -> RopeScaling:
    factor = settings.number("factor", least=1.0)
    if kind == "linear":
        return LinearScaling(factor)
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    if low >= high:
        raise settings.error("high_freq_factor", f"expected more than low_freq_factor, {low:g}. Got {high:g}.")
    key = "original_max_position_embeddings"
    return Llama3Scaling(
        factor=factor,
        low_frequency_factor=low,
        high_frequency_factor=high,
        original_positions=next((each.integer(key) for each in (fields, settings) if key in each), longest),
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
        self._table = self._computed(0).to(device)
        self.device = device

    def up_to(self, positions: int) -> Tensor:
        """Return complex64 (positions, 1, head_size / 2), e^(i * position * frequency); it never changes."""
        if positions > len(self._table):
            self._table = self._computed(positions).to(self.device)
        return self._table[:positions]

    def _computed(self, positions: int) -> Tensor:
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), self._frequencies)
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)[:, None, :]


def rotate(heads: Tensor, rotations: Tensor) -> Tensor:
    """Return heads (batch, n, heads, head_size), each pair of neighbouring numbers turned by (n, 1, head_size / 2)."""
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(heads.dtype)
