"""Networks in other forms: plain layers and ONNX compute the same, and are certified the same."""

import copy
import sys

import numpy as np
import pytest
import torch
from torch import nn

from lbdn import build_network, registry
from lbdn.bounds import pair_bounds
from lbdn.certify import certified_radius
from lbdn.circular import convolve, kernel_spectrum, real_form
from lbdn.export import Residual, plain, spatial_kernel, write_onnx
from lbdn.layers import SandwichFc, SandwichLin
from lbdn.networks import Network
from tests.oracles import circular_convolution, perturb

SHAPES = {"toy": (2,), "mlp": (1, 6, 6), "kwlarge": (3, 8, 8)}
FAMILIES = registry.names("families")
STRIDED = [family for family in FAMILIES if registry.find("families", family).strides]
PLAIN = (nn.Linear, nn.Conv2d, nn.ReLU, nn.Flatten, nn.CircularPad2d, nn.PixelUnshuffle, nn.ZeroPad1d, nn.ZeroPad3d)


def network(architecture: str, family: str, **options) -> Network:
    size = {"size": "tiny"} if architecture == "kwlarge" else {}
    normalization = (
        None if architecture == "toy" else ([0.3] * SHAPES[architecture][0], [0.4] * SHAPES[architecture][0])
    )
    arguments = {"gamma": 2.0, "normalization": normalization} | size | options
    net = build_network(architecture, family, input_shape=SHAPES[architecture], outputs=4, **arguments)
    return perturb(net, 0.05).requires_grad_(False).eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("architecture", SHAPES)
def test_plain_layers_compute_the_same(architecture, family):
    net = network(architecture, family).double()
    layers = plain(net, *SHAPES[architecture])
    x = torch.rand(5, *SHAPES[architecture], dtype=torch.float64)
    torch.testing.assert_close(layers(x), net(x), rtol=1e-9, atol=1e-11)
    leaves = [m for m in layers.modules() if not list(m.children())]
    assert all(isinstance(leaf, PLAIN) for leaf in leaves)
    assert all(isinstance(m, Residual | nn.Sequential) for m in layers.modules() if list(m.children()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("architecture", SHAPES)
def test_in_float32_the_operators_are_those_of_float64_rounded_once(architecture, family):
    net = network(architecture, family)
    exact = plain(copy.deepcopy(net).double(), *SHAPES[architecture]).state_dict()
    for name, weight in plain(net, *SHAPES[architecture]).state_dict().items():
        assert torch.equal(weight, exact[name].float())


def test_last_layer_normalisation_has_a_plain_form():
    net = network("mlp", "sandwich", last_layer_normalization=True)
    x = torch.rand(5, *SHAPES["mlp"])
    torch.testing.assert_close(plain(net, *SHAPES["mlp"])(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", STRIDED)
def test_strided_kernels_have_a_plain_form(family):
    layers = registry.find("families", family)
    body = [layers.conv(3, 4, 5, stride=2), layers.conv(4, 2, 3), nn.Flatten(), layers.linear(8, 3)]
    strided, x = Network(body, outputs=3, gamma=1.0).double(), torch.rand(2, 3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(plain(strided, 3, 4, 4)(x), strided(x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_activation_of_the_layers_is_kept(family):
    layers = registry.find("families", family)
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    for body in ([layers.conv(4, 4, 3, activation=nn.Tanh())], [nn.Flatten(), layers.fc(36, 36, activation=nn.Tanh())]):
        net = Network(body, outputs=36, gamma=1.0).double()
        torch.testing.assert_close(plain(net, 4, 3, 3)(x), net(x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("size", [(5, 6), (4, 4), (3, 3)])
def test_a_spatial_kernel_is_the_kernel_that_the_spectrum_came_from(size):
    kernel = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    spatial = spatial_kernel(real_form(kernel_spectrum(kernel, *size)), *size)
    expected = torch.zeros(4, 2, *size, dtype=torch.float64)
    for a in range(3):
        for b in range(3):
            expected[:, :, (a - 1) % size[0], (b - 1) % size[1]] += kernel[:, :, a, b]
    torch.testing.assert_close(spatial, expected)
    x = torch.randn(3, 2, *size, dtype=torch.float64)
    torch.testing.assert_close(convolve(x, real_form(kernel_spectrum(kernel, *size))), circular_convolution(x, kernel))


@pytest.mark.parametrize(
    ("architecture", "family"), [*(("kwlarge", family) for family in FAMILIES), ("mlp", "sandwich"), ("toy", "sll")]
)
def test_onnx_agrees_to_the_accuracy_of_float32_for_any_batch_and_is_certified_the_same(architecture, family, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    net = network(architecture, family)
    write_onnx(net, tmp_path / "network.onnx", *SHAPES[architecture])
    session = runtime.InferenceSession(tmp_path / "network.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 7):
        x = torch.rand(count, *SHAPES[architecture])
        (logits,) = session.run(["logits"], {"x": x.numpy()})
        expected = net(x)
        np.testing.assert_allclose(logits, expected.numpy(), rtol=1e-4, atol=1e-5)
        if net.gamma is not None:
            labels, bound = expected.argmax(1), pair_bounds(net)
            for other in (torch.tensor(logits), plain(net, *SHAPES[architecture])(x)):
                radii = certified_radius(other, labels, bound)
                torch.testing.assert_close(radii, certified_radius(expected, labels, bound), rtol=1e-3, atol=1e-5)


def test_circular_convolutions_of_large_images_are_refused():
    net = build_network("kwlarge", "sandwich", input_shape=(3, 32, 32), outputs=10)
    with pytest.raises(ValueError, match="32 x 32 pixels has a kernel of that size, which is senseless"):
        plain(net, 3, 32, 32)
    assert isinstance(plain(build_network("kwlarge", "aol", input_shape=(3, 32, 32), outputs=10), 3, 32, 32), nn.Module)


def test_layers_without_a_plain_form_are_an_error():
    with pytest.raises(ValueError, match="type Tanh have no plain form"):
        plain(Network([nn.Tanh(), SandwichLin(4, 3)], outputs=3, gamma=1.0), 4)
    with pytest.raises(ValueError, match="takes activations that are modules"):
        plain(Network([SandwichFc(4, 3, activation=torch.tanh)], outputs=3, gamma=1.0), 4)


def test_without_the_packages_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs onnx: pip install '\.\[onnx\]'"):
        write_onnx(network("mlp", "aol"), tmp_path / "network.onnx", *SHAPES["mlp"])


@pytest.mark.parametrize("options", [{"stride": 1}, {"padding": 1}, {"kernel_size": (2, 1)}])
def test_other_pooling_than_of_whole_blocks_is_an_error(options):
    pooling = nn.AvgPool2d(**({"kernel_size": 2, "divisor_override": 2} | options))
    network = Network([pooling, nn.Flatten(), SandwichLin(16, 2)], outputs=2, gamma=1.0)
    with pytest.raises(ValueError, match="k x k pixels with stride k"):
        plain(network, 1, 8, 8)
