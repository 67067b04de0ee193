import copy

import pytest
import torch

from lbdn.bounds import spectral_product
from lbdn.explicit import explicit
from lbdn.layers import InputNormalization, LastLayerNormalization, OrthogonalLin
from lbdn.networks import Network, build_network
from tests.oracles import (
    assert_lipschitz,
    jacobian,
    perturb,
    ratios,
    spectral_norm,
)

BOUNDED = ["aol", "orthogonal", "sll", "sandwich", "spectral", "bcop", "soc", "lot", "cpl"]
ARCHITECTURES = {
    "toy": ("toy", "small", (2,)),
    "mlp": ("mlp", "small", (1, 4, 4)),
    "kwlarge 8x8": ("kwlarge", "tiny", (1, 8, 8)),
    "kwlarge 12x8": ("kwlarge", "tiny", (2, 12, 8)),
}
IMAGES = {name: case for name, case in ARCHITECTURES.items() if name != "toy"}

families = pytest.mark.parametrize("family", BOUNDED)
all_families = pytest.mark.parametrize("family", [*BOUNDED, "plain"])


def each(cases):
    return pytest.mark.parametrize(("architecture", "size", "shape"), cases.values(), ids=list(cases))


def random_network(architecture, family, size, shape, **options):
    """A network in float64, away from its initial values."""
    network = build_network(architecture, family, size=size, input_shape=shape, outputs=3, **options)
    return perturb(network.double(), spread=0.1)


def statistics(shape):
    return [0.5] * shape[0], [0.25, 0.3][: shape[0]]


@each(ARCHITECTURES)
@families
@pytest.mark.parametrize("gamma", [0.5, 10])
def test_a_network_is_gamma_lipschitz(architecture, size, shape, family, gamma):
    network = random_network(architecture, family, size, shape, gamma=gamma)
    assert network.gamma == network.pixel_gamma == gamma
    assert_lipschitz(network, shape, gamma)


@each(ARCHITECTURES)
@families
def test_a_network_with_a_layer_out_of_bounds_is_flagged(architecture, size, shape, family):
    network = random_network(architecture, family, size, shape)
    network.body[-1].scale *= 1e9
    with pytest.raises(AssertionError, match="above"):
        assert_lipschitz(network, shape, network.gamma)


@each(ARCHITECTURES)
@families
def test_gamma_multiplies_the_outputs_of_a_network_without_biases(architecture, size, shape, family):
    x = torch.randn(5, *shape, dtype=torch.float64)
    networks = []
    for gamma in (1.0, 9.0):
        torch.manual_seed(0)
        networks.append(random_network(architecture, family, size, shape, gamma=gamma))
        for name, parameter in networks[-1].named_parameters():
            if name.endswith("bias"):
                parameter.data.zero_()
    torch.testing.assert_close(networks[1](x), 9 * networks[0](x))


@pytest.mark.parametrize("family", BOUNDED)
@pytest.mark.parametrize(("architecture", "shape"), [("toy", (2,)), ("mlp", (1, 4, 4))])
def test_training_for_large_ratios_comes_close_to_gamma_and_not_above(architecture, shape, family):
    network = build_network(architecture, family, gamma=5.0, input_shape=shape, outputs=3)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    x = torch.randn(8, *shape)
    y = x + 0.5 * torch.randn_like(x)
    for _ in range(25):
        optimizer.zero_grad()
        (-ratios(network, x, y).sum()).backward()
        optimizer.step()
    network = network.double()
    ratio = ratios(network, x.double(), y.double()).max()
    assert 3 < ratio <= 5 * (1 + 1e-9)
    assert_lipschitz(network, shape, 5)


@each(IMAGES)
@families
@pytest.mark.parametrize("last_layer_normalization", [False, True])
def test_the_bound_in_pixels_is_gamma_over_the_smallest_deviation(
    architecture, size, shape, family, last_layer_normalization
):
    options = {"gamma": 10, "last_layer_normalization": last_layer_normalization}
    network = random_network(architecture, family, size, shape, normalization=statistics(shape), **options)
    assert network.pixel_gamma == pytest.approx(network.gamma / 0.25)
    assert_lipschitz(network, shape, network.pixel_gamma)
    assert_lipschitz(network.body, shape, network.gamma)


@each(IMAGES)
@families
@pytest.mark.parametrize("last_layer_normalization", [False, True])
def test_differences_of_outputs_keep_their_bounds_from_pixels(
    architecture, size, shape, family, last_layer_normalization
):
    options = {"gamma": 2.0, "last_layer_normalization": last_layer_normalization}
    network = random_network(architecture, family, size, shape, normalization=statistics(shape), **options)
    J = jacobian(network, torch.rand(*shape, dtype=torch.float64))
    slopes = (J[:, None, :] - J[None, :, :]).norm(dim=-1)
    bounds = network.pair_gamma().expand(3, 3)
    assert (slopes <= bounds * (1 + 1e-9)).all()
    assert bounds.dtype == torch.float64


def only_last_layer(*, gamma=1.0, normalization=None):
    layer = perturb(LastLayerNormalization(4, 3, scale=gamma).double())
    return Network([layer], outputs=layer.outputs, gamma=gamma, normalization=normalization).double()


@pytest.mark.parametrize("size", [1e-20, 1, 1e4])
def test_bounds_with_last_layer_normalization_are_exact_for_one_layer(size):
    network = only_last_layer(gamma=2.0)
    network.body[0].weight.data *= size
    J = jacobian(network, torch.randn(4, dtype=torch.float64))
    torch.testing.assert_close(network.pair_gamma(), torch.cdist(J, J))
    assert network.gamma == pytest.approx(spectral_norm(J))


def test_bounds_of_differences_are_exact_for_one_orthogonal_layer():
    layer = perturb(OrthogonalLin(4, 3, scale=2.0).double())
    network = Network(
        [layer], outputs=layer.outputs, gamma=2.0, normalization=InputNormalization([0.5], [0.25])
    ).double()
    J = jacobian(network, torch.rand(1, 1, 4, dtype=torch.float64))
    torch.testing.assert_close((J[0] - J[2]).norm(), network.pair_gamma()[0, 2])
    assert network.pixel_gamma == pytest.approx(spectral_norm(J))


def test_root_two_is_no_bound_of_differences_with_last_layer_normalization():
    network = only_last_layer()
    network.body[0].weight.data[1] = -network.body[0].weight.data[0]
    assert network.pair_gamma()[0, 1] == pytest.approx(2)


def test_bounds_follow_the_parameters():
    network = only_last_layer()
    before = network.gamma, network.pair_gamma()
    perturb(network)
    assert network.gamma != before[0]
    assert not torch.equal(network.pair_gamma(), before[1])


def test_an_unconstrained_network_has_no_bounds():
    network = build_network("mlp", "plain", gamma=None, input_shape=(1, 4, 4), outputs=3, normalization=([0.5], [0.25]))
    assert network.gamma is network.pixel_gamma is network.pair_gamma() is None


@all_families
def test_normalization_is_composed_with_the_body(family):
    network = random_network("kwlarge", family, "tiny", (2, 8, 8), normalization=([0.5, 0.4], [0.25, 0.3]))
    x = torch.rand(5, 2, 8, 8, dtype=torch.float64)
    mean, std = (network.normalization.get_buffer(name).flatten() for name in ("mean", "std"))
    standardised = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(2)], dim=1)
    torch.testing.assert_close(network(x), network.body(standardised))


def test_normalization_of_other_channels_than_the_images_is_a_value_error():
    with pytest.raises(ValueError, match="got"):
        build_network(
            "kwlarge", "sll", size="tiny", input_shape=(1, 8, 8), outputs=3, normalization=([0.5] * 3, [0.2] * 3)
        )(torch.rand(2, 1, 8, 8))


@pytest.mark.parametrize("architecture", ["toy", "mlp"])
def test_normalization_of_vectors_is_a_value_error(architecture):
    network = build_network(architecture, "sandwich", input_shape=(1,), outputs=3, normalization=([0.5], [0.2]))
    with pytest.raises(ValueError, match=r"takes images of shape .*, got \(5, 1\)"):
        network(torch.rand(5, 1))


@each(ARCHITECTURES)
@all_families
def test_a_state_dict_loads_strictly_into_a_new_network(architecture, size, shape, family):
    options = {} if architecture == "toy" else {"normalization": statistics(shape)}
    network = random_network(architecture, family, size, shape, **options)
    other = random_network(architecture, family, size, shape, **options)
    other.load_state_dict(network.state_dict(), strict=True)
    x = torch.rand(5, *shape, dtype=torch.float64)
    assert torch.equal(other(x), network(x))
    assert torch.equal(copy.deepcopy(network).eval()(x), network(x))


@each(ARCHITECTURES)
@all_families
def test_all_parameters_get_gradients_and_none_appears_later(architecture, size, shape, family):
    network = build_network(architecture, family, size=size, input_shape=shape, outputs=3)
    before = dict(network.named_parameters())
    network(torch.rand(5, *shape)).square().sum().backward()
    assert dict(network.named_parameters()).keys() == before.keys()
    assert all(parameter.requires_grad and parameter.grad is not None for parameter in before.values())


@pytest.mark.parametrize("family", ["plain", "aol", "orthogonal", "sandwich"])
def test_the_product_of_norms_is_an_upper_bound(family):
    network = random_network("mlp", family, "small", (1, 4, 4), gamma=2.0)
    assert_lipschitz(network, (1, 4, 4), spectral_product(network))


def test_networks_with_convolutions_or_residual_blocks_have_no_explicit_weights():
    for architecture, family in [("kwlarge", "sandwich"), ("mlp", "sll")]:
        network = build_network(architecture, family, size="small", input_shape=(1, 8, 8), outputs=3)
        assert explicit(network) is spectral_product(network) is None


@pytest.mark.parametrize("gamma", [0, -1, float("nan"), float("inf"), "2", None])
@families
def test_a_gamma_that_is_not_positive_and_finite_is_a_value_error(gamma, family):
    with pytest.raises(ValueError, match=f"gamma takes a positive, finite number, got {gamma!r}"):
        build_network("toy", family, gamma=gamma, input_shape=(1,), outputs=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"family": "other"},
            "no 'other' among the families.*aol, bcop, cpl, lot, orthogonal, plain, sandwich, sll, soc, spectral",
        ),
        ({"architecture": "other"}, "no 'other' among the architectures.*deep, kwlarge, mlp, toy"),
        ({"size": "other"}, "no size 'other'.*tiny, small, medium, large"),
        ({"size": "other", "family": "sll"}, "no size 'other'.*tiny, small, medium, large, xlarge"),
        ({"size": "other", "architecture": "toy"}, "no size 'other' of toy.*small"),
        ({"size": "other", "architecture": "mlp"}, "no size 'other' of mlp.*small"),
        ({"size": "other", "architecture": "deep"}, "no size 'other' of deep.*small"),
        ({"input_shape": (3, 10, 8)}, "4 divides, got 10 x 8"),
        ({"input_shape": (3, 8, 10), "family": "sll"}, "4 divides, got 8 x 10"),
        ({"input_shape": (3, 12, 8), "architecture": "deep", "size": "small"}, "8 divides, got 12 x 8"),
        ({"input_shape": (64,)}, r"\(channels, height, width\).*got \(64,\)"),
        ({"input_shape": (0, 8, 8)}, r"positive numbers, got \(0, 8, 8\)"),
        ({"outputs": 0}, "positive numbers, got .* 0"),
        ({"outputs": 129, "family": "sll"}, "129 outputs from 128 features"),
        ({"input_shape": (33, 8, 8), "family": "sll"}, "at most 32 .*got 33"),
    ],
)
def test_arguments_that_do_not_fit_are_value_errors(arguments, message):
    defaults = {"architecture": "kwlarge", "family": "aol", "size": "tiny", "input_shape": (3, 8, 8), "outputs": 10}
    arguments = defaults | arguments
    with pytest.raises(ValueError, match=message):
        build_network(**arguments)(torch.zeros(1, *arguments["input_shape"]))


@each(ARCHITECTURES)
@all_families
def test_inputs_of_another_size_are_value_errors(architecture, size, shape, family):
    network = build_network(architecture, family, size=size, input_shape=shape, outputs=3)
    larger = 200 if architecture == "toy" else shape[0] + 32
    with pytest.raises(ValueError, match=r"takes .*got"):
        network(torch.rand(2, larger, *shape[1:]))


def test_normalization_alone_is_part_of_the_bound():
    network = only_last_layer(normalization=InputNormalization([0.5], [0.1]))
    assert network.pixel_gamma == pytest.approx(10 * network.gamma)


@each({name: case for name, case in ARCHITECTURES.items() if name in ("mlp", "kwlarge 8x8")})
@all_families
def test_half_precision_computes_the_same_as_far_as_it_goes(architecture, size, shape, family):
    network = build_network(architecture, family, size=size, input_shape=shape, outputs=3)
    x = torch.rand(4, *shape)
    outputs = copy.deepcopy(network).bfloat16()(x.bfloat16())
    assert outputs.dtype == torch.bfloat16
    torch.testing.assert_close(outputs.float(), network(x), rtol=0.03, atol=0.03)
