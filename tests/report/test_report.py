import json
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lbdn.networks import build_network
from lbdn.params import load_params
from lbdn.report import figures, look, tables
from lbdn.report.page import render_page
from lbdn.report.results import Cell, Grid, Result, budget, load_results, published, published_row
from lbdn.report.sections import classification_section, make_section, write_section

EPS = 72 / 255


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def result(
    family: str = "sandwich", gamma: float | None = 1.0, seed: int = 1, tightness: float = 0.9, size: str = "tiny"
) -> Result:
    rows = pd.DataFrame({"image": [0, 1, 2, 3], "label": [0, 1, 1, 0], "prediction": [0, 1, 1, 1]})
    return Result(
        description={
            "family": family,
            "gamma": gamma,
            "seed": seed,
            "size": size,
            "dataset": "digits",
            "samples": {"train": 100, "test": 4},
            "parameters": 1234,
            "network": {"architecture": "kwlarge", "outputs": 100, "normalization": [[0.5] * 3, [0.3, 0.2564, 0.3]]},
            "training": {"epochs": 2, "loss": {"name": "cross-entropy"}, "augmentation": "crop-flip-jitter"},
        },
        history=pd.DataFrame(
            {"epoch": [1, 2], "train_loss": [2.0, 1.0], "test_loss": [2.0, 1.5], "test_accuracy": [0.5, 0.75]}
        ),
        lipschitz={
            "lower": 0.9,
            "upper": None if gamma is None else 1.0,
            "tightness": None if gamma is None else tightness,
            "spectral_product": None,
        },
        certify=rows.assign(radius=[float("nan")] * 4 if gamma is None else [0.5, 0.2, 0.0, 0.0]),
        attack=rows.head(3).assign(**{f"robust@{EPS:.6g}": [1, 1, 0]}),
        provenance={},
    )


def trained_only(family: str = "sandwich", **place) -> Result:
    complete = result(family, **place)
    return Result(complete.description, complete.history, None, None, None, {})


def test_accuracies_come_from_the_rows():
    row = tables.classification_table([result()], [36, 72], {}).iloc[0]
    assert row["clean"] == 75.0
    assert row["AutoAttack 72/255"] == 66.7
    assert row["certified 36/255"] == 50.0
    assert row["certified 72/255"] == 25.0


def test_the_table_of_certificates_shows_what_pairs_gain_and_what_rounding_costs():
    subject = result()
    assert subject.certify is not None
    assert len(tables.certificates_table([subject], [36])["36/255 in floats"].dropna()) == 0
    columns = {"radius_by_gamma": [0.5, 0.1, 0.0, 0.0], "radius_sound": [0.28, 0.2, 0.0, 0.0]}
    full = replace(subject, certify=subject.certify.assign(**columns))
    row = tables.certificates_table([full, result("plain", gamma=None)], [36, 72]).to_dict("records")
    assert row == [
        {
            "network": "Sandwich",
            **{"36/255 by γ": 25.0, "36/255 by pairs": 50.0, "36/255 in floats": 50.0},
            **{"72/255 by γ": 25.0, "72/255 by pairs": 25.0, "72/255 in floats": 0.0},
        }
    ]
    assert "certificates" in classification_section("t", [full], [36], {}).tables
    assert "certificates" not in classification_section("t", [subject], [36], {}).tables


def test_certificates_can_be_read_for_the_attacked_images_alone():
    subject = result()
    assert subject.certified(0.1) == 0.5
    assert subject.on_attacked_images().certified(0.1) == pytest.approx(2 / 3)
    assert subject.on_attacked_images().certified(EPS) <= subject.robust(EPS)


def test_without_a_certify_stage_clean_accuracy_is_that_of_the_last_epoch():
    assert trained_only().clean() == result().clean() == 0.75
    assert trained_only().certified(0.1) is None


def test_a_family_without_a_bound_is_certified_nowhere_and_has_no_upper_bound():
    unbounded = [result("plain", gamma=None)]
    row = tables.classification_table(unbounded, [36], {}).iloc[0]
    assert row["γ"] == "none"
    assert row["certified 36/255"] is None
    assert tables.bounds_table(unbounded).iloc[0]["upper bound (guaranteed)"] is None


def test_bounds_have_four_digits_however_small():
    small = replace(result("aol"), lipschitz=result().lipschitz | {"lower": 4.7660906e-6, "upper": 3.71753})
    row = tables.bounds_table([small]).iloc[0]
    assert (row["lower bound (found)"], row["upper bound (guaranteed)"]) == (4.766e-6, 3.718)
    with look.look():
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


def test_times_by_epoch_are_compared_where_epochs_are_as_long():
    run = result(gamma=2.0, size="small")
    run.description["samples"]["train"] = 50000
    run.provenance["epoch"] = {"device": "some GPU", "torch": "2.14", "seconds": 12.34}
    row = tables.classification_table([run], [], published("cifar100-sizes")).iloc[0]
    assert (row["seconds an epoch"], row["seconds an epoch paper"]) == (12.3, 19)
    section = classification_section("", [run], [], published("cifar100-sizes"))
    assert "Trained on: some GPU, torch 2.14" in section.tables["accuracy"][1]


def test_rows_at_another_budget_are_marked_with_it():
    row = tables.classification_table([result(size="small")], [], published("cifar100-sizes")).iloc[0]
    assert row["budget"] == (
        "epochs 2 (paper 100), training samples 100 (paper 50000), test samples 4 (paper 10000), "
        "attacked images 3 (paper 10000), seeds 1 (paper 3)"
    )
    paper = {"settings": {"epochs": 2, "train": 100, "attacked": 3, "seeds": 1}}
    assert budget([result()], paper) == "as in the paper"
    other = {"classes": 10, "temperature": 0.25, "margin": 0.5}
    trained = result()
    trained.description["training"]["loss"] = {"name": "cross-entropy", "temperature": 1.0}
    assert budget([trained], {"settings": other}) == "classes 100 (paper 10), temperature 1.0 (paper 0.25)"
    assert "budget" not in tables.classification_table([result()], [], {})


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({}, "as in the paper"),
        ({"normalization": [[0.5], [0.2561]]}, "as in the paper"),  # of other images than the paper's: 3.905, not 3.900
        ({"normalization": [[0.5], [0.25]]}, "Lipschitz constant of the normalisation 4.0 (paper 3.9)"),
        ({"normalization": None}, "Lipschitz constant of the normalisation 1.0 (paper 3.9)"),
        ({"last_layer_normalization": True}, "last-layer normalisation True (paper False)"),
    ],
)
def test_what_is_done_to_the_input_and_the_last_layer_is_compared_with_the_paper(changes, mark):
    settings = published("cifar100-sizes")["settings"]
    paper = {"settings": {key: settings[key] for key in ("input_gain", "last_layer_normalization", "classes")}}
    run = result()
    run.description["network"] |= changes
    assert budget([run], paper) == mark


@pytest.mark.parametrize(("experiment", "std"), [("cifar10", 0.2435), ("cifar100", 0.2564), ("cifar100-certified", 1)])
def test_the_published_gain_of_the_normalisation_is_that_of_the_data_sets_statistics(experiment, std):
    assert published(experiment)["settings"]["input_gain"] == pytest.approx(1 / std, abs=0.005)


@pytest.mark.parametrize("experiment", ["tiny-imagenet-sizes", "tiny-imagenet-gammas"])
def test_tiny_imagenet_is_normalised_with_the_published_gain(experiment):
    normalize = load_params(Path(__file__).parents[2] / "params.yaml").experiment(experiment).training.normalize
    assert published(experiment)["settings"]["input_gain"] == pytest.approx(1 / min(normalize.std), abs=0.005)


FULL = {  # training images, test images, classes, standard deviations of the pixels
    "mnist": (60000, 10000, 10, [0.3081]),
    "cifar10": (50000, 10000, 10, [0.2470, 0.2435, 0.2616]),
    "cifar100": (50000, 10000, 100, [0.2673, 0.2564, 0.2762]),
    "tiny-imagenet": (100000, 10000, 200, [0.2770, 0.2691, 0.2821]),
}


@pytest.mark.parametrize(
    "name",
    [
        *("mnist", "cifar10", "cifar10-curves"),
        *(f"cifar100{end}" for end in ("", "-curves", "-sizes", "-gammas", "-certified")),
        *(f"tiny-imagenet{end}" for end in ("-sizes", "-gammas", "-certified")),
    ],
)
def test_the_papers_experiments_have_the_papers_settings(name):
    experiment = load_params(Path(__file__).parents[2] / "params.yaml").experiment(name)
    train, test, classes, std = FULL[experiment.dataset]
    training = experiment.training
    run = result("sandwich", gamma=experiment.gammas[0], size=experiment.sizes[0])
    normalization = training.normalize and [[0.5], std if training.normalize is True else training.normalize.std]
    run.description.update(
        samples={"train": train, "test": test},
        training=training.model_dump(exclude={"normalize", "last_layer_normalization"}),
        network={
            "architecture": experiment.architecture,
            "outputs": classes,
            "normalization": normalization or None,
            "last_layer_normalization": training.last_layer_normalization,
        },
    )
    attack = experiment.attack and pd.DataFrame(index=range(test if experiment.attack.images == "all" else 1000))
    runs = [replace(run, attack=attack)] * len(experiment.seeds)
    assert budget(runs, published(name)) == "as in the paper"


def test_values_of_other_networks_than_the_papers_are_not_drawn():
    with look.look():
        drawn = [
            figures.accuracy_by_size([result("mine", size="small", gamma=2.0)], published(experiment)).legends
            for experiment in ("cifar100-sizes", "tiny-imagenet-sizes")
        ]
    labels = [[text.get_text() for text in legends[0].get_texts()] for legends in drawn]
    assert labels == [["mine", "published"], ["mine"]]


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


def test_the_best_gamma_is_the_one_of_the_highest_robust_accuracy():
    better = result(gamma=4.0)
    better.attack[f"robust@{EPS:.6g}"] = 1
    runs, row = [result(gamma=2.0), better, result("plain", gamma=None)], {"network": "Sandwich", "size": "tiny"}
    row |= {"γ = 2": 66.7, "γ = 4": 100.0, "best γ": "4"}
    assert tables.gammas_table(runs, EPS, {}).to_dict("records") == [row]
    assert tables.gammas_table(runs, EPS, published("cifar100-gammas")).to_dict("records") == [row]  # at 36/255 alone
    chosen = tables.gammas_table(runs, EPS, {"best_gamma": {72: 2}})
    assert chosen.to_dict("records") == [row | {"best γ paper": 2}]


def test_the_papers_table_of_tightness_is_whole():
    percent = published("toy")["tightness"]["percent"]
    assert {family: sorted(row) for family, row in percent.items()} == {key: [1, 5, 10] for key in percent}
    assert set(percent) == {"aol", "orthogonal", "sll", "sandwich"}
    layers = published("toy")["layers"]
    assert all(len(row) == 10 for key in ("tightness_percent", "norms") for row in layers[key].values())


@pytest.mark.parametrize(
    ("experiment", "architecture", "shape", "outputs", "count"),
    [
        ("cifar100-sizes", "kwlarge", (3, 32, 32), 100, 12),
        ("tiny-imagenet-sizes", "kwlarge", (3, 64, 64), 200, 8),
        ("cifar100-certified", "deep", (3, 32, 32), 100, 3),
        ("tiny-imagenet-certified", "deep", (3, 64, 64), 200, 3),
    ],
)
def test_every_published_network_has_about_the_parameters_that_the_table_prints(
    experiment, architecture, shape, outputs, count
):
    import torch

    networks = published(experiment)["networks"]
    assert len(networks) == count
    for row in networks:
        with torch.device("meta"):
            network = build_network(architecture, row["family"], size=row["size"], input_shape=shape, outputs=outputs)
        counted = sum(p.numel() for p in network.parameters())
        printed = float(row["parameters"][:-1]) * {"M": 1e6, "B": 1e9}[row["parameters"][-1]]
        assert counted == pytest.approx(printed, rel=0.06)
        robust = list((row.get("robust") or row["certified"]).values())
        assert row["clean"] > robust[0] > robust[1] > robust[2]


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


def test_a_budget_that_all_rows_share_is_a_note(tmp_path):
    table = pd.DataFrame({"network": ["a", "b"], "budget": ["epochs 2", "epochs 2"]})
    tables.write_table(table, tmp_path / "shared")
    assert (tmp_path / "shared.tex").read_text().startswith("% budget of all rows: epochs 2\n")
    assert (tmp_path / "shared.csv").read_text() == table.to_csv(index=False)
    tables.write_table(table.assign(budget=["epochs 2", "epochs 3"]), tmp_path / "own")
    assert "& epochs 3" in (tmp_path / "own.tex").read_text()
    with look.look():
        section = make_section("mine", Grid([], [36], "cifar100-sizes"), [result(size="small", gamma=2.0)])
        write_section(section, "mine", tmp_path)
    page = render_page(tmp_path, ["mine"])
    assert "Budget of all rows: epochs 2 (paper 100)" in page
    assert "<th>budget" not in page


PLAIN = result("plain", gamma=None)
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
    with look.look():
        section = make_section("mine", grid, results)
        write_section(section, "mine", tmp_path)
    assert expected <= set(section.figures)
    assert ("accuracy-by-size" in section.figures) == ("sizes" in kind)
    for name in section.figures:
        assert (tmp_path / f"figures/mine/{name}.png").stat().st_size > 1000
        assert "<svg" in (tmp_path / f"figures/mine/{name}.svg").read_text()
    assert json.loads((tmp_path / "metrics/mine.json").read_text()) == {"mine": section.metrics}


def drawn(figure, axis: int = 0) -> list[tuple[list[float], list[float]]]:
    return [tuple(line.get_xydata().T.tolist()) for line in figure.axes[axis].lines]


@look.look()
def test_certified_and_robust_accuracy_by_radius_are_of_the_attacked_images():
    (attacked, robust), (radii, certified) = drawn(figures.accuracy_by_radius([result()]))
    assert attacked == pytest.approx([0, EPS], abs=1e-6)
    assert robust == pytest.approx([100, 200 / 3])
    assert np.interp([0.1, 0.25], radii, certified) == pytest.approx([200 / 3, 100 / 3])


@look.look()
def test_learning_curves_show_the_error():
    assert drawn(figures.learning_curves([result()])) == [([1, 2], [50, 25])]


@look.look()
def test_a_panel_by_lipschitz_bound_shows_the_accuracy_at_its_own_radius():
    figure = figures.accuracy_by_lipschitz([result()])
    for axis, accuracy in enumerate([100, 200 / 3]):
        assert drawn(figure, axis)[-1] == ([0.9], pytest.approx([accuracy]))


@look.look()
def test_accuracy_by_gamma_is_that_under_attack():
    better = result(gamma=4.0)
    better.attack[f"robust@{EPS:.6g}"] = 1
    (_, unbounded), by_gamma = drawn(figures.accuracy_by_gamma([PLAIN, better, result(gamma=2.0)], EPS))
    assert unbounded == pytest.approx([200 / 3] * 2)
    assert by_gamma == ([2, 4], pytest.approx([200 / 3, 100]))


@look.look()
def test_the_best_fit_to_the_square_wave_has_the_slope_of_the_largest_bound_at_each_jump():
    curve = {"x": [-2.0, 2.0], "y": [1.0, 0.5]}
    fits = [replace(run, lipschitz=run.lipschitz | {"curve": curve}) for run in (result(), result(gamma=5.0))]
    figure = figures.square_wave(fits)
    assert len(figure.axes) == 1
    *wave, (x, best), network = drawn(figure)
    assert wave == [([start, start + 1], [level] * 2) for start, level in ((-2, 1), (-1, 0), (0, 1), (1, 0))]
    assert np.gradient(best, x)[np.searchsorted(x, [-1, 0, 1])] == pytest.approx([-5, 5, -5])
    assert np.interp([-1.5, -0.5, 0.5, 1.5], x, best) == pytest.approx([1, 0, 1, 0])
    assert network == (curve["x"], curve["y"])


def test_more_panels_than_anyone_reads_are_not_drawn():
    many = [trained_only("aol", gamma=g, size=s) for g in (1.0, 2.0, 4.0, 8.0) for s in ("small", "large")]
    with look.look():
        assert set(make_section("mine", Grid([], [], "none"), many).figures) == set()


def test_networks_without_a_bound_stand_in_every_panel_of_their_size():
    shown = look.panels([PLAIN, result(gamma=1.0), result(gamma=2.0)])
    assert {title: [run.family for run in runs] for title, runs in shown.items()} == {
        "γ = 1": ["plain", "sandwich"],
        "γ = 2": ["plain", "sandwich"],
    }
    assert list(look.panels([PLAIN])) == [""]


def test_an_experiment_that_is_off_has_an_empty_section(tmp_path):
    write_section(make_section("cifar10", Grid([], [36], "cifar10"), []), "cifar10", tmp_path)
    assert (tmp_path / "figures/cifar10").is_dir()
    assert json.loads((tmp_path / "tables/cifar10/section.json").read_text())["tables"] == {}


def test_an_unconstrained_network_has_no_tightness_and_is_left_out_of_the_fits():
    def fit(family: str, gamma: float | None) -> Result:
        run = result(family, gamma=gamma)
        history = run.history.drop(columns="test_accuracy")
        bounds = run.lipschitz | {"curve": {"x": [-2.0, 2.0], "y": [1.0, 0.0]}}
        return Result(run.description, history, bounds, None, None, {})

    with look.look():
        section = make_section("toy", Grid([], [], "toy"), [fit("plain", None), fit("sandwich", 1.0)])
    assert list(section.tables["tightness"][0]["family"]) == ["Sandwich"]
    assert set(section.metrics) == {"sandwich"}
    assert make_section("toy", Grid([], [], "toy"), [fit("plain", None)]).tables == {}


def test_the_headline_metrics_are_a_handful_a_network():
    with look.look():
        metrics = classification_section("", [result(), PLAIN], [36, 72], {}).metrics
        several = classification_section("", [result(gamma=1.0), result(gamma=2.5)], [72], {}).metrics
    assert metrics == {
        "sandwich": {"clean": 0.75, "robust_72": 0.6667, "certified_72": 0.25, "tightness": 0.9},
        "plain": {"clean": 0.75, "robust_72": 0.6667},
    }
    assert set(several) == {"sandwich-gamma1", "sandwich-gamma2.5"}


def write_run(folder: Path, family: str, seed: int) -> None:
    folder.mkdir(parents=True)
    content = result(family, seed=seed)
    (folder / "run.json").write_text(json.dumps(content.description))
    (folder / "lipschitz.json").write_text(json.dumps(content.lipschitz))
    content.history.to_csv(folder / "history.csv", index=False)


def write_grid(folder: Path, *families: str) -> None:
    cells = [[family, "tiny", 1.0, 1] for family in families]
    (folder / "grid.json").write_text(json.dumps({"cells": cells, "certify_radii_255": [36], "published": "x"}))


def test_only_the_cells_of_the_grid_are_read_and_missing_ones_are_named(tmp_path):
    write_run(tmp_path / "a", "aol", 1)
    write_run(tmp_path / "b", "sandwich", 1)
    write_run(tmp_path / "old", "sandwich", 99)
    write_grid(tmp_path, "sandwich", "aol")
    grid, results = load_results(tmp_path)
    assert (
        grid.cells == [run.cell for run in results] == [Cell("sandwich", "tiny", 1.0, 1), Cell("aol", "tiny", 1.0, 1)]
    )
    assert results[0].attack is None
    write_grid(tmp_path, "sll")
    with pytest.raises(FileNotFoundError, match=r"family='sll', size='tiny', gamma=1\.0, seed=1"):
        load_results(tmp_path)


def test_a_folder_without_a_grid_says_what_to_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no grid\.json in .*dvc repro"):
        load_results(tmp_path)


def test_a_single_network_has_no_figure_that_compares():
    with look.look():
        alone = classification_section("", [result()], [36], {}).figures
        beside = classification_section("", [result(), PLAIN], [36], {}).figures
    assert beside.keys() - alone.keys() == {"accuracy-by-lipschitz"}


def test_a_model_that_was_trained_elsewhere_has_no_learning_curve_and_no_budget():
    trained = result()
    description = {k: v for k, v in trained.description.items() if k != "training"}
    description |= {"model": {"path": "data/raw/model.bson"}, "samples": {"test": 4}}
    subject = replace(trained, description=description, history=pd.DataFrame({"epoch": [0], "test_accuracy": [0.75]}))
    with look.look():
        section = classification_section("", [subject], [36], {"settings": {"loss": "mse", "test": 4}})
    assert "trained elsewhere, from the file model.bson" in section.lead
    assert "learning-curves" not in {**section.figures, **section.data}
    assert section.tables["accuracy"][0]["clean"].tolist() == [75.0]
    assert "budget" in tables.classification_table([subject], [36], published("cifar100-sizes"))
    assert budget([subject], {"settings": {"loss": "mse", "test": 4}}) == "as in the paper"


def test_a_lower_bound_far_beyond_all_upper_ones_stands_at_the_edge_with_its_number():
    far = result("plain", None)
    far = replace(far, lipschitz=far.lipschitz | {"lower": 4892.2})
    with look.look():
        figure = figures.accuracy_by_lipschitz([result(), far])
    for axis in figure.axes:
        assert [text.get_text() for text in axis.texts] == ["4,892 →"]
        assert axis.get_xlim()[1] < 4
    with look.look():
        captions = [classification_section("", [result(), other], [], {}).figures for other in (far, PLAIN)]
    assert ["arrow" in figures["accuracy-by-lipschitz"][1] for figures in captions] == [True, False]


def test_percentages_of_a_column_have_equally_many_decimals(tmp_path):
    table = pd.DataFrame({"a": [45.0, 47.71, None], "b": [1.827, 258.28, 2.0], "c": [1, 2, 3]})
    tables.write_table(table, tmp_path / "table")
    assert (tmp_path / "table.csv").read_text() == "a,b,c\n45.00,1.827,1\n47.71,258.28,2\n,2.0,3\n"
