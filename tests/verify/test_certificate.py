"""Certificates: what the library writes is proved by the checker, and nothing that has been changed is."""

import json
import math
import resource
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from lbdn.architectures import Selection
from lbdn.bounds import SoundNetwork, with_slack
from lbdn.certificate import write_certificate, write_no_certificate
from lbdn.explicit import explicit
from lbdn.layers import (
    AolFc,
    AolLin,
    OrthogonalConv,
    OrthogonalFc,
    OrthogonalLin,
    SandwichConv,
    SandwichFc,
    SandwichLin,
)
from lbdn.networks import Network
from lbdn.runs import save_run, save_tensors, weights_digest
from lbdn.verify.__main__ import main
from lbdn.verify.certificate import RejectedError, _up, check, seal
from lbdn.verify.layers import (
    NotCoveredError,
    aol_holds,
    diagonal,
    matrices_hold,
    operators,
    residual_factors,
    residual_holds,
    rows_hold,
)
from tests.oracles import perturb
from tests.verify.runs import certified, contents, resealed

LAYERS = [AolFc, AolLin, OrthogonalFc, OrthogonalLin, SandwichFc, SandwichLin]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("sizes", [(7, 5), (5, 7), (4, 4), (1, 3), (3, 1)])
def test_operators_are_those_of_the_library(layer, sizes):
    module = perturb(layer(*sizes, scale=1.7), 0.3).double().requires_grad_(False)
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    for own, theirs in zip(operators(layer.__name__, state, 1.7), module.operators(), strict=True):
        np.testing.assert_allclose(own, theirs.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layer", [SandwichConv, OrthogonalConv])
@pytest.mark.parametrize("size", [(4, 6), (5, 3)])
def test_matrices_of_frequencies_have_the_norms_of_the_library(layer, size):
    module = perturb(layer(2, 3, scale=1.7), 0.3).double().requires_grad_(False)
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    own = operators(layer.__name__, state, 1.7, list(size))
    for matrices, theirs in zip(own, module.operators(*size), strict=True):
        norms = {round(float(np.linalg.norm(W, 2)), 9) for W in matrices}
        assert norms == {round(float(np.linalg.norm(W, 2)), 9) for W in theirs.numpy()}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_constants_are_proved_from_just_above_the_scale_and_not_below(layer, precision):
    module = perturb(layer(9, 6, scale=0.7), 0.0 if layer in (AolFc, AolLin) else 0.3)
    state = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    matrices = operators(layer.__name__, state, 0.7)
    psi = diagonal(state) if layer is SandwichFc else None
    norm = 0.7 if psi is not None else float(np.linalg.norm(matrices[0], 2))
    above, below = (1 + 1e-5, 1 - 1e-6) if precision == "float32" else (1 + 1e-12, 1 - 1e-12)
    assert matrices_hold(matrices, psi, 0.7, norm * above, precision)
    assert not matrices_hold(matrices, psi, 0.7, norm * below, precision)
    for broken in (1.001 * matrices[0], np.full_like(matrices[0], np.nan)):
        assert not matrices_hold([broken, *matrices[1:]], psi, 0.7, norm * above, precision)


MEAN = np.full((4, 4), 0.25)  # of norm one, as its rows are when normalised
SLL = {"weight": MEAN, "log_q": np.zeros(4)}


@pytest.mark.parametrize(
    ("holds", "times"),
    [
        pytest.param(partial(matrices_hold, (MEAN,), None), 1, id="matrix"),
        pytest.param(partial(matrices_hold, (MEAN, MEAN), np.ones(4)), 2, id="sandwich"),
        pytest.param(partial(rows_hold, {"weight": MEAN}), 1, id="rows"),
        pytest.param(partial(aol_holds, MEAN[:, :, None, None]), 1, id="aol"),
        # I - N^T W, of norm one with |N^T W| = 2, and N is a product, too: twice two numbers.
        pytest.param(partial(residual_holds, SLL, residual_factors(SLL, None), size=None), 4, id="sll"),
    ],
)
def test_constants_are_those_of_operators_whose_entries_are_all_two_units_of_roundoff_larger(holds, times):
    """These have the constant 1 + 2u, so often as entries are multiplied; what is claimed below isn't true of them."""
    for units, proved in ((1.9, False), (2.1, True)):  # two, and room for the roundings of the proof
        assert holds(1.0, 1 + units * times * 2.0**-24, "float32") == proved


@pytest.mark.parametrize("family", ["sandwich", "orthogonal", "aol", "sll"])
@pytest.mark.parametrize(
    ("architecture", "shape"), [("mlp", (1, 6, 6)), ("kwlarge", (1, 8, 8)), ("kwlarge", (2, 12, 4))]
)
def test_what_the_library_writes_holds(tmp_path, family, architecture, shape, capsys):
    size = {"size": "tiny"} if architecture == "kwlarge" else {}
    normalization = ([0.3] * shape[0], [0.4] * shape[0])
    folder = certified(tmp_path, family, architecture, shape, normalization=normalization, **size)
    assert main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith("holds: from pixels, 5")
    content = contents(folder)
    assert 2 < content["gamma"] < 2 * (1 + 1e-7)
    assert content["gamma"] < content["gamma_rounded"] < 2 * (1 + 1e-3)
    assert (content["multipliers"] is not None) == (family == "sandwich" and architecture == "mlp")
    for k, layer in enumerate(content["layers"]):
        # In their proofs the scale is the norm of Sandwich, Orthogonal and SLL layers; of AOL's it is above the norm.
        if family != "aol" and ("Conv" in layer["type"] or layer["type"] == "SllFc"):
            changed = [*content["layers"]]
            changed[k] = layer | {"constant": layer["scale"] * (1 - 1e-6)}
            resealed(folder, layers=changed)
            assert main([str(folder)]) == 1


def test_a_network_in_float64_is_certified_as_such(tmp_path):
    network = Network([SandwichFc(5, 4), SandwichLin(4, 3)], outputs=3, gamma=1.0).double()
    save_run(tmp_path, network, {})
    write_certificate(str(tmp_path), network, SoundNetwork(network, torch.zeros(1, 5, dtype=torch.float64)))
    assert contents(tmp_path)["precision"] == "float64"
    assert main([str(tmp_path)]) == 0
    assert contents(tmp_path)["gamma_rounded"] < 1 + 1e-7


def test_a_changed_bit_of_the_weights_is_seen(tmp_path):
    folder = certified(tmp_path)
    original = (folder / "weights.pt").read_bytes()
    for place in np.random.default_rng(0).integers(0, len(original), 20):
        changed = bytearray(original)
        changed[place] ^= 1
        (folder / "weights.pt").write_bytes(changed)
        with pytest.raises(RejectedError, match="isn't the file that was certified"):
            list(check(folder))


def test_a_changed_digit_of_the_certificate_is_seen(tmp_path):
    folder = certified(tmp_path)
    original = (folder / "certificate.json").read_text()
    digits = [i for i, character in enumerate(original) if character.isdigit()]
    for place in np.random.default_rng(0).choice(digits, 40):
        changed = original[:place] + str((int(original[place]) + 1) % 10) + original[place + 1 :]
        if json.loads(changed) == json.loads(original):
            continue  # the seventeenth digit of a number need not change it
        (folder / "certificate.json").write_text(changed)
        with pytest.raises(RejectedError):
            list(check(folder))


def test_claims_that_are_not_true_are_not_proved_even_with_a_new_seal(tmp_path):
    folder = certified(tmp_path)
    content = contents(folder)
    multipliers, layers = content["multipliers"], content["layers"]
    smaller = [{**layer, "constant": 0.3 * layer["constant"]} for layer in layers]
    wrong = [
        {"gamma": 0.5 * content["gamma"]},
        {"multipliers": [[-m for m in multipliers[0]], *multipliers[1:]]},
        {"multipliers": [[30 * m for m in multipliers[0]], *multipliers[1:]]},
        {"multipliers": multipliers[:-1]},
        {"multipliers": None},
        {"gamma_rounded": 2.0},
        {"gamma_rounded": float(np.nextafter(np.prod([layer["constant"] for layer in layers]), 0))},
        *({"layers": [*layers[:k], smaller[k], *layers[k + 1 :]]} for k in range(len(layers))),
        {"layers": layers[::-1]},
        {"layers": layers[:-1]},
        {"layers": [{**layers[0], "constant": 0.5}, *layers[1:]]},
        {"layers": [*layers[:-1], {**layers[-1], "scale": layers[-1]["scale"] / 2}]},
        {"layers": [{**layers[0], "type": "AolFc"}, *layers[1:]]},
        {"layers": [layers[0], {**layers[1], "type": "Flatten"}, *layers[2:]]},
        {
            "layers": [
                {**layers[0], "scale": -1.0, "constant": -0.1},
                {**layers[1], "scale": -layers[1]["scale"]},
                *layers[2:],
            ]
        },
        {"layers": [{**layers[0], "constant": -1.0}, *layers[1:]]},
        {"version": 2},
        {"precision": "float16"},
    ]
    for change in wrong:
        resealed(folder, **content | change)
        assert main([str(folder)]) == 1, change
    resealed(folder, **content)
    assert main([str(folder)]) == 0


def certified_layers(folder, *layers):
    """The folder of a network that no description of a run limits."""
    network = Network(layers, outputs=4, gamma=1.0)
    save_run(folder, network, {})
    write_certificate(folder, network, SoundNetwork(network, torch.zeros(1, 4)))
    assert main([str(folder)]) == 0
    return folder


def test_multipliers_prove_nothing_of_a_last_activation(tmp_path):
    last = SandwichFc(4, 4)
    with torch.no_grad():
        last.log_psi.fill_(3.0)
    folder = certified_layers(tmp_path, SandwichFc(4, 4), last)
    resealed(folder, multipliers=[[1.0] * 4], gamma=1.0)
    assert main([str(folder)]) == 1


def test_multipliers_prove_nothing_of_a_scaled_selection(tmp_path):
    layers = SandwichFc(4, 5), SandwichLin(5, 6)
    multipliers = with_slack(explicit(Network(layers, outputs=6, gamma=1.0)), 1e-7)
    folder = certified_layers(tmp_path, *layers, Selection(6, 4, scale=100.0))
    assert contents(folder)["gamma"] >= 100
    resealed(folder, multipliers=[m.tolist() for m in multipliers.multipliers], gamma=1.001)
    assert main([str(folder)]) == 1


@pytest.mark.parametrize("deviation", [-0.1, 0.0, math.nan, math.inf])
def test_impossible_standard_deviations_are_refused(tmp_path, deviation):
    folder = certified(tmp_path)
    tensors = torch.load(folder / "weights.pt")
    tensors["normalization.std"].fill_(deviation)
    save_tensors(tensors, folder / "weights.pt")
    resealed(folder, weights_sha256=weights_digest(folder))
    with pytest.raises(RejectedError, match="standard deviations"):
        list(check(folder))


@pytest.mark.parametrize("name", ["weights_sha256", "layers", "multipliers", "gamma", "gamma_rounded", "precision"])
def test_certificates_without_a_part_do_not_hold(tmp_path, name, capsys):
    folder = certified(tmp_path)
    content = contents(folder)
    content.pop(name)
    (folder / "certificate.json").write_text(json.dumps(content | {"sha256": seal(content)}))
    assert main([str(folder)]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("does not hold: ")


def test_networks_of_other_layers_are_not_covered(tmp_path, capsys):
    folder = certified(tmp_path)
    layers = contents(folder)["layers"]
    resealed(folder, layers=[*layers[:-1], layers[-1] | {"type": "MyLin"}])
    with pytest.raises(NotCoveredError):
        list(check(folder))
    assert main([str(folder)]) == 3
    assert capsys.readouterr().out.splitlines()[-1] == "not covered: layers of type MyLin"
    write_no_certificate(str(folder), "a network without a Lipschitz bound")
    assert main([str(folder)]) == 3


def test_folders_without_a_certificate_and_calls_without_a_folder(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert f"nothing to check: no {tmp_path / 'certificate.json'}" in capsys.readouterr().out
    (tmp_path / "certificate.json").write_text("not JSON")
    assert main([str(tmp_path)]) == 1
    assert "is no certificate" in capsys.readouterr().out
    assert [main([]), main(["a", "b"]), main(["--no"]), main(["--help"])] == [2, 2, 2, 0]


def test_networks_without_a_bound_get_no_certificate(tmp_path):
    sound = SoundNetwork(Network([AolLin(4, 2)], outputs=2, gamma=1.0), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="without a Lipschitz bound"):
        write_certificate(tmp_path, Network([AolLin(4, 2)], outputs=2, gamma=None), sound)


def test_the_checker_is_a_command_that_needs_numpy_and_nothing_else(tmp_path):
    layers = [SandwichFc(p, q) for p, q in pairwise((784, 64, 64))]
    network = Network([*layers, SandwichLin(64, 10)], outputs=10, gamma=1.0)
    save_run(tmp_path, network, {})
    write_certificate(tmp_path, network, SoundNetwork(network, torch.zeros(1, 784)))
    start = time.process_time()  # of the processor alone: other work on the machine is none of the checker's
    assert len(list(check(str(tmp_path)))) == 4
    assert time.process_time() - start < 0.1
    script = (
        "import sys\nfrom lbdn.verify.__main__ import main\nstatus = main(sys.argv[1:])\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'scipy', 'lbdn')))\nsys.exit(status)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    *_, holds, modules = done.stdout.splitlines()
    assert holds.startswith("holds: ")
    own = [f"lbdn.verify.{name}" for name in ("__main__", "archive", "certificate", "layers", "lmi", "matrices")]
    assert modules == str(["lbdn", "lbdn.verify", *own])


def test_no_bound_is_proved_of_a_network_that_is_described_without_one(tmp_path):
    folder = certified(tmp_path)
    description = json.loads((folder / "run.json").read_text())
    description["network"] |= {"family": "plain", "gamma": None}
    (folder / "run.json").write_text(json.dumps(description))
    with pytest.raises(RejectedError, match="describes a network without a bound"):
        list(check(folder))


@pytest.mark.parametrize(("bound", "text"), [(1.0, "1"), (1.00000004, "1.000001"), (123456789.0, "1.234568e+8")])
def test_bounds_are_said_rounded_up(bound, text):
    assert _up(bound) == text
