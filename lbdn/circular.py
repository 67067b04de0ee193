"""Circular convolution in the Fourier domain: a convolution becomes one small complex matrix a frequency."""

import math

import torch
from torch import Tensor


def kernel_spectrum(kernel: Tensor, height: int, width: int) -> Tensor:
    r"""Return the matrices that a circular convolution with ``kernel`` applies, one a frequency.

    Entry ``[u, v]`` is :math:`\sum_{a,b} K_{ab}\, e^{-2\pi i (u (a - c)/h + v (b - c)/w)}` with the kernel's centre
    :math:`c`, so the convolution keeps images in place. A kernel larger than the image wraps around, as circular
    convolution does. The columns that conjugate symmetry repeats are left out.

    Args:
        kernel: real, ``(rows, columns, k, k)``.
        height: of the image, in pixels.
        width: of the image, in pixels.

    Returns:
        Complex, ``(height, width // 2 + 1, rows, columns)``.
    """
    k = kernel.shape[-1]
    offsets = torch.arange(k, device=kernel.device, dtype=torch.float64) - k // 2
    vertical = _phases(height, height, offsets).to(_complex(kernel.dtype))
    horizontal = _phases(width, width // 2 + 1, offsets).to(_complex(kernel.dtype))
    taps = kernel.flatten(0, 1).to(vertical.dtype)
    spectrum = torch.einsum("ua,nab,vb->uvn", vertical, taps, horizontal)
    return spectrum.unflatten(-1, kernel.shape[:2])


def _phases(size: int, frequencies: int, offsets: Tensor) -> Tensor:
    frequency = torch.arange(frequencies, device=offsets.device, dtype=torch.float64)
    return torch.exp(-2j * math.pi / size * frequency[:, None] * offsets[None, :])


def _complex(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype == torch.float64 else torch.complex64


def to_frequency(images: Tensor) -> Tensor:
    """Return the spectrum of real ``(n, channels, h, w)`` as ``(h, w // 2 + 1, channels, n)``."""
    return torch.fft.rfft2(images, norm="ortho").permute(2, 3, 1, 0)


def from_frequency(spectrum: Tensor, width: int) -> Tensor:
    """Return the real images ``(n, channels, h, w)`` of ``(h, w // 2 + 1, channels, n)``."""
    return torch.fft.irfft2(spectrum.permute(3, 2, 0, 1), s=(spectrum.shape[0], width), norm="ortho")


def convolve(images: Tensor, matrices: Tensor) -> Tensor:
    """Return the circular convolution of images with given matrices.

    Args:
        images: real, ``(n, columns, h, w)``.
        matrices: ``(h, w // 2 + 1, rows, columns)``, complex, one a frequency; or ``(rows, columns)``, real, one for
            all pixels (a kernel of size one needs no Fourier transform); or ``(rows, h, w, columns, h, w)``, real,
            the whole map as ``dense`` makes it.

    Returns:
        Real, ``(n, rows, h, w)``.
    """
    if matrices.dim() == 2:
        return torch.nn.functional.conv2d(images, matrices[:, :, None, None])
    if matrices.dim() == 6:
        whole = matrices.flatten(3).flatten(0, 2)
        return torch.nn.functional.linear(images.flatten(1), whole).view(-1, *matrices.shape[:3])
    return from_frequency(matrices @ to_frequency(images), images.shape[-1])


def dense(matrices: Tensor, height: int, width: int) -> Tensor:
    """Return matrices of all frequencies as one real map ``(rows, h, w, columns, h, w)`` between images."""
    columns = matrices.shape[-1]
    pixels = torch.eye(columns * height * width, dtype=matrices.real.dtype, device=matrices.device)
    images = convolve(pixels.view(-1, columns, height, width), matrices)
    return images.permute(1, 2, 3, 0).unflatten(-1, (columns, height, width))
