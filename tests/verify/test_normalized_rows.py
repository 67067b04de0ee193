"""Networks whose last layer normalises its rows: bounds of all outputs and of each alone, against Jacobians."""

import json

import numpy as np
import pytest
import torch

from lbdn.layers import LastLayerNormalization, freeze
from lbdn.runs import load_run, weights_digest
from lbdn.verify.__main__ import main
from lbdn.verify.certificate import RejectedError, check, seal
from lbdn.verify.layers import operators, proof, rows_hold
from tests.oracles import dense_operator, jacobian, perturb, spectral_norm
from tests.verify.runs import certified, contents, resealed

FAMILIES = ["sandwich", "orthogonal", "aol", "sll", "spectral", "bcop", "soc", "lot", "cpl"]


def normalized(folder, family="sandwich", architecture="mlp", shape=(1, 6, 6), **options):
    size = {"size": "12-8"} if architecture == "mlp" else {"size": "tiny"}
    return certified(folder, family, architecture, shape, last_layer_normalization=True, **size, **options)


def last_layer(inputs, outputs, factor):
    layer = perturb(LastLayerNormalization(inputs, outputs, bias=False, scale=1.7), 0.3)
    with torch.no_grad():
        layer.weight *= factor
        layer.weight[0] *= 1e3 * factor
    return layer, {name: tensor.detach().numpy() for name, tensor in layer.state_dict().items()}


@pytest.mark.parametrize(("inputs", "outputs"), [(7, 5), (5, 7), (1, 3), (3, 1)])
@pytest.mark.parametrize("factor", [1e-8, 1.0, 1e8])
def test_constants_are_proved_from_just_above_the_dense_norms_and_not_below(inputs, outputs, factor):
    layer, state = last_layer(inputs, outputs, factor)
    with torch.no_grad():
        W = dense_operator(freeze(layer), (inputs,), torch.float32)
    np.testing.assert_allclose(operators("LastLayerNormalization", state, 1.7)[0], W.numpy(), rtol=1e-6)
    holds = proof({"type": "LastLayerNormalization", "scale": 1.7}, state)
    norm, row = spectral_norm(W), float(W.norm(dim=1).max())
    assert holds(norm * (1 + 3e-6), "float32")
    assert not holds(norm * (1 - 1e-6), "float32")
    assert rows_hold(state, 1.7, row * (1 + 3e-7), "float32")
    assert not rows_hold(state, 1.7, row * (1 - 1e-7), "float32")
    assert rows_hold(state, 1.7, 1.7 * (1 + 1e-12), "float64")
    assert not rows_hold(state, 1.7, 1.7 * (1 - 1e-12), "float64")


def test_rows_of_zeros_stay_and_weights_that_are_not_finite_prove_nothing():
    state = {"weight": np.array([[0.0, 0.0], [3.0, 4.0]], np.float32)}
    np.testing.assert_allclose(operators("LastLayerNormalization", state, 2.0)[0], [[0, 0], [1.2, 1.6]])
    for value in (np.nan, np.inf):
        state["weight"][1, 0] = value
        with np.errstate(invalid="ignore"):
            assert not rows_hold(state, 1.0, 1e9, "float32")
            assert not proof({"type": "LastLayerNormalization", "scale": 1.0}, state)(1e9, "float32")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("architecture", "shape"), [("mlp", (1, 6, 6)), ("kwlarge", (1, 8, 8))])
def test_what_the_library_writes_holds_of_the_network(tmp_path, family, architecture, shape, capsys):
    folder = normalized(tmp_path, family, architecture, shape, factor=30.0 if family == "sandwich" else 1.0)
    assert main([str(folder)]) == 0
    assert "; each output alone 5, and 5.00" in capsys.readouterr().out.splitlines()[-1]
    content, network = contents(folder), load_run(folder)
    each = content["each_output"]
    assert network.gamma < content["gamma"] < network.gamma * (1 + 1e-7)
    assert content["gamma"] < content["gamma_rounded"] < network.gamma * (1 + 1e-3)
    assert 2 < each["gamma"] < 2 * (1 + 1e-7)
    assert each["gamma"] < each["gamma_rounded"] < 2 * (1 + 1e-3)
    rows = torch.nn.functional.normalize(network.body[-1].weight.detach().double())
    for _ in range(3):
        derivatives = jacobian(freeze(network.body), torch.randn(*shape))
        assert spectral_norm(derivatives) <= content["gamma_rounded"] * (1 + 1e-5)
        assert (derivatives.norm(dim=1) <= each["gamma_rounded"] * (1 + 1e-5)).all()
        differences, distances = torch.cdist(derivatives, derivatives), torch.cdist(rows, rows)
        assert (differences <= each["gamma_rounded"] * distances * (1 + 1e-5)).all()


def test_claims_that_are_not_true_are_not_proved_even_with_a_new_seal(tmp_path):
    folder = normalized(tmp_path)
    content = contents(folder)
    *body, last = content["layers"]
    each, norm = content["each_output"], last["norm"]
    wrong = [
        {"gamma": content["gamma"] * (1 - 1e-6)},
        {"gamma": each["gamma"]},
        {"gamma_rounded": content["gamma"]},
        {"each_output": each | {"gamma": each["gamma"] * (1 - 1e-6)}},
        {"each_output": each | {"gamma_rounded": each["gamma"]}},
        {"each_output": {name: -claim for name, claim in each.items()}},
        {"each_output": {}},
        {"layers": [*body, last | {"norm": -norm}]},
        {"layers": [*body, last | {"norm": norm * (1 - 1e-6)}]},
        {"layers": [*body, last | {"constant": last["constant"] * (1 - 1e-4)}]},
        {"layers": [*body, {name: value for name, value in last.items() if name != "norm"}]},
        {"layers": [*body, last | {"scale": last["scale"] / 2}]},
        {"layers": [*body, last | {"type": "SandwichLin"}]},
        {"layers": [*body, last | {"type": "AolLin"}]},
        {"layers": [{**body[0], "norm": 0.5}, *body[1:], last]},
        {"multipliers": [[1.0] * 12, [1.0] * 8]},
    ]
    for change in wrong:
        resealed(folder, **content | change)
        assert main([str(folder)]) == 1, change
    resealed(folder, **content)
    assert main([str(folder)]) == 0
    content.pop("each_output")
    (folder / "certificate.json").write_text(json.dumps(content | {"sha256": seal(content)}))
    assert main([str(folder)]) == 1


def test_multipliers_that_prove_the_bound_of_all_outputs_prove_none_of_each_alone(tmp_path):
    folder = normalized(tmp_path)
    content = contents(folder)
    resealed(folder, multipliers=[np.full(12, 0.01).tolist(), np.full(8, 0.01).tolist()], gamma=1e4)
    with pytest.raises(RejectedError, match="multipliers"):
        list(check(folder))
    resealed(folder, **content)
    assert len(list(check(folder))) == 4


@pytest.mark.parametrize("described", [True, False])
def test_the_last_layer_is_the_one_of_the_runs_description(tmp_path, described):
    folder = (normalized if described else certified)(tmp_path, "aol")
    run = json.loads((folder / "run.json").read_text())
    run["network"]["last_layer_normalization"] = not described
    (folder / "run.json").write_text(json.dumps(run))
    with pytest.raises(RejectedError, match="describes a network with another last layer"):
        list(check(folder))


def test_a_changed_bit_of_the_weights_is_seen_and_other_rows_have_another_norm(tmp_path):
    folder = normalized(tmp_path, "aol")
    network, content = load_run(folder), contents(folder)
    original = (folder / "weights.pt").read_bytes()
    changed = bytearray(original)
    changed[len(changed) // 2] ^= 1
    (folder / "weights.pt").write_bytes(changed)
    with pytest.raises(RejectedError, match="isn't the file that was certified"):
        list(check(folder))
    state = network.state_dict()
    state[f"body.{len(network.body) - 1}.weight"][:] = 1.0  # all rows the same: their norm is the root of their number
    torch.save(dict(state), folder / "weights.pt")
    resealed(folder, **content | {"weights_sha256": weights_digest(folder)})
    with pytest.raises(RejectedError, match="LastLayerNormalization"):
        list(check(folder))
