"""A layer of a transformer of the Llama family, as a model or a head on one has it."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.attention import Place
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.linear import Product
from treeopt.runtime.models.rotary import rotate


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one layer but for the norm of its input; products that read the same input are joined."""

    config: ModelConfig
    query_key_value: Product
    """(heads + 2 key_value_heads) * head_size outputs; rotary pairs of queries and keys stand side by side."""
    head_norms: Tensor | None = None
    """(heads + key_value_heads, head_size): of the norm of each head of queries and keys, where the model has one."""
    attention_output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product

    def __call__(self, x: Tensor, residual: Tensor, number: int, place: Place) -> Tensor:
        """Return the residual stream (rows, hidden) after the layer.

        Args:
            x: (rows, inputs), what attention reads.
            residual: (rows, hidden), what attention's output is added to.
            number: of the layer, 0 first.
            place: of the rows.
        """
        attended = place.attend(number, *self.project(x, place.rotations))
        hidden = residual + self.attention_output(attended.transpose(1, 2).reshape(residual.shape[0], -1))
        gate, up = self.gate_up(rms_norm(hidden, self.mlp_norm, self.config)).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * up)

    def project(self, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of texts of n tokens, each (texts, its heads, n, head_size), the first two rotated.

        Args:
            x: (texts * n, inputs).
            rotations: of n positions.
        """
        config = self.config
        turned_heads = config.heads + config.key_value_heads
        joined = self.query_key_value(x)
        joined = joined.view(-1, rotations.shape[0], turned_heads + config.key_value_heads, config.head_size)
        turned = joined[:, :, :turned_heads]
        if self.head_norms is not None:
            turned = F.rms_norm(turned, (config.head_size,), None, config.norm_epsilon) * self.head_norms
        turned = rotate(turned, rotations).transpose(1, 2)
        return turned[:, : config.heads], turned[:, config.heads :], joined[:, :, turned_heads:].transpose(1, 2)


def rms_norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    """Return x (..., width) scaled to a root mean square of 1, times a weight (width,)."""
    return F.rms_norm(x, x.shape[-1:], weight, config.norm_epsilon)
