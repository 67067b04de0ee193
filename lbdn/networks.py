"""Networks with a Lipschitz bound, built from an architecture and a family of layers."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lbdn import registry
from lbdn.architectures import Layers, Selection
from lbdn.layers import Family, InputNormalization, LastLayerNormalization
from lbdn.layers.base import positive_scale, unit_norm
from lbdn.layers.frozen import thawed


class Network(nn.Module):
    """A network on pixels in [0, 1]: normalisation, then a body of known Lipschitz bound.

    Args:
        body: the layers, in order.
        outputs: how many the last layer has.
        gamma: the bound of the body; of each output alone, if the last layer is a ``LastLayerNormalization``. None
            if there is no bound.
        normalization: in front of the body, or None.
    """

    def __init__(
        self,
        body: Sequence[nn.Module],
        *,
        outputs: int,
        gamma: float | None,
        normalization: InputNormalization | None = None,
    ) -> None:
        super().__init__()
        self.outputs = outputs
        self.normalization = normalization
        self.body = nn.Sequential(*body)
        self._gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (logits, for a classifier) of a batch."""
        return self.body(x if self.normalization is None else self.normalization(x))

    @property
    def gamma(self) -> float | None:
        """Upper Lipschitz bound of the map from normalised input to outputs; None for unconstrained networks."""
        if self._gamma is None or self._rows is None:
            return self._gamma
        return self._gamma * float(torch.linalg.matrix_norm(self._rows, 2))

    @property
    def pixel_gamma(self) -> float | None:
        """Upper Lipschitz bound of the map from pixels in [0, 1] to outputs: gamma / min(std)."""
        return None if self.gamma is None else self.gamma * self._pixel_factor

    def pair_gamma(self) -> Tensor | None:
        """Return upper Lipschitz bounds, from pixels, of the differences of outputs.

        Returns:
            float64, ``(outputs, outputs)``: the square root of 2 times ``pixel_gamma`` for each pair, or the distance
            of the two rows times the bound of the body with last-layer normalisation; None for unconstrained networks.
        """
        if self._gamma is None:
            return None
        bound = self._gamma * self._pixel_factor
        if self._rows is None:
            apart = 1 - torch.eye(self.outputs, dtype=torch.float64)
            return math.sqrt(2) * bound * apart
        return bound * torch.cdist(self._rows, self._rows, compute_mode="donot_use_mm_for_euclid_dist")

    @property
    def _pixel_factor(self) -> float:
        return 1.0 if self.normalization is None else self.normalization.bound

    @property
    def _rows(self) -> Tensor | None:
        last = thawed(self.body[-1])
        return unit_norm(last.weight.detach().double(), dim=1) if isinstance(last, LastLayerNormalization) else None


def build_network(
    architecture: str,
    family: str,
    *,
    size: str = "small",
    gamma: float | None = 1.0,
    input_shape: Sequence[int],
    outputs: int,
    normalization: tuple[Sequence[float], Sequence[float]] | None = None,
    last_layer_normalization: bool = False,
) -> Network:
    """Return a network that is ``gamma``-Lipschitz from normalised input, if its family has a bound.

    The square root of gamma multiplies the input of the first and of the last layer.

    Args:
        architecture: a name: "toy", "mlp", "kwlarge", "deep" or one that a package registered.
        family: a name of ``lbdn.registry.names("families")``.
        size: a name that the architecture knows.
        gamma: the bound, ignored for unconstrained families.
        input_shape: of one input, without the batch: ``(features,)`` or ``(channels, height, width)``.
        outputs: how many.
        normalization: mean and standard deviation of each channel, or None.
        last_layer_normalization: whether the last layer normalises its rows; certificates then hold pair by pair.

    Raises:
        ValueError: for an unknown name, a gamma that isn't positive and finite, or shapes that don't fit.

    >>> network = build_network("kwlarge", "sandwich", gamma=2.0, input_shape=(3, 32, 32), outputs=100)
    >>> sum(p.numel() for p in network.parameters()), network.gamma
    (3038299, 2.0)
    """
    chosen: Family = registry.find("families", family)
    build: Callable[..., Layers] = registry.find("architectures", architecture)
    bound = positive_scale(gamma, "gamma") if chosen.bounded else None
    if not all(n > 0 for n in (*input_shape, outputs)):
        raise ValueError(f"input_shape and outputs take positive numbers, got {tuple(input_shape)} and {outputs}")
    scale = 1.0 if bound is None else math.sqrt(bound)
    last: Callable[..., nn.Module] | None = LastLayerNormalization if last_layer_normalization else chosen.linear
    if last is None:
        last = Selection
    body = build(chosen, size=size, scale=scale, input_shape=tuple(input_shape), outputs=outputs, last=last)
    return Network(
        body,
        outputs=outputs,
        gamma=bound,
        normalization=None if normalization is None else InputNormalization(*normalization),
    )
