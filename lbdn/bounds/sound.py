r"""Certified radii of the network that runs, in floating point, in any order of summation.

The computed logits at x' are those of the exact network of the stored numbers and an error e(x'). The exact difference
of two logits changes by at most :math:`\gamma_{yj} \|x' - x\|`, so the prediction y stays for all floating-point inputs
x' within r of x if

.. math:: f_y(x) - f_j(x) - \gamma_{yj} r > \sqrt2 \max_{\|x' - x\| \le r} \|e(x')\| \quad \text{for every j}.

f(x) is evaluated in float64, its error counted. The error at x' adds up from layer to layer: each one's own,
bounded from the exact hidden units at x and how far they can be at x', times the constants of the layers behind.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lbdn.bounds.enclosure import DOWNWARD, RECOMPUTED, UNIT, UPWARD, accumulated, unit_roundoff
from lbdn.bounds.maps import Matrix
from lbdn.bounds.rounding import Affine, Step
from lbdn.bounds.stored import steps
from lbdn.certify import certified_radius, check_labels
from lbdn.inference import as_input
from lbdn.networks import Network

NUMBERS = 500 * 3 * 32 * 32  # of a batch's inputs: a convolution in float64 takes hundreds of times as many on a CPU


class SoundNetwork:
    """A network as ``freeze`` runs it: Lipschitz bounds of its stored numbers, radii that count all rounding errors.

    Without ``freeze`` the layers compute their operators in less than float64, which may change an answer near a tie.

    Args:
        network: bounded, in float32 or float64, of the built-in families' layers with ReLU.
        example: a batch of one input, in the network's precision.

    Raises:
        ValueError: for another network, or where PyTorch may compute in less than the network's precision.

    Attributes:
        steps: its layers.
        pairs: ``(outputs, outputs)``, upper Lipschitz bounds of the differences of outputs, from pixels.
    """

    def __init__(self, network: Network, example: Tensor) -> None:
        if not isinstance(network, Network):
            raise ValueError(f"SoundNetwork takes a network of build_network or load_run, got {type(network).__name__}")
        _refuse_other_arithmetic(example)
        self.dtype = example.dtype
        self.steps = steps(network, example)
        self.pairs = _pairs(self.steps, network.outputs, unit_roundoff(self.dtype))

    @torch.no_grad()
    def radius(self, inputs: Tensor, labels: Tensor, batch_size: int | None = None) -> Tensor:
        """Return the l2 radius within which no floating-point input changes a correct prediction, rounded down.

        Args:
            inputs: uint8 images or floats.
            labels: int64, ``(n,)``.
            batch_size: how many images to take at once; by default 500, and fewer if they are larger than 3 x 32 x 32.

        Returns:
            float64, ``(n,)``, in pixel units; zero where nothing is certified.

        Raises:
            ValueError: for labels that don't fit.
        """
        check_labels(labels, len(inputs), len(self.pairs))
        if batch_size is None:
            batch_size = max(1, min(500, NUMBERS // inputs.shape[1:].numel()))
        batches = zip(inputs.split(batch_size), labels.split(batch_size), strict=True)
        return torch.cat([self._radius(as_input(x).to(self.dtype).double(), y) for x, y in batches])

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the exact outputs, up to float64, and the errors on the way.

        Args:
            x: a batch in float64, of numbers that the network's precision has.

        Returns:
            The outputs; bounds of how far each step's input, and at last the outputs, are from the exact ones; bounds
            of each step's own rounding error, in the network's precision, at these inputs.
        """
        inexact, own = [x.new_zeros(len(x))], []
        for step in self.steps:
            x, rounding = step.run(x, self.dtype)
            own.append(rounding)
            inexact.append(UPWARD * (step.lipschitz * inexact[-1] + rounding * UNIT / unit_roundoff(self.dtype)))
        return x, inexact, own

    def error_within(self, distance: Tensor, inexact: list[Tensor], own: list[Tensor]) -> Tensor:
        """Return a bound of the norm of the outputs' rounding error, at all inputs within a distance of each image.

        Args:
            distance: one an image.
            inexact: as ``evaluate`` returns them.
            own: likewise.
        """
        error = torch.zeros_like(distance)
        for step, before, rounding in zip(self.steps, inexact, own, strict=False):
            near = rounding + step.spread(self.dtype) * (distance + error + before)
            # Errors that large go with sums that may overflow.
            near = torch.where(near < torch.finfo(self.dtype).max ** 0.5, near, math.inf)
            distance, error = UPWARD * step.lipschitz * distance, UPWARD * (step.lipschitz * error + near)
        return error

    def _radius(self, x: Tensor, labels: Tensor) -> Tensor:
        logits, inexact, own = self.evaluate(x)
        largest = UPWARD * certified_radius(logits, labels, self.pairs)
        error = inexact[-1] + self.error_within(largest, inexact, own)
        lost = UPWARD * (math.sqrt(2) * error + 4 * UNIT * logits.abs().amax(dim=1))
        lowered = logits.scatter_add(1, labels[:, None], -lost[:, None])
        return DOWNWARD * certified_radius(lowered, labels, self.pairs)


@contextmanager
def plain_sums() -> Iterator[None]:
    """Let PyTorch compute matrix products and convolutions as sums of products in their own precision.

    By default cuDNN rounds float32 to TF32, and some convolutions are computed by Winograd's algorithm.
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=False), torch.backends.nnpack.flags(enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def _refuse_other_arithmetic(example: Tensor) -> None:
    device = example.device.type
    if torch.is_autocast_enabled(device):
        raise ValueError("autocast computes in less than the network's precision; certify outside of it")
    mkldnn: Any = torch.backends.mkldnn
    settings = [mkldnn.conv, mkldnn.matmul, torch.backends.cuda.matmul]
    reduced = any(setting.fp32_precision in ("tf32", "bf16") for setting in settings)
    if device == "cuda":
        reduced |= torch.backends.cudnn.enabled
    if device == "cpu":
        direct = mkldnn.is_available() and mkldnn.enabled
        reduced |= torch.backends.nnpack.is_available() and torch._C._get_nnpack_enabled() and not direct
    if reduced:
        raise ValueError(
            "PyTorch is set to compute products of float32 in TF32 or bfloat16, or by algorithms that aren't sums of "
            "products; certify `with plain_sums():`, without another `fp32_precision` in torch.backends"
        )


def _pairs(layers: list[Step], outputs: int, unit: float) -> Tensor:
    """Return Lipschitz bounds of outputs' differences: by the last layer's rows, or root two times all constants."""
    *body, last = layers
    before = math.prod(step.lipschitz for step in body)
    bound = torch.full((outputs, outputs), math.sqrt(2) * before * last.lipschitz, dtype=torch.float64)
    if isinstance(last, Affine) and not last.activated and isinstance(last.map, Matrix):
        rows = last.map.weight
        size = torch.linalg.vector_norm(rows, dim=1)
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        distances = distances + accumulated(RECOMPUTED, unit) * (size[:, None] + size)
        bound = bound.to(rows.device).minimum(before * distances)
    return UPWARD * bound.fill_diagonal_(0)
