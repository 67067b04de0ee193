r"""LipSDP: the least Lipschitz bound that diagonal multipliers prove, for fully connected networks of any kind.

Source: Fazlyab et al. (2019), in the variant with one multiplier a neuron, which is the sound one (Pauli et al. 2021).
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from lbdn.bounds.lmi import lmi_certificate
from lbdn.explicit import Explicit

SMOOTHING = (3e-2, 6e-3, 1.2e-3, 2.4e-4, 5e-5, 1e-5, 2e-6)  # of the largest eigenvalue, relative to it
ITERATIONS = 60


def lipsdp(form: Explicit) -> Explicit:
    r"""Return the network with the least gamma that diagonal multipliers prove, and multipliers that do prove it.

    Where the LMI's block :math:`K(\Lambda)` of the hidden units is positive definite, the least gamma for given
    multipliers is the largest eigenvalue of :math:`C^T K^{-1} C`, with :math:`C = [-\Lambda_0 W_0, -W_L^T]` in the
    first and the last rows. It is a convex function of the multipliers, as a matrix-fractional function is, without
    constraints but its domain. L-BFGS minimises it, smoothed less and less; an evaluation takes one Cholesky
    factorization of the size of the hidden units, so this goes further than interior-point methods, whose cost is the
    sixth power of the widths. All iterates are feasible. The slack with which ``lbdn.verify`` proves the last is added:
    gamma is an upper bound in real arithmetic, within about a hundred-thousandth of the least.

    Args:
        form: a network, as ``explicit`` returns it; its own gamma and multipliers aren't used.

    Raises:
        ValueError: for another form, a network without hidden layers, or one with a matrix of zeros.
    """
    if not isinstance(form, Explicit):
        raise ValueError(
            f"lipsdp takes explicit(network), which only fully connected networks have, got {type(form).__name__}"
        )
    if len(form.weights) < 2:
        raise ValueError("lipsdp takes a network with at least one hidden layer; a matrix has its spectral norm")
    norms = [float(torch.linalg.matrix_norm(W, 2)) for W in form.weights]
    if not all(norm > 0 for norm in norms):
        raise ValueError("lipsdp takes matrices that aren't zero; a network with a zero matrix is constant")
    gamma, multipliers = _minimise([W / norm for W, norm in zip(form.weights, norms, strict=True)])
    # Undo the scaling of the hidden units: z_k has been divided by the norms of the layers up to it.
    whole, scale = torch.tensor(norms, dtype=torch.float64).prod(), torch.tensor(norms[:-1]).double().cumprod(0)
    multipliers = [whole / s**2 * m for m, s in zip(multipliers, scale, strict=True)]
    return lmi_certificate(replace(form, gamma=gamma * float(whole), multipliers=multipliers))


def _minimise(weights: list[Tensor]) -> tuple[float, list[Tensor]]:
    """Return the least gamma and its multipliers, up to the smoothing, for matrices of norm one."""
    first, *inner, last = weights
    weights = [_narrow(first.mT).mT, *inner, _narrow(last)]
    sizes = [len(W) for W in weights[:-1]]
    # All multipliers one: they prove the product of the norms.
    best = (1.0, torch.zeros(sum(sizes), dtype=torch.float64))
    for smoothing in SMOOTHING:
        logarithms = best[1].clone().requires_grad_()
        search = torch.optim.LBFGS(
            [logarithms],
            max_iter=ITERATIONS,
            history_size=30,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-12,
            tolerance_change=1e-14,
        )

        def closure(at: Tensor = logarithms, relative: float = smoothing, search: torch.optim.LBFGS = search) -> Tensor:
            search.zero_grad()
            eigenvalues = _eigenvalues(weights, list(at.exp().split(sizes)))
            if eigenvalues is None:
                return torch.tensor(torch.inf, dtype=torch.float64)  # the line search steps back
            width = relative * eigenvalues[-1].detach()
            smoothed = width * torch.logsumexp(eigenvalues / width, 0)
            smoothed.backward()
            return smoothed

        search.step(closure)
        eigenvalues = _eigenvalues(weights, list(logarithms.detach().exp().split(sizes)))
        if eigenvalues is not None and float(eigenvalues[-1]) < best[0]:
            best = (float(eigenvalues[-1]), logarithms.detach())
    return best[0], list(best[1].exp().split(sizes))


def _eigenvalues(weights: list[Tensor], multipliers: list[Tensor]) -> Tensor | None:
    """Return the eigenvalues of C^T K^-1 C, of which the largest is gamma; None where K isn't positive definite."""
    starts = torch.tensor([0, *map(len, multipliers)]).cumsum(0).tolist()
    size = starts[-1]
    lower = torch.diag(torch.cat(multipliers))
    for k in range(1, len(multipliers)):
        block = -multipliers[k][:, None] * weights[k]
        lower = lower + pad(block, (starts[k - 1], size - starts[k], starts[k], size - starts[k + 1]))
    first = pad(-multipliers[0][:, None] * weights[0], (0, 0, 0, size - starts[1]))
    last = pad(-weights[-1].mT, (0, 0, starts[-2], 0))
    factor, failed = torch.linalg.cholesky_ex(lower + lower.mT)
    if failed or not torch.isfinite(factor).all():
        return None
    half = torch.linalg.solve_triangular(factor, torch.cat([first, last], 1), upper=False)
    return torch.linalg.eigvalsh(half.mT @ half)


def _narrow(W: Tensor) -> Tensor:
    """Return a matrix with the same Gram matrix W^T W and no more rows than columns."""
    return torch.linalg.qr(W).R if W.shape[0] > W.shape[1] else W
