import re

import pytest
import torch

from lbdn.layers import InputNormalization, LastLayerNormalization
from tests.oracles import assert_lipschitz, dense_operator, jacobian_norm, perturb, spectral_norm


def last_layer(in_features=4, out_features=3, **options):
    return perturb(LastLayerNormalization(in_features, out_features, **options).double())


def test_rows_of_the_last_layer_have_the_norm_of_its_scale():
    W = dense_operator(last_layer(bias=False, scale=1.5), (4,))
    torch.testing.assert_close(W.norm(dim=1), torch.full((3,), 1.5, dtype=torch.float64))


def test_rows_keep_their_direction():
    layer = last_layer(bias=False)
    weight = layer.weight.detach()
    torch.testing.assert_close(dense_operator(layer, (4,)), weight / weight.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("size", [1e-20, 1e-30, 1e4])
def test_each_output_is_scale_lipschitz_for_weights_of_any_size(size):
    layer = LastLayerNormalization(4, 1, scale=1.5)
    layer.weight.data *= size
    assert_lipschitz(layer, (4,), 1.5, torch.float32)


def test_the_whole_layer_need_not_be_scale_lipschitz():
    layer = last_layer(4, 3, bias=False)
    layer.weight.data[:] = layer.weight.data[0].clone()
    assert spectral_norm(dense_operator(layer, (4,))) == pytest.approx(3**0.5)


def test_a_row_of_zeros_stays_zero_and_has_finite_gradients():
    layer = LastLayerNormalization(4, 3, bias=False)
    layer.weight.data[1] = 0
    layer(torch.randn(5, 4)).square().sum().backward()
    assert not layer(torch.randn(5, 4))[:, 1].any()
    assert layer.weight.grad.isfinite().all()


def test_input_normalization_standardises_each_channel():
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 2.0]
    images = torch.rand(5, 3, 4, 6)
    result = InputNormalization(mean, std)(images)
    for channel in range(3):
        torch.testing.assert_close(result[:, channel], (images[:, channel] - mean[channel]) / std[channel])


def test_input_normalization_has_exactly_its_bound():
    normalization = InputNormalization([0.1, 0.2], [0.5, 0.25]).double()
    assert normalization.bound == 4
    assert jacobian_norm(normalization, torch.rand(2, 3, 4, dtype=torch.float64)) == pytest.approx(4)


def test_input_normalization_has_no_parameters_and_loads():
    normalization = InputNormalization([0.1], [0.5])
    other = InputNormalization([0.0], [1.0])
    other.load_state_dict(normalization.state_dict(), strict=True)
    assert not list(normalization.parameters())
    assert other.bound == 2


@pytest.mark.parametrize("shape", [(5, 2, 4, 6), (2, 4, 6)], ids=str)
def test_input_normalization_keeps_the_shape_with_and_without_a_batch(shape):
    assert InputNormalization([0.1, 0.2], [0.5, 0.25])(torch.rand(shape)).shape == shape


@pytest.mark.parametrize("shape", [(5, 1, 4, 6), (5, 3, 4, 6), (5, 4), (5, 2), (5, 1)], ids=str)
def test_input_normalization_of_other_shapes_is_a_value_error(shape):
    with pytest.raises(ValueError, match=rf"takes images of shape .*, got {re.escape(str(shape))}"):
        InputNormalization([0.1, 0.2], [0.5, 0.25])(torch.rand(shape))


@pytest.mark.parametrize(
    ("mean", "std"),
    [([0.1], [0.0]), ([0.1], [-1.0]), ([0.1], [float("nan")]), ([0.1], [float("inf")]), ([0.1], [0.5, 0.5]), ([], [])],
)
def test_statistics_that_cannot_be_are_value_errors(mean, std):
    with pytest.raises(ValueError, match="got"):
        InputNormalization(mean, std)


def test_there_is_no_bound_of_impossible_statistics_that_a_file_may_bring():
    normalization = InputNormalization([0.1, 0.2], [0.5, 0.25])
    normalization.load_state_dict(normalization.state_dict() | {"std": torch.tensor([[[0.5]], [[-0.1]]])})
    with pytest.raises(ValueError, match="positive, finite numbers, got"):
        _ = normalization.bound
