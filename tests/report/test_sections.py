import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from lbdn.report import tables
from lbdn.report.page import render_page
from lbdn.report.results import Grid, Result, budget, published
from lbdn.report.sections import classification_section, make_section, write_section
from tests.report.runs import PLAIN, fit, result, trained_only

KINDS = {
    "one network a family": ([result(), result("mine"), PLAIN], {"accuracy-by-radius", "accuracy-by-lipschitz"}),
    "several gammas": (
        [PLAIN, *(result(f, gamma=g) for f in ("aol", "mine") for g in (0.5, 2.0))],
        {"accuracy-by-gamma", "accuracy-by-lipschitz", "accuracy-by-radius"},
    ),
    "several sizes and seeds": (
        [trained_only(f, size=s, seed=n) for f in ("sll", "sandwich") for s in ("small", "large") for n in (1, 2)],
        {"accuracy-by-size", "learning-curves"},
    ),
    "curves alone": ([trained_only(f, seed=n) for f in ("plain", "aol") for n in range(5)], {"learning-curves"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_section_has_the_figures_that_its_results_allow(tmp_path, kind):
    results, expected = KINDS[kind]
    grid = Grid([run.cell for run in results], [36, 72], "cifar100-gammas" if "gammas" in kind else "none")
    section = make_section("mine", grid, results)
    write_section(section, "mine", tmp_path)
    assert expected <= set(section.figures)
    assert ("accuracy-by-size" in section.figures) == ("sizes" in kind)
    for name in section.figures:
        assert (tmp_path / f"figures/mine/{name}.png").stat().st_size > 1000
        assert "<svg" in (tmp_path / f"figures/mine/{name}.svg").read_text()
    assert json.loads((tmp_path / "metrics/mine.json").read_text()) == {"mine": section.metrics}


def test_a_budget_that_all_rows_share_is_a_note(tmp_path):
    table = pd.DataFrame({"network": ["a", "b"], "budget": ["epochs 2", "epochs 2"]})
    tables.write_table(table, tmp_path / "shared")
    note = "\\par\\smallskip{\\footnotesize Budget of all rows: epochs 2.\\par}\n"
    assert (tmp_path / "shared.tex").read_text().endswith(f"\\end{{tabular}}\n{note}")
    assert (tmp_path / "shared.csv").read_text() == table.to_csv(index=False)
    tables.write_table(table.assign(budget=["epochs 2", "epochs 3"]), tmp_path / "own")
    assert "& epochs 3" in (tmp_path / "own.tex").read_text()
    section = make_section("mine", Grid([], [36], "cifar100-sizes"), [result(size="small", gamma=2.0)])
    write_section(section, "mine", tmp_path)
    page = render_page(tmp_path, ["mine"])
    assert "Budget of all rows: epochs 2 (paper 100)" in page
    assert "<th>budget" not in page


def test_more_panels_than_anyone_reads_are_not_drawn():
    many = [trained_only("aol", gamma=g, size=s) for g in (1.0, 2.0, 4.0, 8.0) for s in ("small", "large")]
    assert set(make_section("mine", Grid([], [], "none"), many).figures) == set()


def test_an_experiment_that_is_off_has_an_empty_section(tmp_path):
    write_section(make_section("cifar10", Grid([], [36], "cifar10"), []), "cifar10", tmp_path)
    assert (tmp_path / "figures/cifar10").is_dir()
    assert json.loads((tmp_path / "tables/cifar10/section.json").read_text())["tables"] == {}


def test_an_unconstrained_network_has_no_tightness_and_is_left_out_of_the_fits():
    section = make_section("toy", Grid([], [], "toy"), [fit("plain", None), fit("sandwich", 1.0)])
    assert list(section.tables["tightness"][0]["family"]) == ["Sandwich"]
    assert set(section.metrics) == {"sandwich"}
    assert make_section("toy", Grid([], [], "toy"), [fit("plain", None)]).tables == {}


def test_the_headline_metrics_are_a_handful_a_network():
    metrics = classification_section("", [result(), PLAIN], [36, 72], {}).metrics
    several = classification_section("", [result(gamma=1.0), result(gamma=2.5)], [72], {}).metrics
    assert metrics == {
        "sandwich": {"clean": 0.75, "robust_72": 0.6667, "certified_72": 0.25, "tightness": 0.9},
        "plain": {"clean": 0.75, "robust_72": 0.6667},
    }
    assert set(several) == {"sandwich-gamma1", "sandwich-gamma2.5"}


def test_figures_and_tables_of_other_settings_than_the_papers_say_so():
    run, mark = result(size="small", gamma=2.0), "Not at the paper's settings"
    longer = result("aol", gamma=2.0)
    longer.description["training"] = longer.description["training"] | {"epochs": 3}
    some = classification_section("", [run, longer], [36], {"settings": {"epochs": 2}}).figures
    assert all("Not all at the paper's settings" in caption for _, caption in some.values())
    for settings, marked in (({"epochs": 3}, True), ({"epochs": 2}, False), ({}, False)):
        section = classification_section("", [run, PLAIN], [36], {"settings": settings} if settings else {})
        assert {mark in caption for _, caption in section.figures.values()} == {marked}
        assert {"budget" in table for table, _ in section.tables.values()} == {bool(settings)}


def test_the_lead_names_the_network_that_certifies_most_on_average_over_seeds():
    def certifying(family: str, seed: int, share: float) -> Result:
        run = result(family, seed=seed)
        rows = pd.DataFrame({"label": 0, "prediction": 0, "radius": [1.0] * round(1000 * share)})
        none = pd.DataFrame({"label": 0, "prediction": 0, "radius": [0.0] * (1000 - len(rows))})
        return replace(run, certify=pd.concat([rows, none]), attack=None)

    steady, lucky = ("aol", 0.4, 0.4), ("sll", 0.6, 0.1)
    runs = [certifying(family, seed, share) for family, *shares in (steady, lucky) for seed, share in enumerate(shares)]
    lead = classification_section("", runs, [72], {}).lead
    assert "AOL certifies most at radius 72/255: 40.0 % of the test images, of 100.0 %" in lead
    assert lead.endswith("classifies correctly, means over 2 seeds.")
    next_to_nothing = classification_section("", [certifying("aol", 1, 0.009)], [72], {}).lead
    assert "certifies most" not in next_to_nothing


def test_the_tightest_family_is_that_of_the_highest_mean_over_seeds():
    shares = (("aol", 0.99, 0.5), ("sandwich", 0.8, 0.8))
    runs = [fit(name, seed=seed, tightness=share) for name, *both in shares for seed, share in enumerate(both)]
    section = make_section("mine", Grid([], [], "none"), runs)
    assert "Sandwich comes closest: 80.0 % at bound 1, means over 2 seeds." in section.lead
    assert section.metrics["aol"] == {"tightness_gamma1": 0.745}


def test_networks_without_a_bound_alone_are_said_to_have_none():
    assert "bound" not in classification_section("", [PLAIN], [36], {}).lead


def test_the_product_of_norms_stands_beside_the_printed_one_and_that_of_the_papers_formula():
    lead = make_section("toy", Grid([], [], "toy"), [fit("aol", product=130.0), fit("sandwich", product=130.0)]).lead
    assert lead.endswith("is: AOL 130, Sandwich 130 (paper 65.9, by its formula 131.9).")
    printed, by_formula = (published("toy")["layers"][key]["sandwich"] for key in ("norms", "network_norm_by_formula"))
    assert math.prod(printed) * math.sqrt(2) ** 2 == pytest.approx(by_formula, abs=0.05)


def test_a_single_network_has_no_figure_that_compares():
    alone = classification_section("", [result()], [36], {}).figures
    beside = classification_section("", [result(), PLAIN], [36], {}).figures
    assert beside.keys() - alone.keys() == {"accuracy-by-lipschitz"}


def test_a_model_that_was_trained_elsewhere_has_no_learning_curve_and_no_budget():
    trained = result()
    description = {k: v for k, v in trained.description.items() if k != "training"}
    description |= {"model": {"path": "data/raw/model.bson"}, "samples": {"test": 4}}
    subject = replace(trained, description=description, history=pd.DataFrame({"epoch": [0], "test_accuracy": [0.75]}))
    section = classification_section("", [subject], [36], {"settings": {"loss": "mse", "test": 4}})
    assert "trained elsewhere, from the file model.bson" in section.lead
    assert "learning-curves" not in {**section.figures, **section.data}
    assert section.tables["accuracy"][0]["clean"].tolist() == [75.0]
    assert "budget" in tables.classification_table([subject], [36], published("cifar100-sizes"))
    assert budget([subject], {"settings": {"loss": "mse", "test": 4}}) == "the paper's settings"
