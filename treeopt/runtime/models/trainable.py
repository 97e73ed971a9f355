"""A trainable float32 copy of a transformer, whose weights can be written back to the model that decodes."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.linear import Linear, Product
from treeopt.runtime.models.transformer import Layer, Transformer, Weights


class TrainableLinear:
    """y = x W^T + b with gradients.

    Args:
        weight: W (outputs, inputs).
        bias: b (outputs,) or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.parameters = weight.numel() + (0 if bias is None else bias.numel())

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class TrainableCopy:
    """The weights of a built-in model in float32, and a differentiable forward pass.

    The layout equals the model's, so that trained weights are written back element by element.  The norms of query and
    key heads are not trained: all heads share one.

    Args:
        model: its weights are copied; it does not change before `write`.
    """

    def __init__(self, model: Transformer) -> None:
        with torch.inference_mode(mode=False):
            self._twin = _rebuild(model, _make_trainable, TrainableLinear)
        self._model = model
        products = self._twin.weights.products[: -1 if model.config.tied_head else None]
        tensors = [
            *self._twin.weights.vectors,
            *(part for product in products for part in (product.weight, product.bias)),
        ]
        self.parameters = [tensor for tensor in tensors if tensor is not None]
        """All trained tensors, each once: a tied head is the embedding."""

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
            assert isinstance(product, Linear)
            product.assign(other.weight, other.bias)


def copy_model(model: Transformer) -> Transformer:
    """Return a deep copy of a model."""
    return _rebuild(model, Tensor.clone, Linear)


def _rebuild(
    model: Transformer, copy: Callable[[Tensor], Tensor], make_product: Callable[[Tensor, Tensor | None], Product]
) -> Transformer:
    """Return a model with copies of all tensors, and products made from these."""

    def copy_product(old: Product) -> Product:
        return make_product(copy(old.weight), None if old.bias is None else copy(old.bias))

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
        head=make_product(embedding, None) if model.config.tied_head else copy_product(old.head),
    )
    return Transformer(model.config, weights, name=model.name)


def _make_trainable(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32, copy=True).contiguous().requires_grad_()
