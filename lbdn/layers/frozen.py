"""Networks for evaluation, with the operators of all layers computed once."""

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from lbdn.layers.base import Layer


class Frozen(nn.Module):
    """A layer that computes its operators once for each image size. Its parameters must not change any more.

    They are computed in float64 and rounded once.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer
        self._operators: dict[tuple[int, ...], tuple[Tensor, ...]] = {}

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self._operators.clear()  # of the device and precision before
        return super()._apply(*arguments, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer returns."""
        size = self.layer.image_size(x)
        if size not in self._operators:
            dtype = next(self.layer.parameters()).dtype
            with torch.inference_mode(False), torch.no_grad():
                exact = copy.deepcopy(self.layer).double().operators(*size)
                self._operators[size] = tuple(operator.to(dtype).contiguous() for operator in exact)
        return self.layer.transform(x, *self._operators[size])


def freeze(network: nn.Module) -> nn.Module:
    """Return a copy of a network for evaluation, that computes each layer's operators only once.

    Attacks and searches call a network thousands of times with the same parameters; the copy makes these calls about
    as cheap as those of an unconstrained network. It doesn't follow later changes of the original.
    """
    network = copy.deepcopy(network).eval().requires_grad_(False)
    if isinstance(network, Layer):
        return Frozen(network).eval()
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):  # which, unlike children, may be the same
            if isinstance(child, Layer) and not isinstance(parent, Frozen):
                setattr(parent, name, Frozen(child).eval())
    return network


def thawed(module: nn.Module) -> nn.Module:
    """Return a module of a network, or the layer in it if ``freeze`` has put it there."""
    return module.layer if isinstance(module, Frozen) else module
