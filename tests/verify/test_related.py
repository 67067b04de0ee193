"""The related families in the checker: their operators, proofs near to the truth, and none of what is not true."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from lbdn import build_network
from lbdn.bounds import SoundNetwork
from lbdn.certificate import write_certificate
from lbdn.layers import (
    BcopConv,
    BcopFc,
    CplConv,
    CplFc,
    LotConv,
    LotLin,
    SocConv,
    SocLin,
    SpectralConv,
    SpectralFc,
    freeze,
)
from lbdn.runs import save_run
from lbdn.verify.__main__ import main
from lbdn.verify.certificate import RejectedError, check
from lbdn.verify.layers import operators, proof, residual_factors, residual_holds
from tests.oracles import circular_convolution, dense_operator, jacobian, perturb, spectral_norm
from tests.verify.runs import certified, contents, resealed

FAMILIES = ["spectral", "bcop", "soc", "lot", "cpl"]
DENSE = [BcopFc, LotLin, SocLin, SpectralFc]
CONVOLUTIONS = [BcopConv, LotConv, SocConv, SpectralConv]


def state(module):
    return {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}


def described(module, size):
    return {"type": type(module).__name__, "scale": module.scale, "size": size}


def linear(layer, *arguments, factor=1.0, **options):
    """A layer without what isn't linear, in float32."""
    module = perturb(layer(*arguments, bias=False, scale=1.7, **options), 0.3)
    with torch.no_grad():
        module.weight *= factor
    module.activation = nn.Identity()
    return module


@pytest.mark.parametrize("layer", DENSE)
@pytest.mark.parametrize("sizes", [(7, 5), (5, 7), (4, 4), (1, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("factor", [1e-4, 1.0, 1e5])
def test_dense_operators_are_those_of_the_library(layer, sizes, factor):
    module = linear(layer, *sizes, factor=factor)
    (own,), (theirs,) = operators(layer.__name__, state(module), 1.7), copy.deepcopy(module).double().operators()
    np.testing.assert_allclose(own, theirs.detach().numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("layer", CONVOLUTIONS)
@pytest.mark.parametrize("sizes", [(2, 3), (3, 2), (1, 1)])
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"kernel_size": 1}, {"kernel_size": 4}])
def test_matrices_of_frequencies_have_the_singular_values_of_the_library(layer, sizes, options):
    module, size = linear(layer, *sizes, **options), (4, 3)
    (own,) = operators(layer.__name__, state(module), 1.7, list(size))
    (theirs,) = copy.deepcopy(module).double().operators(*size)
    own, theirs = (x if x.ndim == 3 else x[None] for x in (own, theirs.detach().numpy()))
    repeated = theirs.shape[1] // own.shape[1]  # of the form with real and imaginary parts
    values = {tuple(np.linalg.svd(W, compute_uv=False).repeat(repeated).round(8)) for W in own}
    assert values == {tuple(np.linalg.svd(W, compute_uv=False).round(8)) for W in theirs}


@pytest.mark.parametrize("layer", [*DENSE, *CONVOLUTIONS])
@pytest.mark.parametrize("sizes", [(6, 3), (3, 6), (1, 4)])
@pytest.mark.parametrize("factor", [1e-4, 1.0, 1e5])
def test_constants_are_proved_from_just_above_the_dense_norm_of_what_runs_and_not_below(layer, sizes, factor):
    for options in [{}] if layer in DENSE else [{}, {"stride": 2}]:
        module = linear(layer, *sizes, factor=factor, **options)
        stride = options.get("stride", 1)
        shape = (sizes[0],) if layer in DENSE else (sizes[0], 4 * stride, 3 * stride)
        with torch.no_grad():
            norm = spectral_norm(dense_operator(freeze(module), shape, torch.float32))
        holds = proof(described(module, [4, 3]), state(module))
        assert holds(norm * (1 + 3e-5), "float32")
        assert not holds(norm * (1 - 3e-6), "float32")
        assert holds(module.scale * (1 + 1e-9), "float64")  # in real arithmetic


@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_an_operator_on_images_of_another_size_is_another_one(layer):
    module = linear(layer, 3, 3, kernel_size=5)
    holds = proof(described(module, None) | {"size": [9, 9]}, state(module))
    assert holds(module.scale * (1 + 1e-4), "float32")
    with pytest.raises(ValueError, match="takes the size of its images"):
        proof(described(module, None), state(module))


def cpl(shape, k, factor, inner=4):
    """A layer whose hidden units are all active, and its map of scaled inputs."""
    module = CplFc(*shape, inner) if k is None else CplConv(shape[0], inner, k)
    perturb(module, 0.3)
    with torch.no_grad():
        module.weight *= factor
    module.activation = nn.Identity()
    return module.requires_grad_(False)


CPL = pytest.mark.parametrize(
    ("shape", "k"), [((7,), None), ((3,), None), ((2, 4, 3), 3), ((6, 2, 3), 5), ((3, 2, 2), 1)]
)


@CPL
@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_convex_potential_layers_are_proved_at_their_scale_and_not_below(shape, k, factor):
    module = cpl(shape, k, factor)
    holds = proof(described(module, list(shape[1:])), state(module))
    for precision, above in (("float32", 1e-5), ("float64", 1e-9)):
        assert holds(1 + above, precision)
        assert not holds(1.0, precision)  # as it is where no unit is active, whose copy of the input is exact
        assert not holds(1 - 1e-6, precision)


@CPL
def test_factors_are_those_of_the_library(shape, k):
    module = cpl(shape, k, 1.0).double()
    own = residual_factors(state(module), list(shape[1:]))
    np.testing.assert_allclose(own, float(module.operators(*shape[1:])[1]), rtol=1e-12)


@CPL
def test_a_convex_potential_layer_with_a_step_too_long_is_proved_down_to_its_true_constant(shape, k):
    module, size = cpl(shape, k, 1.0), list(shape[1:])
    weight = module.weight.double()
    if k is None:
        W = weight
    else:
        larger = tuple(pixels + k // 2 for pixels in size)
        W = dense_operator(lambda x: circular_convolution(x, weight), (shape[0], *larger))
    factors = residual_factors(state(module), size)
    for longer in (1.5, 3.0):
        step = longer * factors[0] / float(weight.abs().max())
        true = spectral_norm(torch.eye(W.shape[1], dtype=torch.float64) - step * W.mT @ W)
        assert true > 1.3
        assert residual_holds(state(module), longer * factors, 1.0, true * (1 + 1e-5), "float32", size)
        assert not residual_holds(state(module), longer * factors, 1.0, true * (1 - 1e-6), "float32", size)


def test_the_jacobian_of_a_convex_potential_layer_is_below_its_constant_and_breaks_with_a_longer_step(monkeypatch):
    module = cpl((5,), None, 1.0)
    assert spectral_norm(jacobian(module, torch.randn(5))) <= 1 + 1e-5
    scaled, step = module.operators()
    monkeypatch.setattr(module, "operators", lambda: (scaled, 3 * step))
    norm = spectral_norm(jacobian(module, torch.randn(5)))
    assert norm > 1.3
    factors = 3 * residual_factors(state(module), None)
    assert not residual_holds(state(module), factors, 1.0, norm * (1 - 1e-5), "float32", None)


def test_a_zero_padded_convolution_is_not_taken_for_a_circular_one():
    module = CplConv(1, 1, bias=False)
    with torch.no_grad():
        module.weight.zero_()
        module.weight[0, 0, 1] = torch.tensor([1.0, 0.0, -1.0])  # cancels where two pixels wrap around
    factors = residual_factors(state(module), [1, 2])
    assert factors[0] < 2.1  # 2 over the squared norm, with zeros around the image, of one
    assert residual_holds(state(module), factors, 1.0, 1 + 1e-5, "float32", [1, 2])
    assert not residual_holds(state(module), 100 * factors, 1.0, 1 + 1e-5, "float32", [1, 2])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize(("architecture", "shape"), [("mlp", (1, 6, 6)), ("kwlarge", (2, 8, 4))])
def test_what_the_library_writes_holds_and_nothing_less(tmp_path, family, factor, architecture, shape, capsys):
    size = {"size": "32-16"} if architecture == "mlp" else {"size": "tiny"}
    normalization = ([0.3] * shape[0], [0.4] * shape[0])
    folder = certified(tmp_path, family, architecture, shape, factor=factor, normalization=normalization, **size)
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("holds: from pixels, 5")
    content = contents(folder)
    assert 2 < content["gamma"] < content["gamma_rounded"] < 2 * (1 + 1e-3)
    layers = content["layers"]
    for k, layer in enumerate(layers):
        changed = layer | {"constant": 0.97 * layer["constant"]}
        resealed(folder, layers=[*layers[:k], changed, *layers[k + 1 :]])
        assert main([str(folder)]) == 1
    resealed(folder, layers=layers, gamma=content["gamma"] * (1 - 1e-8))
    assert main([str(folder)]) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_in_float64_is_certified_as_such(tmp_path, family):
    arguments = {"architecture": "mlp", "family": family, "size": "16", "gamma": 1.0, "input_shape": (9,), "outputs": 3}
    network = perturb(build_network(**arguments), 0.3).double()
    save_run(tmp_path, network, {"network": arguments})
    write_certificate(tmp_path, network, SoundNetwork(network, torch.zeros(1, 9, dtype=torch.float64)))
    assert main([str(tmp_path)]) == 0
    assert contents(tmp_path)["precision"] == "float64"
    assert 1 < contents(tmp_path)["gamma_rounded"] < 1 + 1e-7


@pytest.mark.parametrize("other", ["Aol", "Bcop", "Lot", "Soc", "Cpl"])
def test_layers_of_another_family_with_the_same_weights_are_not_those_of_the_run(tmp_path, other):
    folder = certified(tmp_path, "spectral", size="8")
    layers = contents(folder)["layers"]
    for k in range(1, len(layers)):
        kind = layers[k]["type"].replace("Spectral", other)
        resealed(folder, layers=[*layers[:k], layers[k] | {"type": kind, "constant": 100.0}, *layers[k + 1 :]])
        with pytest.raises(RejectedError, match="describes a network of family spectral, but the certificate lists"):
            list(check(folder))
