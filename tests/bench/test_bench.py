"""The benchmark's harness, on sizes that take no time: what it counts and derives is right, whatever the numbers."""

import json

import pytest
import torch
from click.testing import CliRunner
from pyautoattack.autoattack import AutoAttack
from torch import nn

from bench import layers, search
from bench.__main__ import main
from bench.layers import training_step
from bench.measure import alternate, peak_memory
from bench.scale import FIRST, OUTPUTS, exponents, measure_scale, stack
from bench.search import count_passes, measure_attack, measure_search, paper_search
from bench.shares import KINDS, shares
from bench.tables import SECTIONS, markdown
from bench.work import measure_certification, measure_epoch, measure_toy
from lbdn import build_network, registry
from lbdn.attack import autoattack
from lbdn.data.prepared import prepare
from lbdn.layers import freeze
from lbdn.runs import save_run

CPU = torch.device("cpu")
MACHINE = {"device": "abacus", "threads": 1, "cpu_capability": "none", "torch": "2", "batch": 4}


def test_works_take_turns_and_the_warm_up_is_not_timed():
    calls = []
    times = alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, 3, warm_up=2)
    assert calls == ["a", "a", "b", "b", *"ababab"]
    assert [len(values) for values in times.values()] == [3, 3]


def test_peak_memory_is_what_the_work_held_at_once():
    def hold(megabytes: int) -> None:
        torch.ones(megabytes * 2**20, dtype=torch.uint8)

    grown = peak_memory(lambda: hold(200), CPU)
    if grown is None:
        pytest.skip("the system doesn't count")
    assert 195 * 2**20 < grown < 230 * 2**20
    one_after_the_other = peak_memory(lambda: [hold(100), hold(100)], CPU)
    assert one_after_the_other < 130 * 2**20


@pytest.mark.parametrize("family", ["plain", "sandwich", "sll"])
def test_shares_add_up_and_frozen_layers_spend_nothing_on_their_parameterisation(family):
    network = build_network("kwlarge", family, size="tiny", input_shape=(3, 12, 12), outputs=4)
    x, y = torch.rand(2, 3, 12, 12), torch.tensor([0, 1])
    parts = shares(network, training_step(network, x, y), CPU)
    assert tuple(parts) == KINDS
    assert sum(parts.values()) == pytest.approx(1)
    assert parts["products"] > 0
    assert family == "plain" or parts["parameterisation"] > 0.1
    assert (parts["transforms"] > 0) == (family == "sandwich")
    frozen = freeze(network)
    assert shares(frozen, lambda: frozen(x), CPU)["parameterisation"] == 0


def test_the_backward_pass_of_the_parameterisation_belongs_to_it():
    network = build_network("toy", "sandwich", input_shape=(1,), outputs=1)
    x = torch.rand(1, 1)

    def forward() -> None:
        with torch.no_grad():
            network(x)

    def backward() -> None:
        network(x).sum().backward()

    assert shares(network, backward, CPU)["parameterisation"] > 0.5
    assert shares(network, forward, CPU)["parameterisation"] > 0.5


def test_layers_have_a_row_a_family_with_the_baseline_first_and_ratios_within_each_repetition(monkeypatch):
    times = {"plain": [1.0, 4.0], "sandwich": [3.0, 8.0]}
    monkeypatch.setattr(layers, "alternate", lambda works, *_: {name: times[name] for name in works})
    rows = layers.measure_layers(
        ["sandwich"], size="tiny", input_shape=(3, 8, 8), outputs=4, batch=2, repetitions=2, device=CPU
    )
    assert [row["family"] for row in rows] == ["plain", "sandwich"]
    for row, ratio in zip(rows, ((1, 1, 1), (2.5, 2.25, 2.75)), strict=True):
        assert row["step_ratio"] == row["evaluation_ratio"] == ratio


@pytest.mark.parametrize("family", registry.names("families"))
def test_a_stack_takes_its_size_and_keeps_its_bound(family):
    network = stack(registry.find("families", family), width=FIRST["width"], image=6, depth=2)
    assert network(torch.rand(2, 3, 6, 6)).shape == (2, OUTPUTS)
    assert (network.gamma is None) == (family == "plain")
    if network.gamma is not None:
        x, y = torch.rand(2, 8, 3, 6, 6)
        assert ((network(x) - network(y)).norm(dim=1) <= (x - y).flatten(1).norm(dim=1) * 1.0001).all()


def test_scale_doubles_each_axis_and_stops_at_the_limit():
    start = {"width": 16, "image": 4, "batch": 2, "depth": 1}
    first = {"width": 16, "image": 4, "batch": 2, "depth": 1}
    rows = measure_scale(["plain"], device=CPU, limit=1e-9, start=start, first=first)
    assert [(row["axis"], row["value"]) for row in rows] == list(first.items())


def test_exponents_are_those_of_powers_and_leave_out_what_is_missing():
    rows = [
        {"family": "f", "axis": axis, "value": n, "seconds": 3.0 * n**power, "memory": None}
        for axis, power in (("width", 2.5), ("batch", 1))
        for n in (1, 2, 4, 8)
    ]
    assert exponents(rows, "seconds") == pytest.approx({("f", "width"): 2.5, ("f", "batch"): 1})
    assert exponents(rows, "memory") == {}
    assert exponents(rows[:1], "seconds") == {}


def test_the_papers_procedure_counts_as_the_issue_says_and_finds_a_linear_maps_norm():
    layer = nn.Linear(5, 4)
    passes = count_passes(layer)
    found = paper_search(layer, torch.randn(20, 5), learning_rate=0.03)
    assert sum(passes) == 10 * 51 * 64 * 2
    norm = float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))
    assert 0.99 * norm < found <= norm * (1 + 1e-9)


def test_searches_are_compared_on_trained_networks(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "RATES", (0.1,))
    prepare("digits", {}, tmp_path / "prepared" / "digits")
    arguments = {"architecture": "mlp", "family": "orthogonal", "input_shape": [1, 8, 8], "outputs": 10}
    run = tmp_path / "runs" / "study" / "one"
    save_run(run, build_network(**arguments), {"network": arguments, "dataset": "digits"})
    (row,) = measure_search([run], tmp_path / "prepared", CPU)
    assert row["run"] == "study/one"
    assert row["passes"] <= row["paper_passes"] / 5
    assert 0 < row["found"] <= row["upper"] * (1 + 1e-9)
    assert row["paper"] <= row["found"] * 1.01


@pytest.fixture
def attacked(tmp_path):
    """Measure the attack on two networks, of which one has a bound."""
    prepare("digits", {}, tmp_path / "prepared" / "digits")
    runs = []
    for family in ("plain", "orthogonal"):
        arguments = {"architecture": "mlp", "family": family, "input_shape": [1, 8, 8], "outputs": 10}
        runs.append(tmp_path / "runs" / family)
        save_run(runs[-1], build_network(**arguments), {"network": arguments, "dataset": "digits"})
    return lambda: measure_attack(runs, tmp_path / "prepared", CPU, images=20, radii_255=(0.01, 0.02))


def test_the_attack_is_counted_with_and_without_certified_images(attacked, monkeypatch):
    standard = AutoAttack._set_version

    def cut(self, version="standard"):
        standard(self, version)
        self.square.n_queries = self.fab.n_iter = self.apgd.n_iter = self.apgd_targeted.n_iter = 10

    monkeypatch.setattr(AutoAttack, "_set_version", cut)
    certified = []

    def noted(*args, **options):
        certified.append(options.get("certified"))
        return autoattack(*args, **options)

    monkeypatch.setattr("lbdn.attack.autoattack", noted)
    (row,) = attacked()
    assert row["same"]
    assert 0 < row["passes"] < row["separate_passes"]
    *separate, skipping = certified
    assert separate == [None, None]
    assert skipping.count_nonzero() > 0


@pytest.mark.parametrize("lost", [None, 0.01 / 255, 0.02 / 255])
def test_the_attacks_are_the_same_if_the_robust_images_of_every_radius_are(attacked, monkeypatch, lost):
    def stub(*_, eps, certified=None, **__):
        return [{"image": 7} | {f"robust@{r:.6g}": certified is None or r != lost for r in eps}]

    monkeypatch.setattr("lbdn.attack.autoattack", stub)
    (row,) = attacked()
    assert row["same"] == (lost is None)


def test_whole_pieces_of_work_are_measured():
    assert measure_toy(["plain"], epochs=1, device=CPU)[0]["seconds"] > 0
    (epoch,) = measure_epoch(["plain"], batch=2, batches=2, repetitions=1, device=CPU)
    assert 0 < epoch["loader_share"] < 1
    rows = measure_certification(["plain", "sandwich"], images=3, batch=2, device=CPU)
    assert [row["family"] for row in rows] == ["sandwich"]


def test_every_section_has_a_table():
    spread = [0.1, 0.09, 0.11]
    samples = {
        "layers": {
            **{name: spread for name in ("step", "step_ratio", "evaluation", "evaluation_ratio")},
            **{"family": "sandwich", "size": "small", "parameters": 1000, "memory": None, "memory_ratio": None},
            "shares": dict.fromkeys(KINDS, 0.25),
        },
        "toy": {"family": "sandwich", "epochs": 200, "seconds": 5.0},
        "epoch": {"family": "sandwich", "epoch": 70.0, "loader_share": 0.04},
        "certification": {"family": "sandwich", "images": 1000, "predict": 1.0, "certify": 0.01},
        "search": {"run": "a/b", "paper": 1.0, "found": 1.1, "upper": None, "paper_passes": 10, "passes": 2},
        "attack": {"run": "a/b", "same": True, "separate_passes": 10, "passes": 2},
        "peers": {
            **{"network": "8", "method": "lipsdp", "lower": 1.0, "bound": 2.0, "seconds": 0.1},
            **{"fell_back": False, "multipliers": True, "proved": 2.0},
        },
        "scale": {"family": "sandwich", "axis": "width", "value": 8, "seconds": 1.0, "memory": 2**20},
        "largest": {
            **{"family": "sll", "architecture": "deep", "size": "xlarge", "parameters": 10**9, "build": 9.0},
        },
    }
    assert set(samples) == set(SECTIONS)
    scale = [samples["scale"], samples["scale"] | {"value": 16, "seconds": 4.0}]
    page = markdown({"machine": MACHINE} | {name: [row] for name, row in samples.items()} | {"scale": scale})
    for line in page.splitlines():
        if line.startswith("| sandwich"):
            assert line.count("|") > 3
    assert page.count("\n## ") == len(SECTIONS)
    assert "| sandwich | width | 8 to 16 | 1 to 4 s | 2.00 |" in page


def test_the_command_writes_its_files_and_keeps_the_sections_that_it_does_not_measure_again(tmp_path):
    arguments = ["--family", "plain", "--batch", "2", "--repetitions", "1", "--device", "cpu", "--threads", "1"]
    arguments += ["--image", "8", "--size", "tiny", "--output", str(tmp_path), "--runs", str(tmp_path), "--limit", "0"]
    for section in ("layers", "scale"):
        result = CliRunner().invoke(main, [*arguments, "--section", section])
        assert result.exit_code == 0, result.output
    (written,) = tmp_path.glob("*.json")
    results = json.loads(written.read_text())
    assert list(results) == ["machine", "layers", "scale"]
    assert results["machine"]["threads"] == 1
    assert written.with_suffix(".md").read_text().startswith("# Cost on ")
    assert written.with_suffix(".svg").exists()
    for wrong, status, message in (
        (["--section", "search"], 0, "search is left out or incomplete: no trained networks in"),
        (["--section", "scale", "--batch", "3"], 1, "was measured under other conditions"),
        (["--section", "scale", "--family", "nope"], 1, "no 'nope' among the families"),
    ):
        result = CliRunner().invoke(main, [*arguments, *wrong])
        assert result.exit_code == status
        assert message in result.output
        assert json.loads(written.read_text()) == results
