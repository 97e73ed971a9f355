"""A trainable float32 copy of a transformer, whose weights can be written back to the model that decodes."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.transformer import Layer, Transformer, Weights


class TrainableCopy:
    """The weights of a built-in model in float32, and a differentiable forward pass.

    The layout equals the model's, so that trained weights are written back element by element.  The norms of query and
    key heads are not trained: all heads share one.
    """

    def __init__(self, model: Transformer) -> None:
        self.parameters: list[Tensor] = []
        """All trained tensors, each once: a tied head is the embedding."""
        with torch.inference_mode(mode=False):
            self._twin = _rebuild(model, self._make_parameter)
        self._model = model

    def logits(self, tokens: Tensor) -> Tensor:
        """Return logits (n, V) after every token of a sequence, int64 (n,), with gradients."""
        return self._twin.forward_uncached(tokens)

    @torch.inference_mode()
    def write(self) -> None:
        """Copy the weights to the model, in its dtype and in place."""
        weights, trained = self._model.weights, self._twin.weights
        for tensor, new in zip(weights.vectors, trained.vectors, strict=True):
            tensor.copy_(new)
        for product, other in zip(weights.products, trained.products, strict=True):
            product.assign(other.weight, other.bias)

    def _make_parameter(self, tensor: Tensor) -> Tensor:
        self.parameters.append(tensor.detach().to(torch.float32, copy=True).contiguous().requires_grad_())
        return self.parameters[-1]


def copy_model(model: Transformer) -> Transformer:
    return _rebuild(model, Tensor.clone)


def _rebuild(model: Transformer, copy: Callable[[Tensor], Tensor]) -> Transformer:
    """Return a model with copies of all tensors but the norms of query and key heads."""

    def copy_product(old: Linear) -> Linear:
        return Linear(copy(old.weight), None if old.bias is None else copy(old.bias))

    def copy_layer(old: Layer) -> Layer:
        return replace(
            old,
            query_key_value=copy_product(old.query_key_value),
            attention_output=copy_product(old.attention_output),
            mlp_norm=copy(old.mlp_norm),
            gate_up=copy_product(old.gate_up),
            down=copy_product(old.down),
        )

    old = model.weights
    embedding = copy(old.embedding)
    weights = Weights(
        embedding=embedding,
        layers=tuple(map(copy_layer, old.layers)),
        input_norms=tuple(map(copy, old.input_norms)),
        norm=copy(old.norm),
        head=Linear(embedding) if model.config.tied_head else copy_product(old.head),
    )
    return Transformer(model.config, weights, name=model.name)
