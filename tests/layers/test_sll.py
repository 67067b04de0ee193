import pytest
import torch
from torch import nn

from lbdn.layers import SllConv, SllFc
from tests.oracles import dense_operator, perturb


def inner_operator(layer, shape):
    """The dense W^T."""
    weight = layer.weight.detach()
    if weight.dim() == 2:
        return weight
    return dense_operator(lambda x: nn.functional.conv2d(x, weight, padding="same"), shape)


def bound(layer, pixels=1):
    """T as a dense matrix: row sums of |W^T W| q_j / q_i, seen from the centre of an image that hides no shift."""
    size = 2 * layer.weight.shape[-1] - 1
    inner, features = layer.weight.shape[:2]
    W_T = inner_operator(layer, (features, size, size))
    gram = (W_T @ W_T.mT).abs().reshape(inner, -1, inner, len(W_T) // inner)
    gram = gram[:, gram.shape[1] // 2].sum(dim=-1)
    q = torch.exp(layer.log_q.detach())
    return torch.diag((gram * q / q[:, None]).sum(dim=1).repeat_interleave(pixels))


def dominates(T, W_T) -> bool:
    gap = T - W_T @ W_T.mT
    return torch.linalg.eigvalsh(gap)[0] >= -1e-10 * T.max()


@pytest.mark.parametrize(("features", "inner"), [(3, 6), (4, 4), (6, 3), (1, 5), (5, 1)])
def test_T_dominates_the_gram_matrix_of_a_dense_layer(features, inner):
    layer = perturb(SllFc(features, inner).double())
    assert dominates(bound(layer), layer.weight.detach())


@pytest.mark.parametrize(("channels", "inner"), [(2, 3), (3, 1), (1, 4)])
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("size", [(4, 5), (3, 3), (2, 1)], ids=str)
def test_T_dominates_the_gram_matrix_of_a_convolution(channels, inner, k, size):
    layer = perturb(SllConv(channels, inner, k).double())
    W_T = inner_operator(layer, (channels, *size))
    assert dominates(bound(layer, pixels=size[0] * size[1]), W_T)


def test_the_diagonal_of_the_gram_matrix_alone_is_flagged():
    W_T = perturb(SllFc(4, 4).double()).weight.detach()
    assert not dominates(torch.diag((W_T @ W_T.mT).diagonal()), W_T)


def test_the_dense_layer_equals_its_formula():
    layer = perturb(SllFc(4, 5, scale=0.7).double())
    W_T, b, x = layer.weight.detach(), layer.bias.detach(), torch.randn(3, 4, dtype=torch.float64)
    hidden = torch.relu(0.7 * x @ W_T.mT + b)
    torch.testing.assert_close(layer(x), 0.7 * x - 2 * hidden @ torch.linalg.inv(bound(layer)) @ W_T)


@pytest.mark.parametrize("k", [1, 3])
def test_the_convolution_equals_its_dense_formula(k):
    layer, size = perturb(SllConv(2, 3, k, scale=0.7).double()), (4, 5)
    W_T, x = inner_operator(layer, (2, *size)), torch.randn(3, 2, *size, dtype=torch.float64)
    flat = 0.7 * x.flatten(1)
    hidden = torch.relu(flat @ W_T.mT + layer.bias.detach().repeat_interleave(20))
    expected = flat - 2 * hidden @ torch.linalg.inv(bound(layer, pixels=20)) @ W_T
    torch.testing.assert_close(layer(x).flatten(1), expected)


@pytest.mark.parametrize(("build", "shape"), [(SllFc, (3,)), (SllConv, (3, 4, 5))])
def test_filters_of_zero_add_nothing(build, shape):
    layer, x = build(3, 4), torch.randn(2, *shape)
    layer.weight.data.zero_()
    assert torch.equal(layer(x), x)


def test_a_convolution_keeps_images_and_gradients_in_the_memory_format_of_convolutions():
    layer = SllConv(5, 3)
    x = torch.randn(2, 5, 6, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = layer(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
