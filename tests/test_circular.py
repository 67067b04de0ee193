import pytest
import torch

from lbdn.circular import convolve, from_frequency, kernel_spectrum, to_frequency
from tests.oracles import circular_convolution, dense_operator, spectral_norm, tolerance

SIZES = [(5, 5), (6, 6), (4, 7), (7, 4), (2, 2), (1, 3), (1, 1)]
sizes = pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
kernel_sizes = pytest.mark.parametrize("k", [1, 2, 3, 5])


@sizes
@kernel_sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolve_equals_circular_convolution(size, k, dtype):
    images, kernel = torch.randn(2, 3, *size, dtype=dtype), torch.randn(4, 3, k, k, dtype=dtype)
    actual = convolve(images, kernel_spectrum(kernel, *size))
    assert actual.dtype == dtype
    torch.testing.assert_close(
        actual, circular_convolution(images, kernel), rtol=tolerance(dtype), atol=tolerance(dtype)
    )


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
    norms = torch.linalg.matrix_norm(kernel_spectrum(kernel, *size), 2)
    assert float(norms.max()) == pytest.approx(spectral_norm(dense))


@sizes
def test_from_frequency_inverts_to_frequency(size):
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(from_frequency(to_frequency(images), size[1]), images)


def test_a_single_matrix_acts_on_every_pixel():
    images, matrix = torch.randn(2, 3, 4, 5), torch.randn(6, 3)
    torch.testing.assert_close(convolve(images, matrix), torch.einsum("oc,ncij->noij", matrix, images))
