r"""Explicit weights of fully connected networks, and direct parameters of any weights with a proof of their bound.

(d, X, Y) to :math:`W_k, \Lambda_k`, and back. Source: Wang and Manchester (2023), theorem that the parameterization is
complete, proposition on linear layers, and their proofs. Of the readings where the text contradicts itself,
:math:`\Lambda_k = \Psi_k^2` agrees with the weights.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lbdn.cayley import inverse_cayley
from lbdn.layers import AolLin, OrthogonalLin, PlainLin, SandwichFc, SandwichLin
from lbdn.layers.base import MAX_GAIN, MAX_LOGARITHM, Activation
from lbdn.layers.constrained import ConstrainedLin
from lbdn.layers.frozen import thawed
from lbdn.networks import Network

TOLERANCE = 1e-7  # about the root of the float64 rounding: what singular values near zero and one are known to


@dataclass(frozen=True)
class Explicit:
    r"""A network :math:`W_L \sigma(\dots \sigma(W_0 x + b_0) \dots) + b_L`, in float64.

    Attributes:
        weights: :math:`W_0, \dots, W_L`.
        biases: :math:`b_0, \dots, b_L`.
        multipliers: the diagonals of :math:`\Lambda_0, \dots, \Lambda_{L-1}` that prove the bound; None for networks
            whose bound rests on something else.
        gamma: the bound; None for unconstrained networks.
        activation: :math:`\sigma`.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    multipliers: list[Tensor] | None
    gamma: float | None
    activation: Activation

    def plain(self) -> nn.Sequential:
        """Return the network as ordinary linear layers and activations, in float64."""
        layers: list[nn.Module] = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
            with torch.no_grad():
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
            layers += [linear, _Elementwise(self.activation)]
        return nn.Sequential(*layers[:-1])


def explicit(network: Network) -> Explicit | None:
    r"""Return the explicit form of a fully connected network, from normalised input.

    For Sandwich layers :math:`W_k = 2 \Psi_k^{-1} B_k A_{k-1}^T \Psi_{k-1}` between
    :math:`W_0 = \sqrt{2\gamma}\, \Psi_0^{-1} B_0` and :math:`W_L = \sqrt{2\gamma}\, B_L A_{L-1}^T \Psi_{L-1}`, with
    :math:`\Lambda_k = \Psi_k^2`; for other layers the matrix that multiplies the input, without multipliers.

    Returns:
        None for a network with other layers than those of the built-in families' fully connected networks, such as
        convolutions or residual blocks, and where they don't come as :math:`\sigma` does: the same after every layer
        but the last.

    Source: Wang and Manchester (2023), equation of the weights.
    """
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    multipliers: list[Tensor] = []
    body = map(thawed, copy.deepcopy(network).double().body)
    layers: list[Any] = [layer for layer in body if not isinstance(layer, nn.Flatten)]
    known = SandwichFc | SandwichLin | OrthogonalLin | AolLin | PlainLin | ConstrainedLin
    if not layers or not all(isinstance(layer, known) for layer in layers):
        return None
    functions: list[Any] = [getattr(layer, "activation", None) for layer in layers]
    *activations, last = functions
    if last is not None or None in activations or len(set(map(_function, activations))) > 1:
        return None
    activation: Activation = activations[0] if activations else nn.ReLU()
    pending: Tensor | None = None  # sqrt(2) A^T Psi of the Sandwich layer before
    for layer in layers:
        weight, *following = (operator.detach() for operator in layer.operators())
        weights.append(weight if pending is None else weight @ pending)
        biases.append(weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach())
        pending = following[0] if following else None
        if isinstance(layer, SandwichFc):
            multipliers.append(torch.exp(2 * layer.log_psi.detach().clamp(-MAX_LOGARITHM, MAX_LOGARITHM)))
    proved = len(multipliers) == len(weights) - 1
    return Explicit(weights, biases, multipliers if proved else None, network.gamma, activation)


def _function(activation: Any) -> Any:
    """Return what two activations have in common only if they compute the same."""
    if not isinstance(activation, nn.Module):
        return activation
    common = vars(nn.Module())
    own = {name: value for name, value in vars(activation).items() if name not in common}
    return type(activation), repr(own), *(str(value.tolist()) for value in activation.state_dict().values())


def direct(form: Explicit) -> Network:
    r"""Return a Sandwich network with the same weights, for any weights whose multipliers satisfy the LMI.

    :math:`\Psi_k = \Lambda_k^{1/2}`, and from the first layer on
    :math:`B_k = \tfrac12 \Psi_k W_k \Psi_{k-1}^{-1} (A_{k-1}^T)^+`, :math:`A_k = (I - B_k B_k^T)^{1/2}`, with
    :math:`A_{-1} = I, \Psi_{-1} = \sqrt{\gamma/2}\, I, \Psi_L = \sqrt{2/\gamma}\, I`. The square root is symmetric and
    positive semi-definite: it exists where a Cholesky factorization doesn't, and has no eigenvalue -1, as the inverse
    Cayley transform asks for.

    Returns:
        In float64, on normalised input. Its explicit weights equal the given ones up to rounding; the smaller a nonzero
        singular value of some :math:`A_k`, the more of it.

    Raises:
        ValueError: for another form, without gamma or multipliers, for multipliers that aren't positive, or where the
            LMI doesn't hold.

    Source: Wang and Manchester (2023), proof of necessity in the theorem that the parameterization is complete.
    """
    if not isinstance(form, Explicit):
        raise ValueError(
            f"direct takes explicit(network), which only fully connected networks have, got {type(form).__name__}"
        )
    if form.gamma is None or form.multipliers is None or not all((m > 0).all() for m in form.multipliers):
        raise ValueError("direct takes a Lipschitz bound and positive multipliers that prove it")
    gamma = form.gamma
    before = torch.full((form.weights[0].shape[1],), math.sqrt(gamma / 2), dtype=torch.float64)
    A = torch.eye(len(before), dtype=torch.float64)
    layers: list[nn.Module] = []
    for k, (weight, bias) in enumerate(zip(form.weights, form.biases, strict=True)):
        last = k == len(form.weights) - 1
        psi = weight.new_full((len(weight),), math.sqrt(2 / gamma)) if last else form.multipliers[k].sqrt()
        scaled = psi[:, None] * weight / before / 2
        B = scaled @ _pinv(A).mT
        residual = float(torch.linalg.matrix_norm(B @ A.mT - scaled, 2))
        norm = float(torch.linalg.matrix_norm(B, 2))
        if residual > TOLERANCE or norm > 1 + TOLERANCE:
            raise ValueError(
                f"the multipliers don't prove gamma {gamma:g}: at layer {k} a matrix that has norm at most 1 where the "
                f"LMI holds has {norm:.6g}, and {residual:.3g} of the weight lies where the layer before has none"
            )
        A = _complement(B)
        layers.append(_layer(A, B, psi, bias, form.activation, math.sqrt(gamma) if k == 0 or last else 1.0, last))
        before = psi
    return Network(layers, outputs=len(form.biases[-1]), gamma=gamma)


def linear_factors(weight: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return (A, B) with :math:`W = 2 A^T B` and :math:`A A^T + B B^T = I`, for any W of norm at most one.

    With the singular value decomposition :math:`W = U_w \Sigma V_w^T`, the factors are
    :math:`A = U_w \Sigma_a U_w^T` and :math:`B = U_w \Sigma_b V_w^T` with
    :math:`\Sigma_{a,b} = \tfrac12 (\sqrt{1+\Sigma} \pm \sqrt{1-\Sigma})`. A is symmetric and positive definite: it
    has no eigenvalue -1, and (A, B) comes from the Cayley transform.

    Raises:
        ValueError: if the norm of W is larger than one.

    Source: Wang and Manchester (2023), proof of the proposition on linear layers.

    >>> A, B = linear_factors(torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.0]], dtype=torch.float64))
    >>> 2 * A.mT @ B
    tensor([[0.0000, 1.0000, 0.0000],
            [0.5000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    U, sigma, Vh = torch.linalg.svd(weight)
    if len(sigma) and sigma[0] > 1 + TOLERANCE:
        raise ValueError(f"linear_factors takes a matrix of norm at most 1, got {float(sigma[0]):.6g}")
    padded = torch.cat([sigma.clamp(max=1), sigma.new_zeros(len(U) - len(sigma))])
    plus, minus = (1 + padded).sqrt(), (1 - padded).sqrt()
    B = U[:, : len(sigma)] * ((plus - minus) / 2)[: len(sigma)] @ Vh[: len(sigma)]
    return U * ((plus + minus) / 2) @ U.mT, B


def _complement(B: Tensor) -> Tensor:
    """Return the symmetric square root of I - B B^T; singular values of B that are one up to rounding count as one."""
    U, sigma, _ = torch.linalg.svd(B)
    padded = torch.cat([sigma.clamp(max=1), sigma.new_zeros(len(U) - len(sigma))])
    gap = torch.where(1 - padded < len(U) * torch.finfo(B.dtype).eps, 0.0, 1 - padded)
    return U * (gap * (1 + padded)).sqrt() @ U.mT


def _pinv(A: Tensor) -> Tensor:
    """Return the pseudo-inverse of a symmetric positive semi-definite A."""
    eigenvalues, vectors = torch.linalg.eigh(A)
    inverse = torch.where(eigenvalues > len(A) * torch.finfo(A.dtype).eps, 1 / eigenvalues, 0.0)
    return vectors * inverse @ vectors.mT


def _layer(
    A: Tensor, B: Tensor, psi: Tensor, bias: Tensor, activation: Activation, scale: float, last: bool
) -> SandwichFc | SandwichLin:
    """Return the Sandwich layer whose Cayley transform gives A and B."""
    q, p = B.shape
    layer = SandwichLin(p, q, scale=scale) if last else SandwichFc(p, q, scale=scale, activation=activation)
    layer.double()
    stacked = inverse_cayley(A.mT, B.mT)
    gain, logarithm = float(torch.linalg.vector_norm(stacked)), 0.0 if last else float(psi.log().abs().max())
    if gain > MAX_GAIN or logarithm > MAX_LOGARITHM:
        raise ValueError(
            f"layers hold gains up to {MAX_GAIN:g} and logarithms of Psi up to {MAX_LOGARITHM:g}, got {gain:.3g} and "
            f"{logarithm:.3g}"
        )
    with torch.no_grad():
        layer.stacked.copy_(stacked)
        layer.gain.fill_(gain)
        if layer.bias is not None:
            layer.bias.copy_(bias)
        if isinstance(layer, SandwichFc):
            layer.log_psi.copy_(psi.log())
    return layer


class _Elementwise(nn.Module):
    """An activation, which may be any function, as a module."""

    def __init__(self, function: Activation) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
