import math

import pytest
import torch

from lbdn.circular import (
    convolve,
    frequencies,
    from_frequency,
    images_of,
    kernel_spectrum,
    real_form,
    space_first,
    to_frequency,
)
from tests.oracles import circular_convolution, dense_operator, spectral_norm, tolerance

SIZES = [(5, 5), (6, 6), (4, 7), (7, 4), (2, 2), (1, 3), (1, 1)]
sizes = pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
kernel_sizes = pytest.mark.parametrize("k", [1, 2, 3, 5])


@sizes
@kernel_sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolve_equals_circular_convolution(size, k, dtype):
    images, kernel = torch.randn(2, 3, *size, dtype=dtype), torch.randn(4, 3, k, k, dtype=dtype)
    actual = convolve(images, real_form(kernel_spectrum(kernel, *size)))
    assert actual.dtype == dtype
    torch.testing.assert_close(
        actual, circular_convolution(images, kernel), rtol=tolerance(dtype), atol=tolerance(dtype)
    )


@sizes
def test_gradients_of_convolve_equal_those_of_circular_convolution(size):
    images = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(4, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    results = convolve(images, real_form(kernel_spectrum(kernel, *size))), circular_convolution(images, kernel)
    gradient = torch.randn_like(results[0])
    torch.testing.assert_close(*(torch.autograd.grad(r, (images, kernel), gradient) for r in results))


def test_zero_padding_is_flagged():
    images, kernel = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    padded = torch.nn.functional.conv2d(images, kernel.flip(-2, -1), padding=1)
    expected = circular_convolution(images, kernel)
    torch.testing.assert_close(padded[..., 1:-1, 1:-1], expected[..., 1:-1, 1:-1])
    assert not torch.allclose(padded, expected)


@sizes
def test_the_norm_of_the_convolution_is_the_largest_over_the_spectrum(size):
    kernel = torch.randn(4, 3, 3, 3, dtype=torch.float64)
    dense = dense_operator(lambda images: circular_convolution(images, kernel), (3, *size))
    spectrum = kernel_spectrum(kernel, *size)
    for matrices in (spectrum, real_form(spectrum)):
        assert float(torch.linalg.matrix_norm(matrices, 2).max()) == pytest.approx(spectral_norm(dense))


@sizes
def test_the_transform_is_the_fast_fourier_transform_with_the_weight_of_conjugate_pairs(size):
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    u, v = frequencies(*size).mT
    alone = (2 * u % size[0] == 0) & (2 * v % size[1] == 0)
    weight = torch.where(alone, 1.0, math.sqrt(2)).double()
    expected = weight * torch.fft.fft2(images, norm="ortho")[:, :, u, v]
    actual = to_frequency(space_first(images)).permute(1, 3, 2, 0)
    torch.testing.assert_close(torch.complex(*actual), expected)


@sizes
def test_the_frequencies_and_their_conjugates_are_all_frequencies_once(size):
    u, v = frequencies(*size).mT
    both = {(int(a) % size[0], int(b) % size[1]) for s in (1, -1) for a, b in zip(s * u, s * v, strict=True)}
    assert len(both) == math.prod(size)
    assert len({frozenset({(int(a) % size[0], int(b) % size[1]), (int(-a) % size[0], int(-b) % size[1])})
                for a, b in zip(u, v, strict=True)}) == len(u)  # fmt: skip


@sizes
def test_the_transform_keeps_norms_and_its_transpose_inverts_it(size):
    pixels = torch.randn(*size, 3, 2, dtype=torch.float64, requires_grad=True)
    spectrum = to_frequency(pixels)
    assert float(spectrum.detach().norm()) == pytest.approx(float(pixels.detach().norm()))
    torch.testing.assert_close(from_frequency(spectrum, *size), pixels)
    (transpose,) = torch.autograd.grad(spectrum, pixels, spectrum.detach())
    torch.testing.assert_close(transpose, pixels)


def test_the_transform_can_be_differentiated_twice_and_mapped_over_a_batch():
    pixels = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    spectrum = to_frequency(pixels).detach().requires_grad_()
    assert torch.autograd.gradgradcheck(to_frequency, pixels)
    assert torch.autograd.gradgradcheck(lambda spectrum: from_frequency(spectrum, 4, 3), spectrum)
    several = torch.stack([pixels.detach(), 2 * pixels.detach()])
    mapped = torch.func.vmap(lambda p: from_frequency(to_frequency(p), 4, 3))(several)
    torch.testing.assert_close(mapped, several)


def test_space_first_and_images_of_are_inverse():
    images = torch.randn(2, 3, 4, 5)
    assert torch.equal(images_of(space_first(images)), images)


def test_a_single_matrix_acts_on_every_pixel():
    images, matrix = torch.randn(2, 3, 4, 5), torch.randn(6, 3)
    torch.testing.assert_close(convolve(images, matrix), torch.einsum("oc,ncij->noij", matrix, images))


@pytest.mark.parametrize("sizes", [(5, 7), (11, 13)])
def test_what_is_kept_between_calls_serves_training_after_inference(sizes):
    kernel, images = torch.randn(2, 2, 3, 3), torch.rand(1, 2, *sizes)

    def forward(kernel):
        return convolve(images, real_form(kernel_spectrum(kernel, *sizes)))

    with torch.inference_mode():
        expected = forward(kernel)
    kernel.requires_grad_()
    actual = forward(kernel)
    torch.testing.assert_close(actual.detach(), expected)
    actual.sum().backward()
    assert kernel.grad.isfinite().all()


def test_no_images_give_no_images():
    assert convolve(torch.zeros(0, 3, 4, 5), torch.randn(11, 4, 6)).shape == (0, 2, 4, 5)
