"""Functions of matrices, real or complex, one or a stack of them, by which layers make their operators from weights.

Each is written from its formula, by eigenvalues where the library iterates. No proof rests on them: what they return is
bounded as it is.
"""

import math

import numpy as np

MAX_GAIN = 1e5  # where layers saturate
SHARP, ROUGH = 1024, 64  # powers of the sums that bound norms, where they divide and where they keep a range
STEPS, SMALLEST = 8, 1 / 128  # of the iteration to orthogonal matrices, and the singular value that its steps count on
TERMS = 8  # of the exponential's series


def adjoint(matrix: np.ndarray) -> np.ndarray:
    """Return the conjugate transpose of the last two dimensions."""
    return matrix.conj().swapaxes(-1, -2)


def real_form(matrix: np.ndarray) -> np.ndarray:
    """Return a complex matrix as a real one on stacked real and imaginary parts; a real one as it is."""
    if not np.iscomplexobj(matrix):
        return matrix
    return np.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])


def largest(array: np.ndarray) -> float:
    """Return the largest absolute value; one if there is none but zero."""
    return float(np.abs(array).max(initial=0.0)) or 1.0


def spectrum(kernel: np.ndarray, size: list[int] | None) -> np.ndarray:
    r"""Return :math:`\sum_{a,b} K_{ab} e^{-2 \pi i (u (a - c) / h + v (b - c) / w)}`, one (u, v) of each pair or both.

    A matrix stays, and a kernel of size one, whose matrices are all the same, becomes one.
    """
    if kernel.ndim == 2:
        return kernel
    if kernel.shape[-1] == 1:
        return kernel[:, :, 0, 0]
    if size is None:
        raise ValueError("a convolution takes the size of its images")
    (height, width), offsets = size, np.arange(kernel.shape[-1]) - kernel.shape[-1] // 2
    vertical = np.exp(-2j * np.pi / height * (np.arange(height)[:, None] * offsets % height))
    horizontal = np.exp(-2j * np.pi / width * (np.arange(width // 2 + 1)[:, None] * offsets % width))
    return np.einsum("ua,ijab,vb->uvij", vertical, kernel, horizontal).reshape(-1, *kernel.shape[:2])


def normalized(direction: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Return the gain times the direction over its Frobenius norm."""
    scaled = direction.astype(np.float64) / largest(direction)
    return float(np.clip(gain, -MAX_GAIN, MAX_GAIN)) * scaled / (np.linalg.norm(scaled) or 1.0)


def unit_rows(weight: np.ndarray) -> np.ndarray:
    """Return the rows over their norms; those of zeros stay."""
    sizes = np.linalg.norm(weight.astype(np.float64), axis=1, keepdims=True)
    return weight / np.where(sizes > 0, sizes, 1)


def cayley(stacked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return :math:`A^* = (I + Z)^{-1} (I - Z)` and :math:`B^* = -2 Y (I + Z)^{-1}`, :math:`Z = X - X^* + Y^* Y`."""
    q = stacked.shape[-1]
    X, Y = stacked[..., :q, :], stacked[..., q:, :]
    inverse = np.linalg.inv(np.eye(q) + X - adjoint(X) + adjoint(Y) @ Y)
    return 2 * inverse - np.eye(q), -2 * Y @ inverse


def orthogonal(weight: np.ndarray) -> np.ndarray:
    """Return the Cayley transform's two blocks as one matrix, that of the adjoint for a wide one."""
    if weight.shape[-2] < weight.shape[-1]:
        return adjoint(orthogonal(adjoint(weight)))
    return np.concatenate(cayley(weight), axis=-2)


def schatten_norm(matrices: np.ndarray, power: int) -> float:
    r"""Return the largest :math:`(\sum_i \sigma_i^p)^{1/p}` of all matrices, which is above their spectral norms."""
    size = largest(matrices)
    V = matrices / size
    gram = V @ adjoint(V) if V.shape[-2] <= V.shape[-1] else adjoint(V) @ V
    squares = np.maximum(np.linalg.eigvalsh(gram), 0.0)
    top = float(squares.max(initial=0.0))
    return size * math.sqrt(top) * float(((squares / (top or 1.0)) ** (power / 2)).sum(axis=-1).max()) ** (1 / power)


def spectral(matrices: np.ndarray) -> np.ndarray:
    """Return matrices over one bound of all their norms."""
    return matrices / (schatten_norm(matrices, SHARP) or 1.0)


def polar(matrices: np.ndarray) -> np.ndarray:
    r"""Return what eight steps of :math:`W \mapsto \tfrac12 \alpha (3 I - \alpha^2 W W^*) W` make of scaled matrices.

    As a function of singular values, each step divided by them. The last one has :math:`\alpha = 1`.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return adjoint(polar(adjoint(matrices)))
    V = matrices / (schatten_norm(matrices, ROUGH) or 1.0)
    squares, vectors = np.linalg.eigh(V @ adjoint(V))
    factors, smallest = np.ones_like(squares), SMALLEST
    for step in range(STEPS):
        alpha = math.sqrt(3 / (1 + smallest + smallest**2)) if step < STEPS - 1 else 1.0
        factors = alpha / 2 * (3 - alpha**2 * factors**2 * squares) * factors
        smallest *= alpha / 2 * (3 - (alpha * smallest) ** 2)
    return (vectors * factors[..., None, :]) @ (adjoint(vectors) @ V)


def skew_orthogonal(matrices: np.ndarray) -> np.ndarray:
    r"""Return the first columns of :math:`\exp \begin{bmatrix} X - X^* & -Y^* \\ Y & 0 \end{bmatrix}`, for [X; Y].

    The series up to its eighth power, over one plus the bound of its remainder, of a matrix whose norm is bounded by
    one: by a common factor of all matrices, where it has to be. For a wide matrix, the adjoint of that of the adjoint.
    """
    if matrices.shape[-2] < matrices.shape[-1]:
        return adjoint(skew_orthogonal(adjoint(matrices)))
    q = matrices.shape[-1]
    A, Y = matrices[..., :q, :] - adjoint(matrices[..., :q, :]), matrices[..., q:, :]
    norm = schatten_norm(A, ROUGH) + (schatten_norm(Y, ROUGH) if Y.size else 0.0)
    A, Y, norm = A / max(norm, 1.0), Y / max(norm, 1.0), min(norm, 1.0)
    upper, lower = np.broadcast_to(np.eye(q), A.shape), np.zeros_like(Y)
    total = np.concatenate([upper, lower], axis=-2)
    for k in range(1, TERMS + 1):
        upper, lower = (A @ upper - adjoint(Y) @ lower) / k, Y @ upper / k
        total = total + np.concatenate([upper, lower], axis=-2)
    return total / (1 + norm ** (TERMS + 1) / math.factorial(TERMS + 1))


def block_convolution(weight: np.ndarray, factors: np.ndarray) -> np.ndarray:
    r"""Return the kernel of H convolved with :math:`[P, I - P]`, :math:`P = Y Y^T`, in turn upright and across.

    H and all Y are made orthogonal first. With more columns than rows, it is the transpose of that of the transpose.

    Args:
        weight: of H, ``(rows, columns)``.
        factors: of all Y, ``(n, max(rows, columns), rank)``.
    """
    if weight.shape[0] < weight.shape[1]:
        return block_convolution(weight.T, factors).swapaxes(0, 1)
    kernel = polar(weight)[:, :, None, None]
    for i, factor in enumerate(factors):
        Y, axis = polar(factor), 2 + i % 2
        projected = np.einsum("or,pr,pcij->ocij", Y, Y, kernel, optimize=True)
        none = np.zeros_like(kernel.take([0], axis))
        kernel = np.concatenate([projected, none], axis) + np.concatenate([none, kernel - projected], axis)
    return kernel
