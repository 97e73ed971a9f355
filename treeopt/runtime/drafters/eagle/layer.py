"""The decoder layers of a head, out of its tensors."""

from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.layer import Layer
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.weights import gate_up, head_norms, query_key_value


def head_layer(tensors: TensorReader, config: ModelConfig, prefix: str, inputs: int) -> Layer:
    """Return a layer whose attention reads so many inputs; biases and norms of queries are there where stored."""
    hidden, inner, attention, mlp = config.hidden, config.intermediate, f"{prefix}.self_attn", f"{prefix}.mlp"
    out = f"{attention}.o_proj"
    return Layer(
        config=config,
        query_key_value=Linear(
            query_key_value(tensors, config, attention, "weight", inputs),
            query_key_value(tensors, config, attention, "bias") if f"{attention}.q_proj.bias" in tensors else None,
        ),
        head_norms=head_norms(tensors, config, attention) if f"{attention}.q_norm.weight" in tensors else None,
        attention_output=Linear(
            tensors.get(f"{out}.weight", (hidden, config.heads * config.head_size)),
            tensors.get(f"{out}.bias", (hidden,)) if f"{out}.bias" in tensors else None,
        ),
        mlp_norm=tensors.get(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
        gate_up=Linear(
            gate_up(tensors, mlp, "weight", inner, hidden),
            gate_up(tensors, mlp, "bias", inner) if f"{mlp}.gate_proj.bias" in tensors else None,
        ),
        down=Linear(
            tensors.get(f"{mlp}.down_proj.weight", (hidden, inner)),
            tensors.get(f"{mlp}.down_proj.bias", (hidden,)) if f"{mlp}.down_proj.bias" in tensors else None,
        ),
    )
