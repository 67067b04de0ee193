"""Reference computations that know nothing of the implementation."""

import copy

import numpy as np
import torch
from torch import Tensor, nn


def tolerance(dtype: torch.dtype) -> float:
    """Half of the digits of a floating-point type."""
    return torch.finfo(dtype).eps ** 0.5


def dense_operator(linear, shape, dtype=torch.float64) -> Tensor:
    """The matrix of a linear map of batches of tensors, by pushing an identity through it."""
    size = int(np.prod(shape))
    return linear(torch.eye(size, dtype=dtype).reshape(size, *shape)).detach().reshape(size, -1).double().mT


def spectral_norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.double(), 2)) if matrix.isfinite().all() else float("nan")


def jacobian(function, x: Tensor) -> Tensor:
    """The matrix of derivatives at one input, without batch dimension, in float64."""
    derivatives = torch.autograd.functional.jacobian(lambda x: function(x[None])[0].flatten(), x)
    return derivatives.reshape(-1, x.numel()).double()


def jacobian_norm(function, x: Tensor) -> float:
    return spectral_norm(jacobian(function, x))


def ratios(function, x: Tensor, y: Tensor) -> Tensor:
    """Distances of outputs over distances of inputs, pair by pair."""
    return (function(x) - function(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)


def assert_lipschitz(module: nn.Module, shape, bound: float, dtype=torch.float64) -> None:
    """Check the Jacobian at a random point in the given type, and random pairs in float64. NaN is a failure, too."""
    norm = jacobian_norm(module, torch.randn(*shape, dtype=dtype))
    assert norm <= bound * (1 + tolerance(dtype)), f"Jacobian norm {norm} above {bound}"
    exact = copy.deepcopy(module).double()
    x = 3 * torch.randn(24, *shape, dtype=torch.float64)
    distances = torch.logspace(-3, 1, 24, dtype=torch.float64).reshape(-1, *(1 for _ in shape))
    y = x + distances * torch.randn_like(x)
    rounding = 10 * torch.finfo(torch.float64).eps * exact(x).detach().flatten(1).norm(dim=1)
    ratio = ratios(exact, x, y).detach() - rounding / (x - y).flatten(1).norm(dim=1)
    assert (ratio <= bound * (1 + tolerance(torch.float64))).all(), f"ratio {ratio.max()} above {bound}"


def circular_convolution(images: Tensor, kernel: Tensor) -> Tensor:
    """y[o, i, j] = sum over c, a, b of kernel[o, c, a, b] x[c, i - a + k // 2, j - b + k // 2], wrapping around."""
    k = kernel.shape[-1]
    result = images.new_zeros(images.shape[0], kernel.shape[0], *images.shape[2:])
    for a in range(k):
        for b in range(k):
            moved = torch.roll(images, (a - k // 2, b - k // 2), dims=(-2, -1))
            result += torch.einsum("oc,ncij->noij", kernel[:, :, a, b], moved)
    return result


def dense_cayley(stacked) -> tuple[np.ndarray, np.ndarray]:
    """The paper's definition of (A^T, B^T), with NumPy."""
    stacked = np.asarray(stacked)
    q = stacked.shape[1]
    X, Y, identity = stacked[:q], stacked[q:], np.eye(q)
    Z = X - X.conj().T + Y.conj().T @ Y
    inverse = np.linalg.inv(identity + Z)
    return inverse @ (identity - Z), -2 * Y @ inverse


def perturb(module: nn.Module, spread: float = 1.0) -> nn.Module:
    """Add noise to every parameter, so that none keeps a special initial value."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += spread * torch.randn_like(parameter)
    return module
