from dataclasses import replace

import pandas as pd
import pytest

from lbdn.report import figures, tables
from lbdn.report.results import published, published_row
from lbdn.report.sections import classification_section
from tests.report.runs import EPS, result


def test_accuracies_come_from_the_rows():
    row = tables.classification_table([result()], [36, 72], {}).iloc[0]
    assert row["clean"] == 75.0
    assert row["AutoAttack 72/255"] == 66.7
    assert row["certified 36/255"] == 50.0
    assert row["certified 72/255"] == 25.0


def test_the_table_of_certificates_shows_what_pairs_gain_and_what_rounding_costs():
    subject = result()
    assert subject.certify is not None
    assert len(tables.certificates_table([subject], [36], {})["36/255 in floats"].dropna()) == 0
    columns = {"radius_by_gamma": [0.5, 0.1, 0.0, 0.0], "radius_sound": [0.28, 0.2, 0.0, 0.0]}
    full = replace(subject, certify=subject.certify.assign(**columns))
    row = tables.certificates_table([full, result("plain", gamma=None)], [36, 72], {}).to_dict("records")
    assert row == [
        {
            "network": "Sandwich",
            **{"36/255 by γ": 25.0, "36/255 by pairs": 50.0, "36/255 in floats": 50.0},
            **{"72/255 by γ": 25.0, "72/255 by pairs": 25.0, "72/255 in floats": 0.0},
        }
    ]
    assert "certificates" in classification_section("t", [full], [36], {}).tables
    assert "certificates" not in classification_section("t", [subject], [36], {}).tables


def test_a_family_without_a_bound_is_certified_nowhere_and_has_no_upper_bound():
    unbounded = [result("plain", gamma=None)]
    row = tables.classification_table(unbounded, [36], {}).iloc[0]
    assert row["γ"] == "none"
    assert row["certified 36/255"] is None
    assert tables.bounds_table(unbounded, {}).iloc[0]["upper bound (guaranteed)"] is None


def test_bounds_have_four_digits_however_small():
    small = replace(result("aol"), lipschitz=result().lipschitz | {"lower": 4.7660906e-6, "upper": 3.71753})
    row = tables.bounds_table([small], {}).iloc[0]
    assert (row["lower bound (found)"], row["upper bound (guaranteed)"]) == (4.766e-6, 3.718)
    (axis,) = figures.tightness([small]).axes
    assert "4.77e-06 of 3.72: 0.0 %" in [text.get_text() for text in axis.texts]


def test_tables_average_over_seeds_and_count_them():
    both = [result(seed=1, tightness=0.8), result(seed=2, tightness=0.9)]
    row = tables.tightness_table(both, published("toy")).iloc[0]
    assert row["γ = 1"] == 85.0
    assert row["γ = 1 ±"] == pytest.approx(7.07)
    assert row["γ = 1 paper"] == 99.9
    assert row["γ = 1 Δ"] == -14.9
    assert row["seeds"] == 2


def test_one_seed_has_no_spread():
    assert not [name for name in tables.classification_table([result()], [36], {}) if name.endswith("±")]


def test_published_values_and_differences_stand_beside_measured_ones():
    paper = published("cifar100-sizes")
    table = tables.classification_table([result(gamma=2.0, size="small"), result("mine", gamma=2.0)], [], paper)
    row = table.iloc[0]
    assert (row["clean paper"], row["clean Δ"]) == (54.2, 20.8)
    assert (row["AutoAttack 72/255 paper"], row["AutoAttack 72/255 Δ"]) == (35.5, 31.2)
    assert row["parameters paper"] == "3M"
    assert "seconds an epoch paper" not in table  # of 50 000 images, not of 100
    assert pd.isna(table.iloc[1]["clean paper"])
    assert published_row(paper, result(gamma=4.0, size="small")) == {}
    for other in ({"outputs": 10}, {"architecture": "deep"}):
        elsewhere = result(gamma=2.0, size="small")
        elsewhere.description["network"] |= other
        assert published_row(paper, elsewhere) == {}


def test_values_that_the_paper_takes_from_another_one_are_not_compared_as_its_own():
    paper = published("cifar100-certified")
    networks = [result(family, size="small") for family in ("sll", "sandwich")]
    for run in networks:
        run.description["network"]["architecture"] = "deep"
    marks = tables.classification_table(networks, [36], paper)["budget"].tolist()
    assert marks[0].startswith("epochs 2 (paper 400)")
    assert marks[0].endswith("published values from Araujo et al. (2023), at its own settings")
    assert "Araujo" not in marks[1]
    assert marks[1].startswith("epochs 2 (paper 400)")


def test_a_family_that_the_paper_lacks_has_no_published_value():
    row = tables.tightness_table([result("mine")], published("toy")).iloc[0]
    assert row["family"] == "mine"
    assert "γ = 1 paper" not in row


def test_differences_are_those_of_the_printed_values():
    right = pd.DataFrame({"label": [0] * 2000, "prediction": [0] * 353 + [1] * 1647})  # 17.65 %
    run = replace(result("sll", gamma=2.0, size="small"), certify=right, attack=None)
    row = tables.classification_table([run], [], published("cifar100-sizes")).iloc[0]
    assert (row["clean"], row["clean paper"], row["clean Δ"]) == (17.6, 52.9, -35.3)


@pytest.mark.parametrize(
    "table",
    [
        lambda runs, paper: tables.classification_table(runs, [36], paper),
        tables.bounds_table,
        lambda runs, paper: tables.certificates_table(runs, [36], paper),
        lambda runs, paper: tables.gammas_table(runs, EPS, paper),
        tables.tightness_table,
        tables.layers_table,
    ],
)
def test_every_table_of_runs_says_at_which_budget_they_were_made(table):
    bounds = {"layers": {"tightness": [0.9] * 10, "norms": [1.0] * 10}, "spectral_product": 1.0}
    run = replace(result(), lipschitz=result().lipschitz | bounds)
    paper = {"settings": {"epochs": 3, "train": 100}}
    assert set(table([run], paper)["budget"]) == {"epochs 2 (paper 3)"}
    assert set(table([run], {"settings": {"epochs": 2}})["budget"]) == {"the paper's settings"}
    assert "budget" not in table([run], {})


def test_the_table_of_layers_has_published_values_and_for_tightness_differences():
    norms, tightness = [1.0 + k / 10 for k in range(10)], [0.99, *[0.9] * 9]
    bounds = {"layers": {"tightness": tightness, "norms": norms}, "spectral_product": 67.0}
    runs = [replace(result(f), lipschitz=result(f).lipschitz | bounds) for f in ("sandwich", "mine")]
    table = tables.layers_table(runs, published("toy")).set_index(["family", "layer"])
    first = table.loc[("Sandwich", "input layer")]
    assert (first["tightness"], first["tightness paper"], first["tightness Δ"]) == (99.0, 99.99, -0.99)
    assert (first["norm"], first["norm paper"]) == (1.0, 0.9615)
    whole = table.loc[("Sandwich", "full network")]
    assert (whole["tightness"], whole["tightness paper"], whole["tightness Δ"]) == (90.0, 99.96, -9.96)
    assert (whole["norm"], whole["norm paper"]) == (67.0, 65.9)
    assert table.loc["mine"][["tightness paper", "norm paper"]].isna().all(axis=None)


def test_published_layers_are_of_networks_of_the_same_depth():
    deeper = {"layers": {"tightness": [0.9] * 12, "norms": [1.0] * 12}, "spectral_product": 1.0}
    table = tables.layers_table([replace(result(), lipschitz=result().lipschitz | deeper)], published("toy"))
    assert len(table) == 13
    assert not [column for column in table if column.endswith("paper")]


def test_the_best_gamma_is_the_one_of_the_highest_robust_accuracy():
    better = result(gamma=4.0)
    better.attack[f"robust@{EPS:.6g}"] = 1
    runs, row = [result(gamma=2.0), better, result("plain", gamma=None)], {"network": "Sandwich", "size": "tiny"}
    row |= {"γ = 2": 66.7, "γ = 4": 100.0, "best γ": "4"}
    assert tables.gammas_table(runs, EPS, {}).to_dict("records") == [row]
    of_the_paper = tables.gammas_table(runs, EPS, published("cifar100-gammas"))
    assert of_the_paper.drop(columns="budget").to_dict("records") == [row]  # it chose at 36/255
    chosen = tables.gammas_table(runs, EPS, {"best_gamma": {72: 2}})
    assert chosen.to_dict("records") == [row | {"best γ paper": 2}]


def test_tables_are_written_in_three_forms_without_nan(tmp_path):
    table = tables.classification_table([result(), result("plain", gamma=None)], [36], {})
    tables.write_table(table, tmp_path / "accuracy")
    for suffix, mark in ((".csv", "network,γ"), (".md", "| network"), (".tex", r"\toprule")):
        text = (tmp_path / f"accuracy{suffix}").read_text()
        assert mark in text
        assert "nan" not in text.lower()
    latex = (tmp_path / "accuracy.tex").read_text()
    assert r"$\gamma$" in latex
    assert " 66.7 " in latex


def test_percentages_of_a_column_have_equally_many_decimals(tmp_path):
    table = pd.DataFrame({"a": [45.0, 47.71, None], "b": [1.827, 258.28, 2.0], "c": [1, 2, 3]})
    tables.write_table(table, tmp_path / "table")
    assert (tmp_path / "table.csv").read_text() == "a,b,c\n45.00,1.827,1\n47.71,258.28,2\n,2.0,3\n"


def test_times_by_epoch_are_compared_where_epochs_are_as_long():
    run = result(gamma=2.0, size="small")
    run.description["samples"]["train"] = 50000
    run.provenance["epoch"] = {"device": "some GPU", "torch": "2.14", "seconds": 12.34}
    row = tables.classification_table([run], [], published("cifar100-sizes")).iloc[0]
    assert (row["seconds an epoch"], row["seconds an epoch paper"]) == (12.3, 19)
    section = classification_section("", [run], [], published("cifar100-sizes"))
    assert "Trained on: some GPU, torch 2.14" in section.tables["accuracy"][1]
    assert "seconds an epoch" not in tables.classification_table([run], [], published("cifar100"))  # nor in its figure
