r"""LipSDP: the least Lipschitz bound that diagonal multipliers prove, for fully connected networks of any kind.

Source: Fazlyab et al. (2019), in the variant with one multiplier a neuron, which is the sound one (Pauli et al. 2021);
chordal decomposition as in Xue et al. (2022) and in the proofs of Wang and Manchester (2023).
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lbdn.bounds.lmi import lmi_certificate
from lbdn.explicit import Explicit


def lipsdp(form: Explicit) -> Explicit:
    r"""Return the network with the least gamma that diagonal multipliers prove, and multipliers that do prove it.

    A semi-definite program in gamma, the multipliers and the Schur complements :math:`S_k` of ``lmi_blocks``: one block
    a layer, so its cost grows with the widest pair of layers (its sixth power, by an interior-point solver), not with
    the depth. The solver's answer holds up to its tolerance; the smallest slack with which ``lbdn.verify`` proves it is
    added, so that gamma is an upper bound in real arithmetic, within about a millionth of the least.

    Args:
        form: a network, as ``explicit`` returns it; its own gamma and multipliers aren't used.

    Raises:
        ModuleNotFoundError: without the package cvxpy, naming the extra to install.
        ValueError: for a network without hidden layers, or if the solver finds nothing that can be proved.
    """
    if len(form.weights) < 2:
        raise ValueError("lipsdp takes a network with at least one hidden layer; a matrix has its spectral norm")
    norms = [float(torch.linalg.matrix_norm(W, 2)) for W in form.weights]
    if not all(norm > 0 for norm in norms):
        raise ValueError("lipsdp takes matrices that aren't zero; a network with a zero matrix is constant")
    gamma, multipliers = _solve([W / norm for W, norm in zip(form.weights, norms, strict=True)])
    # Undo the scaling of the hidden units: z_k has been divided by the norms of the layers up to it.
    whole, scale = torch.tensor(norms, dtype=torch.float64).prod(), torch.tensor(norms[:-1]).double().cumprod(0)
    # A solver's zero is no positive multiplier, which a proof asks for.
    multipliers = [whole / s**2 * m.clamp_min(1e-12 * m.max()) for m, s in zip(multipliers, scale, strict=True)]
    candidate = replace(form, gamma=gamma * float(whole), multipliers=multipliers)
    return lmi_certificate(candidate)


def _solve(weights: list[Tensor]) -> tuple[float, list[Tensor]]:
    """Return the least gamma and its multipliers as the solver has them, for matrices of norm one."""
    cp = _cvxpy()
    first, *inner, last = (W.numpy() for W in (_narrow(weights[0].mT).mT, *weights[1:-1], _narrow(weights[-1])))
    gamma = cp.Variable()
    multipliers = [cp.Variable(len(W), nonneg=True) for W in (first, *inner)]
    schur = [cp.Variable((len(W), len(W)), symmetric=True) for W in (first, *inner)]
    corners = [gamma * torch.eye(n).numpy() for n in (first.shape[1], last.shape[0])]
    blocks = []
    for k, (W, before) in enumerate(zip((first, *inner), (corners[0], *schur), strict=False)):
        coupling = cp.diag(multipliers[k]) @ W
        blocks.append(cp.bmat([[before, -coupling.T], [-coupling, 2 * cp.diag(multipliers[k]) - schur[k]]]))
    blocks.append(cp.bmat([[schur[-1], -last.T], [-last, corners[1]]]))
    problem = cp.Problem(cp.Minimize(gamma), [(block + block.T) / 2 >> 0 for block in blocks])
    problem.solve(solver=cp.CLARABEL)
    if gamma.value is None:
        raise ValueError(f"the solver ended with {problem.status}")
    return float(gamma.value), [torch.tensor(m.value, dtype=torch.float64) for m in multipliers]


def _narrow(W: Tensor) -> Tensor:
    """Return a matrix with the same Gram matrix W^T W and no more rows than columns."""
    return torch.linalg.qr(W).R if W.shape[0] > W.shape[1] else W


def _cvxpy() -> Any:
    try:
        import cvxpy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("lipsdp takes cvxpy and Clarabel: pip install 'lbdn[sdp]'") from error
    return cvxpy
