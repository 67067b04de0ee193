r"""The linear matrix inequality that proves a Lipschitz bound: dense, and as the sum of one small block a layer.

Source: Wang and Manchester (2023), theorem on the LMI condition and the chordal decomposition in the proof that the
parameterization is complete; Fazlyab et al. (2019).
"""

from dataclasses import replace

import torch
from torch import Tensor

from lbdn.explicit import Explicit
from lbdn.verify import proves_lipschitz_bound


def lmi_matrix(form: Explicit) -> Tensor:
    r"""Return :math:`H(\gamma, \Lambda)`, whose positive semi-definiteness proves that the network is gamma-Lipschitz.

    Block tridiagonal: :math:`\gamma I, 2\Lambda_0, \dots, 2\Lambda_{L-1}, \gamma I` on the diagonal,
    :math:`-\Lambda_k W_k` below it and :math:`-W_L` in the last row.

    Returns:
        float64, square, of the size of input, hidden units and output together.

    Raises:
        ValueError: without gamma or multipliers.
    """
    gamma, multipliers = _proof(form)
    coupling = [_rows(form.weights[k], multipliers, k) for k in range(len(form.weights))]
    sizes = [form.weights[0].shape[1], *map(len, form.weights)]
    starts = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    diagonal = [torch.full((sizes[0],), gamma), *(2 * m for m in multipliers), torch.full((sizes[-1],), gamma)]
    H = torch.diag(torch.cat([part.to(torch.float64) for part in diagonal]))
    for k, block in enumerate(coupling):
        rows, columns = slice(starts[k + 1], starts[k + 2]), slice(starts[k], starts[k + 1])
        H[rows, columns], H[columns, rows] = -block, -block.mT
    return H


def lmi_blocks(form: Explicit) -> list[Tensor]:
    r"""Return :math:`H_0, \dots, H_L` with :math:`H = \sum_k E_k H_k E_k^T`: H is PSD if and only if each block is.

    Each couples two neighbouring layers,
    :math:`H_k = \begin{bmatrix} S_{k-1} & -W_k^T \Lambda_k \\ -\Lambda_k W_k & 2\Lambda_k - S_k \end{bmatrix}` with
    :math:`S_{-1} = \gamma I` and the Schur complement
    :math:`S_k = 2\Lambda_k - \Lambda_k W_k S_{k-1}^+ W_k^T \Lambda_k`; for the weights of a Sandwich network
    :math:`S_k = 2 \Psi_k A_k A_k^T \Psi_k`. The last block ends in gamma I.

    Raises:
        ValueError: without gamma or multipliers.
    """
    gamma, multipliers = _proof(form)
    schur = gamma * torch.eye(form.weights[0].shape[1], dtype=torch.float64)
    blocks = []
    for k in range(len(form.weights)):
        coupling = _rows(form.weights[k], multipliers, k)
        if k < len(multipliers):
            corner = coupling @ torch.linalg.pinv(schur, hermitian=True) @ coupling.mT
            corner = (corner + corner.mT) / 2
        else:
            corner = gamma * torch.eye(len(coupling), dtype=torch.float64)
        blocks.append(torch.cat([torch.cat([schur, -coupling.mT], 1), torch.cat([-coupling, corner], 1)]))
        if k < len(multipliers):
            schur = torch.diag(2 * multipliers[k]) - corner
    return blocks


def with_slack(form: Explicit, epsilon: float) -> Explicit:
    r"""Return the same network with a slightly larger gamma and multipliers that prove it by a margin.

    The LMI of a Sandwich network may hold by nothing, and no check in floating point can then prove it. With
    :math:`\gamma' = \gamma (1 - \epsilon)^{-L}` and :math:`\Lambda_k' = t_k \Lambda_k`,
    :math:`t_k = (1 - \epsilon)^{2k+1-L}`, the Schur complements become
    :math:`S_k' \succeq t_k ((1 - \epsilon) S_k + 2 \epsilon \Lambda_k)`, positive definite: the margin lets weights be
    rounded, and errors of a check be counted.

    Args:
        form: a network with multipliers that prove its gamma.
        epsilon: in (0, 1), about the relative margin; it costs L times as much of gamma.
    """
    gamma, multipliers = _proof(form)
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon takes a number between 0 and 1, got {epsilon}")
    depth, shrink = len(multipliers), 1 - epsilon
    return replace(
        form,
        gamma=gamma * shrink**-depth,
        multipliers=[shrink ** (2 * k + 1 - depth) * m for k, m in enumerate(multipliers)],
    )


def lmi_certificate(form: Explicit) -> Explicit:
    r"""Return the network with a slightly larger gamma and multipliers that ``lbdn.verify`` proves.

    The smallest power of ten that is slack enough, doubled: so the proof doesn't hang on one machine's last digits.

    Args:
        form: a network with multipliers that prove its gamma, up to a thousandth.

    Raises:
        ValueError: without gamma or multipliers, or if nothing could be proved.
    """
    for exponent in range(-11, -2):
        proved, given = with_slack(form, 10.0**exponent), with_slack(form, 2 * 10.0**exponent)
        weights, multipliers = ([t.numpy() for t in tensors] for tensors in (proved.weights, proved.multipliers or []))
        if proves_lipschitz_bound(weights, multipliers, proved.gamma or 0.0):
            return given
    raise ValueError(f"the multipliers don't prove gamma {form.gamma:.6g}, nor one a thousandth larger")


def _proof(form: Explicit) -> tuple[float, list[Tensor]]:
    if form.gamma is None or form.multipliers is None:
        raise ValueError("the LMI takes a network with a Lipschitz bound and the multipliers that prove it")
    return form.gamma, form.multipliers


def _rows(weight: Tensor, multipliers: list[Tensor], k: int) -> Tensor:
    return multipliers[k][:, None] * weight if k < len(multipliers) else weight
