import copy
from functools import partial

import pytest
import torch
from torch import nn

from lbdn.layers import (
    AolConv,
    AolFc,
    LastLayerNormalization,
    OrthogonalConv,
    OrthogonalFc,
    OrthogonalLin,
    SandwichConv,
    SandwichFc,
    SandwichLin,
    SllConv,
    SllFc,
    freeze,
)
from lbdn.layers.base import Layer
from lbdn.networks import build_network
from tests.oracles import perturb

LAYERS = {
    "SandwichFc": (partial(SandwichFc, 3, 4), (3,)),
    "OrthogonalFc": (partial(OrthogonalFc, 3, 4), (3,)),
    "AolFc": (partial(AolFc, 3, 4), (3,)),
    "SllFc": (partial(SllFc, 3, 4), (3,)),
    "LastLayerNormalization": (partial(LastLayerNormalization, 3, 4), (3,)),
}
CONVOLUTIONS = {
    "SandwichConv": (partial(SandwichConv, 2, 3), (2, 4, 5)),
    "SandwichConv-large": (partial(SandwichConv, 2, 3), (2, 24, 24)),
    "SandwichConv-stride2": (partial(SandwichConv, 2, 3, 5, stride=2), (2, 4, 6)),
    "OrthogonalConv": (partial(OrthogonalConv, 3, 2), (3, 4, 5)),
    "OrthogonalConv-stride2": (partial(OrthogonalConv, 2, 3, stride=2), (2, 4, 6)),
    "AolConv": (partial(AolConv, 2, 3), (2, 4, 5)),
    "SllConv": (partial(SllConv, 2, 3), (2, 4, 5)),
}
NETWORKS = {
    f"{architecture}-{family}-{'-'.join(options)}": (
        partial(build_network, architecture, family, size=size, input_shape=shape, outputs=3, **options),
        shape,
    )
    for architecture, size, shape in [("mlp", "small", (1, 4, 4)), ("kwlarge", "tiny", (1, 8, 8))]
    for family in ("plain", "aol", "orthogonal", "sll", "sandwich")
    for options in ({"normalization": ([0.4], [0.2])}, {"last_layer_normalization": True})
}


def each(cases):
    return pytest.mark.parametrize(("build", "shape"), cases.values(), ids=list(cases))


modules = each(LAYERS | CONVOLUTIONS | NETWORKS)


@pytest.fixture
def module_and_inputs(build, shape):
    return perturb(build().double(), spread=0.1), torch.rand(4, *shape, dtype=torch.float64)


@modules
def test_a_frozen_copy_equals_the_original(module_and_inputs):
    module, x = module_and_inputs
    frozen = freeze(module)
    for _ in range(2):
        torch.testing.assert_close(frozen(x), module(x), rtol=1e-10, atol=1e-10)


@modules
def test_a_frozen_copy_does_not_follow_the_original(module_and_inputs):
    module, x = module_and_inputs
    expected = module(x).detach()
    frozen = freeze(module)
    perturb(module)
    assert not torch.allclose(module(x), expected)
    torch.testing.assert_close(frozen(x), expected, rtol=1e-10, atol=1e-10)


@modules
def test_freezing_leaves_the_original_untouched(module_and_inputs):
    module, x = module_and_inputs
    module.train()
    types, state, expected = [type(m) for m in module.modules()], copy.deepcopy(module.state_dict()), module(x)
    freeze(module)(x)
    assert module.training
    assert [type(m) for m in module.modules()] == types
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(module(x), expected)


@modules
def test_a_frozen_copy_gives_gradients_of_inputs_and_none_of_parameters(module_and_inputs):
    module, x = module_and_inputs
    gradients = []
    for function in (module, freeze(module)):
        inputs = x.clone().requires_grad_()
        gradients += torch.autograd.grad(function(inputs).square().sum(), inputs)
        assert function is module or not any(p.requires_grad for p in function.parameters())
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


@each(LAYERS | NETWORKS)
def test_a_frozen_copy_is_in_evaluation_mode(build, shape):
    assert not any(part.training for part in freeze(build().train()).modules())


@each(LAYERS)
def test_freezing_twice_is_freezing_once(module_and_inputs):
    module, x = module_and_inputs
    torch.testing.assert_close(freeze(freeze(module))(x), module(x), rtol=1e-10, atol=1e-10)


@each(CONVOLUTIONS)
def test_a_frozen_convolution_takes_images_of_several_sizes(build, shape):
    module = build()
    frozen = freeze(module)
    for size in [(4, 6), (6, 4), (4, 6), (2, 2)]:
        x = torch.rand(2, shape[0], *size)
        torch.testing.assert_close(frozen(x), module(x), rtol=1e-4, atol=1e-5)


@each(NETWORKS)
def test_a_frozen_network_has_the_bounds_of_the_original(build, shape):
    network = build()
    frozen = freeze(network)
    assert frozen.gamma == network.gamma
    assert frozen.pixel_gamma == network.pixel_gamma
    if network.gamma is not None:
        assert torch.equal(frozen.pair_gamma(), network.pair_gamma())


def test_layers_deep_inside_a_module_are_frozen():
    nested = nn.Sequential(nn.Sequential(SandwichFc(3, 4)), SandwichFc(4, 2))
    frozen, x = freeze(nested), torch.randn(5, 3)
    expected = frozen(x)
    for parameter in frozen.parameters():
        parameter.data.zero_()
    assert not torch.allclose(expected, torch.zeros_like(expected))
    torch.testing.assert_close(frozen[1].layer.stacked, torch.zeros(6, 2))


@pytest.mark.parametrize("family", [SandwichFc, OrthogonalFc, AolFc, SllFc])
def test_frozen_layers_reject_what_the_layer_rejects(family):
    with pytest.raises(ValueError, match=r"\(\.\.\., 3\).*got \(2, 5\)"):
        freeze(family(3, 4))(torch.zeros(2, 5))


@pytest.mark.parametrize("layer", [SandwichFc, SandwichLin, OrthogonalFc, OrthogonalLin])
@pytest.mark.parametrize("samples", [(), (2,), (2, 2), (30,)], ids=str)
def test_few_samples_of_many_inputs_give_what_the_operators_give(layer, samples):
    layer = perturb(layer(50, 3, scale=0.7).double(), spread=0.3)
    x = torch.randn(*samples, 50, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]
    actual, expected = layer(x), layer.transform(x, *layer.operators())
    torch.testing.assert_close(actual, expected)
    weight = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, leaves, weight) for y in (actual, expected)))


@modules
def test_a_frozen_copy_serves_gradients_after_inference_and_other_precisions(build, shape):
    frozen, x = freeze(build()), torch.rand(2, *shape)
    with torch.inference_mode():
        expected = frozen(x)
    x.requires_grad_()
    torch.testing.assert_close(frozen(x), expected)
    assert torch.autograd.grad(frozen(x).sum(), x)[0].isfinite().all()
    assert frozen.double()(x.detach().double()).dtype == torch.float64


@modules
def test_no_inputs_give_no_outputs(build, shape):
    module = build()
    assert len(module(torch.zeros(0, *shape))) == len(freeze(module)(torch.zeros(0, *shape))) == 0


def test_a_module_that_occurs_twice_is_frozen_twice():
    layer = SandwichFc(3, 3)
    frozen = freeze(nn.Sequential(layer, layer))
    assert [type(module).__name__ for module in frozen] == ["Frozen", "Frozen"]


@modules
def test_autocast_leaves_operators_in_their_precision(build, shape):
    module, x = build(), torch.rand(2, *shape)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = module(x)
    outputs.float().square().sum().backward()
    for layer in module.modules():
        assert not isinstance(layer, Layer) or all(p.grad.dtype == torch.float32 for p in layer.parameters())
    torch.testing.assert_close(outputs.float(), module(x), rtol=0.1, atol=0.1)
