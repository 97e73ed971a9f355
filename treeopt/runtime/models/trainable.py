"""A transformer's weights in float32, of which gradients are computed, beside the model that decodes with them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.layer import Layer
from treeopt.runtime.models.linear import Linear, Product
from treeopt.runtime.models.transformer import Transformer, Weights


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
        """Return x W^T + b, (n, outputs)."""
        return F.linear(x, self.weight, self.bias)


class TrainableCopy:
    """The weights of a built-in model in float32, and a pass that gradients are computed through.

    They are laid out as the model's own, so that what was learnt is written back number by number.  The norms of single
    heads, where the model has them, stay as they are: all heads share one.

    Args:
        model: whose weights are copied; it is not changed before `write`.
    """

    def __init__(self, model: Transformer) -> None:
        with torch.inference_mode(mode=False):
            self._twin = _remade(model, _trainable, TrainableLinear)
        self._model = model
        products = _products(self._twin)[: -1 if model.config.tied_head else None]
        tensors = [*_vectors(self._twin), *(each for product in products for each in (product.weight, product.bias))]
        self.parameters = [each for each in tensors if each is not None]
        """All that are trained, each once: a tied head is the embedding."""

    def logits(self, tokens: Tensor) -> Tensor:
        """Return logits (n, V) after every token of a text, int64 (n,), with gradients."""
        return self._twin.read(tokens)

    @torch.inference_mode()
    def write(self) -> None:
        """Write the weights over those of the model, in its number format; whatever decodes with it goes on with them."""
        for tensor, trained in zip(_vectors(self._model), _vectors(self._twin), strict=True):
            tensor.copy_(trained)
        for product, other in zip(_products(self._model), _products(self._twin), strict=True):
            assert isinstance(product, Linear)
            product.assign(other.weight, other.bias)


def copied(model: Transformer) -> Transformer:
    """Return a model with the same weights in memory of its own, which may be changed while the other stays."""
    return _remade(model, Tensor.clone, Linear)


def _remade(
    model: Transformer, made: Callable[[Tensor], Tensor], product: Callable[[Tensor, Tensor | None], Product]
) -> Transformer:
    """Return a model of which each tensor was made anew, and each product of tensors made anew."""

    def remade(old: Product) -> Product:
        return product(made(old.weight), None if old.bias is None else made(old.bias))

    def layer(old: Layer) -> Layer:
        return replace(
            old,
            query_key_value=remade(old.query_key_value),
            attention_output=remade(old.attention_output),
            mlp_norm=made(old.mlp_norm),
            gate_up=remade(old.gate_up),
            down=remade(old.down),
        )

    old = model.weights
    embedding = made(old.embedding)
    weights = Weights(
        embedding=embedding,
        layers=tuple(map(layer, old.layers)),
        input_norms=tuple(map(made, old.input_norms)),
        norm=made(old.norm),
        head=product(embedding, None) if model.config.tied_head else remade(old.head),
    )
    return Transformer(model.config, weights, name=model.name)


def _trainable(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32, copy=True).contiguous().requires_grad_()


def _vectors(model: Transformer) -> list[Tensor]:
    weights = model.weights
    return [weights.embedding, weights.norm, *weights.input_norms, *(layer.mlp_norm for layer in weights.layers)]


def _products(model: Transformer) -> list[Product]:
    """Return all products, the head last."""
    weights = model.weights
    inner = [
        product
        for layer in weights.layers
        for product in (layer.query_key_value, layer.attention_output, layer.gate_up, layer.down)
    ]
    return [*inner, weights.head]
