"""Circular convolution in the Fourier domain: a convolution becomes one small matrix a frequency.

Of the frequencies (u, v) and (-u, -v) of real images, whose spectra are conjugate, only one is kept. Images are held
with space first and the batch last, ``(height, width, channels, n)``: so both directions of the transform are products
with small real matrices from the left, and what a frequency's matrix acts on lies together, without a permutation
in between. On a CPU that takes half the time of a fast Fourier transform and the permutations around it.
"""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from lbdn.precision import HALF, without_autocast


def frequencies(height: int, width: int) -> Tensor:
    """Return one frequency (u, v) of each conjugate pair, in the order of all functions here: int64, ``(F, 2)``.

    Those that are their own conjugates come first.
    """

    def alone(size: int) -> Tensor:
        return torch.tensor([0, size // 2][: _selves(size)])

    def pairs(size: int) -> Tensor:
        return torch.arange(1, (size + 1) // 2)

    grids = [(alone(height), alone(width)), (alone(height), pairs(width)), (pairs(height), alone(width))]
    grids += [(pairs(height), pairs(width)), (-pairs(height), pairs(width))]
    return torch.cat([torch.cartesian_prod(u, v) for u, v in grids])


def kernel_spectrum(kernel: Tensor, height: int, width: int) -> Tensor:
    r"""Return the matrices that a circular convolution with ``kernel`` applies, one a frequency of ``frequencies``.

    The matrix at (u, v) is :math:`\sum_{a,b} K_{ab}\, e^{-2\pi i (u (a - c)/h + v (b - c)/w)}` with the kernel's centre
    :math:`c`, so the convolution keeps images in place. A kernel larger than the image wraps around, as circular
    convolution does.

    Args:
        kernel: real, ``(rows, columns, k, k)``.
        height: of the image, in pixels.
        width: of the image, in pixels.

    Returns:
        Complex, ``(F, rows, columns)``.
    """
    cosines, sines = _phases(height, width, kernel.shape[-1], kernel.dtype, kernel.device)
    taps = kernel.flatten(0, 1).flatten(1).mT
    return torch.complex(cosines @ taps, -sines @ taps).unflatten(-1, kernel.shape[:2])


def real_form(matrices: Tensor) -> Tensor:
    """Return complex ``(F, rows, columns)`` as real matrices on stacked real and imaginary parts, for ``convolve``.

    Real ones, the single matrix of a kernel of size one, stay.
    """
    if not matrices.is_complex():
        return matrices
    real, imaginary = matrices.real, matrices.imag
    return torch.cat([torch.cat([real, -imaginary], -1), torch.cat([imaginary, real], -1)], -2)


def convolve(images: Tensor, matrices: Tensor) -> Tensor:
    """Return the circular convolution of images with given matrices.

    Args:
        images: real, ``(n, columns, h, w)``.
        matrices: real, ``(F, 2 rows, 2 columns)``, ``real_form`` of a matrix a frequency; or ``(rows, columns)``, one
            matrix for all pixels, which needs no Fourier transform.

    Returns:
        Real, ``(n, rows, h, w)``; in memory with space first and the batch last.
    """
    with without_autocast(images.device.type):
        pixels = space_first(images.to(matrices.dtype) if images.dtype in HALF else images)
        if matrices.dim() == 2:
            return images_of(matrices @ pixels)
        height, width = pixels.shape[:2]
        spectrum = (matrices @ to_frequency(pixels).flatten(1, 2)).unflatten(1, (2, matrices.shape[1] // 2))
        return images_of(from_frequency(spectrum, height, width))


def space_first(images: Tensor) -> Tensor:
    """Return ``(n, channels, h, w)`` as ``(h, w, channels, n)``, contiguous."""
    return images.permute(2, 3, 1, 0).contiguous()


def images_of(pixels: Tensor) -> Tensor:
    """Return ``(h, w, channels, n)`` as ``(n, channels, h, w)``, without moving anything."""
    return pixels.permute(3, 2, 0, 1)


def to_frequency(pixels: Tensor) -> Tensor:
    r"""Return the discrete Fourier transform of real ``(h, w, ...)`` as real and imaginary parts ``(F, 2, ...)``.

    Orthonormal as a real map: it keeps l2 norms, and its transpose ``from_frequency`` is its inverse. So it is the
    unitary transform, times :math:`\sqrt2` at frequencies that stand for a conjugate pair.
    """
    return _ToFrequency.apply(pixels)


def from_frequency(spectrum: Tensor, height: int, width: int) -> Tensor:
    """Return the real ``(h, w, ...)`` that have the spectrum ``(F, 2, ...)``, the inverse of ``to_frequency``.

    Imaginary parts of frequencies that are their own conjugates count for nothing.
    """
    return _FromFrequency.apply(spectrum, height, width)


class _ToFrequency(Function):
    @staticmethod
    def forward(pixels: Tensor) -> Tensor:
        spectrum = _to_frequency(pixels.flatten(2))
        return spectrum.view(*spectrum.shape[:2], *pixels.shape[2:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.size = inputs[0].shape[:2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _FromFrequency.apply(gradient, *ctx.size)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], pixels: Tensor) -> tuple[Tensor, int]:
        return _ToFrequency.apply(pixels.movedim(in_dims[0], -1)), -1


class _FromFrequency(Function):
    @staticmethod
    def forward(spectrum: Tensor, height: int, width: int) -> Tensor:
        pixels = _from_frequency(spectrum.flatten(2), height, width)
        return pixels.view(height, width, *spectrum.shape[2:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _ToFrequency.apply(gradient), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], spectrum: Tensor, height: int, width: int) -> tuple[Tensor, int]:
        return _FromFrequency.apply(spectrum.movedim(in_dims[0], -1), height, width), -1


def _to_frequency(pixels: Tensor) -> Tensor:
    """Transform ``(h, w, N)``: to cosines and sines in each direction, whose products are sums of two frequencies."""
    height, width, count = pixels.shape
    s = _selves(width)
    rows, pair_rows = (_basis(height, of_pairs, pixels.dtype, pixels.device) for of_pairs in (False, True))
    horizontal = _basis(width, False, pixels.dtype, pixels.device) @ pixels
    waves = torch.empty_like(horizontal)
    torch.mm(rows, horizontal[:, :s].flatten(1), out=waves[:, :s].flatten(1))
    torch.mm(pair_rows, horizontal[:, s:].flatten(1), out=waves[:, s:].flatten(1))
    spectrum = pixels.new_empty(_count(height, width), 2, count)
    alone, flat, upright, down, up = _blocks(spectrum, height, width)
    (ss, sc, sn), (cs, cc, cn), (ns, nc, nn) = _waves(waves)
    alone[:, :, 0], alone[:, :, 1] = ss, 0
    flat[:, :, 0], flat[:, :, 1] = sc, sn
    upright[:, :, 0], upright[:, :, 1] = cs, ns
    torch.sub(cc, nn, out=down[:, :, 0])
    torch.add(nc, cn, out=down[:, :, 1])
    torch.add(cc, nn, out=up[:, :, 0])
    torch.sub(cn, nc, out=up[:, :, 1])
    return spectrum


def _from_frequency(spectrum: Tensor, height: int, width: int) -> Tensor:
    """Transform ``(F, 2, N)`` back, by the transpose of each step of ``_to_frequency``."""
    s = _selves(width)
    waves = spectrum.new_empty(height, width, spectrum.shape[-1])
    alone, flat, upright, down, up = _blocks(spectrum, height, width)
    (ss, sc, sn), (cs, cc, cn), (ns, nc, nn) = _waves(waves)
    ss.copy_(alone[:, :, 0])
    sc.copy_(flat[:, :, 0])
    sn.copy_(flat[:, :, 1])
    cs.copy_(upright[:, :, 0])
    ns.copy_(upright[:, :, 1])
    torch.add(up[:, :, 0], down[:, :, 0], out=cc)
    torch.sub(up[:, :, 0], down[:, :, 0], out=nn)
    torch.sub(down[:, :, 1], up[:, :, 1], out=nc)
    torch.add(down[:, :, 1], up[:, :, 1], out=cn)
    rows, pair_rows = (_basis(height, of_pairs, waves.dtype, waves.device) for of_pairs in (False, True))
    horizontal = torch.empty_like(waves)
    torch.mm(rows.mT, waves[:, :s].flatten(1), out=horizontal[:, :s].flatten(1))
    torch.mm(pair_rows.mT, waves[:, s:].flatten(1), out=horizontal[:, s:].flatten(1))
    return _basis(width, False, waves.dtype, waves.device).mT @ horizontal


def _selves(size: int) -> int:
    """Return how many frequencies of a signal are their own conjugates."""
    return 1 if size % 2 else 2


def _count(height: int, width: int) -> int:
    return (height * width + _selves(height) * _selves(width)) // 2


def _waves(waves: Tensor) -> list[list[Tensor]]:
    """Return views of products of (constant and alternating, cosine, negative sine) waves along the two directions."""
    parts = [(_selves(size), (size - 1) // 2, (size - 1) // 2) for size in waves.shape[:2]]
    return [list(band.split(parts[1], dim=1)) for band in waves.split(parts[0])]


def _blocks(spectrum: Tensor, height: int, width: int) -> list[Tensor]:
    """Return views of the parts of a spectrum in the order of ``frequencies``, each ``(rows, columns, 2, N)``."""
    s, t = _selves(height), _selves(width)
    p, q = (height - 1) // 2, (width - 1) // 2
    shapes = [(s, t), (s, q), (p, t), (p, q), (p, q)]
    parts = spectrum.split([a * b for a, b in shapes])
    return [part.view(*shape, *spectrum.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]


@lru_cache(maxsize=64)
def _basis(size: int, of_pairs: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    r"""Return the orthonormal rows 1 and :math:`(-1)^x`, cosines, negative sines; ``of_pairs``: the waves over sqrt 2.

    That is the factor of a product of two waves, which is the sum or difference of two frequencies.
    """
    s, pairs = _selves(size), (size - 1) // 2
    with torch.inference_mode(False), torch.no_grad():  # whoever asks first, all others get the same tensor
        x = torch.arange(size, dtype=torch.float64)
        angles = 2 * math.pi / size * ((torch.arange(1, pairs + 1)[:, None] * x) % size)
        alone = torch.stack([torch.ones(size, dtype=torch.float64), 1 - 2 * (x % 2)][:s])
        factor = 1.0 if of_pairs else math.sqrt(2)
        basis = torch.cat([alone, factor * torch.cos(angles), -factor * torch.sin(angles)]) / math.sqrt(size)
        return basis.to(dtype=dtype, device=device)


@lru_cache(maxsize=64)
def _phases(height: int, width: int, k: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each frequency's phase at each tap of a ``k x k`` kernel, ``(F, k * k)``."""
    with torch.inference_mode(False), torch.no_grad():
        u, v = frequencies(height, width).mT
        offsets = torch.arange(k) - k // 2
        vertical = (u[:, None] * offsets % height).double() / height
        horizontal = (v[:, None] * offsets % width).double() / width
        angles = (2 * math.pi * (vertical[:, :, None] + horizontal[:, None, :])).flatten(1)
        return torch.cos(angles).to(dtype=dtype, device=device), torch.sin(angles).to(dtype=dtype, device=device)
