import json
from pathlib import Path

import pytest

from lbdn.report import tables
from lbdn.report.results import Cell, budget, load_results, published
from tests.report.runs import EPS, result, trained_only


def test_certificates_can_be_read_for_the_attacked_images_alone():
    subject = result()
    assert subject.certified(0.1) == 0.5
    assert subject.on_attacked_images().certified(0.1) == pytest.approx(2 / 3)
    assert subject.on_attacked_images().certified(EPS) <= subject.robust(EPS)


def test_without_a_certify_stage_clean_accuracy_is_that_of_the_last_epoch():
    assert trained_only().clean() == result().clean() == 0.75
    assert trained_only().certified(0.1) is None


def test_rows_at_another_budget_are_marked_with_it():
    row = tables.classification_table([result(size="small")], [], published("cifar100-sizes")).iloc[0]
    assert row["budget"] == (
        "epochs 2 (paper 100), training samples 100 (paper 50000), test samples 4 (paper 10000), "
        "attacked images 3 (paper 10000), seeds 1 (paper 3)"
    )
    paper = {"settings": {"epochs": 2, "train": 100, "attacked": 3, "seeds": 1}}
    assert budget([result()], paper) == "the paper's settings"
    other = {"classes": 10, "temperature": 0.25, "margin": 0.5}
    trained = result()
    trained.description["training"]["loss"] = {"name": "cross-entropy", "temperature": 1.0}
    assert budget([trained], {"settings": other}) == "classes 100 (paper 10), temperature 1.0 (paper 0.25)"
    assert "budget" not in tables.classification_table([result()], [], {})


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({}, "the paper's settings"),
        (
            {"normalization": [[0.5], [0.2561]]},
            "the paper's settings",
        ),  # of other images than the paper's: 3.905, not 3.900
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
