import json
from pathlib import Path

import pandas as pd
import pytest

from lbdn.report import figures, tables
from lbdn.report.results import Result, differences, load_results, published
from lbdn.report.sections import classification_section, write_section

EPS = 72 / 255


def result(family: str = "sandwich", gamma: float = 1.0, seed: int = 1, tightness: float | None = 0.9) -> Result:
    bounded = tightness is not None
    rows = pd.DataFrame({"image": [0, 1, 2, 3], "label": [0, 1, 1, 0], "prediction": [0, 1, 1, 1]})
    return Result(
        description={
            "family": family,
            "gamma": gamma,
            "seed": seed,
            "size": "tiny",
            "dataset": "digits",
            "parameters": 1234,
            "network": {"architecture": "mlp"},
            "training": {"epochs": 2},
        },
        history=pd.DataFrame(
            {"epoch": [1, 2], "train_loss": [2.0, 1.0], "test_loss": [2.0, 1.5], "test_accuracy": [0.5, 0.75]}
        ),
        lipschitz={"lower": 0.9, "upper": 1.0 if bounded else None, "tightness": tightness, "spectral_product": None},
        certify=rows.assign(radius=[0.5, 0.2, 0.0, 0.0] if bounded else [float("nan")] * 4),
        attack=rows.head(3).assign(**{f"robust@{EPS:.6g}": [1, 1, 0]}),
    )


def test_accuracies_come_from_the_rows():
    row = tables.classification_table([result()], [36, 72]).iloc[0]
    assert row["clean"] == 75.0
    assert row["AutoAttack 72/255"] == 66.7
    assert row["certified 36/255"] == 50.0
    assert row["certified 72/255"] == 25.0


def test_certificates_can_be_read_for_the_attacked_images_alone():
    subject = result()
    assert subject.certified(0.1) == 0.5
    assert subject.on_attacked_images().certified(0.1) == pytest.approx(2 / 3)
    assert subject.on_attacked_images().certified(EPS) <= subject.robust(EPS)


def test_a_family_without_a_bound_is_certified_nowhere_and_has_no_upper_bound():
    unbounded = [result("plain", tightness=None)]
    row = tables.classification_table(unbounded, [36]).iloc[0]
    assert row["γ"] == "none"
    assert row["certified 36/255"] is None
    assert tables.bounds_table(unbounded).iloc[0]["upper bound (guaranteed)"] is None


def test_tables_average_over_seeds_and_count_them():
    both = [result(seed=1, tightness=0.8), result(seed=2, tightness=0.9)]
    row = tables.tightness_table(both, "as published").iloc[0]
    assert row["γ = 1"] == 85.0
    assert row["γ = 1 paper"] == 99.9
    assert row["γ = 1 Δ"] == -14.9
    assert row["seeds"] == 2


def test_a_family_that_the_paper_lacks_has_no_published_value():
    row = tables.tightness_table([result("mine")], "as published").iloc[0]
    assert row["family"] == "mine"
    assert row["γ = 1 paper"] is None


def test_the_papers_table_of_tightness_is_whole():
    percent = published("toy")["tightness"]["percent"]
    assert {family: sorted(row) for family, row in percent.items()} == {key: [1, 5, 10] for key in percent}
    assert set(percent) == {"aol", "orthogonal", "sll", "sandwich"}
    layers = published("toy")["layers"]
    assert all(len(row) == 10 for key in ("tightness_percent", "norms") for row in layers[key].values())


def test_settings_that_differ_from_the_papers_are_named():
    paper = {k: v for k, v in published("toy")["settings"].items() if k != "place"}
    assert differences({k: str(v) for k, v in paper.items()}, "toy") == "as published"
    assert differences(paper | {"training.epochs": 20}, "toy") == "epochs 20 (paper 200)"


def test_tables_are_written_in_three_forms_without_nan(tmp_path):
    table = tables.classification_table([result(), result("plain", tightness=None)], [36])
    tables.write_table(table, tmp_path / "accuracy")
    for suffix, mark in ((".csv", "family,γ"), (".md", "| family"), (".tex", r"\toprule")):
        text = (tmp_path / f"accuracy{suffix}").read_text()
        assert mark in text
        assert "nan" not in text.lower()
    assert r"$\gamma$" in (tmp_path / "accuracy.tex").read_text()


@pytest.mark.parametrize("seeds", [1, 3])
def test_figures_take_any_number_of_seeds_and_unknown_families(tmp_path, seeds):
    results = [result(family, seed=seed) for family in ("sandwich", "mine") for seed in range(seeds)]
    results.append(result("plain", tightness=None))
    with figures.look():
        section = classification_section(results, [36, 72])
        write_section(section, "study", tmp_path)
    for name in section.figures:
        assert (tmp_path / f"figures/study/{name}.png").stat().st_size > 1000
        assert "<svg" in (tmp_path / f"figures/study/{name}.svg").read_text()


def test_the_headline_metrics_are_a_handful_a_family():
    with figures.look():
        metrics = classification_section([result(), result("plain", tightness=None)], [36, 72]).metrics
    assert metrics == {
        "sandwich": {"clean": 0.75, "robust_72": 0.6667, "certified_72": 0.25, "tightness": 0.9},
        "plain": {"clean": 0.75, "robust_72": 0.6667},
    }


def write_run(folder: Path, family: str, seed: int) -> None:
    folder.mkdir(parents=True)
    content = result(family, seed=seed)
    (folder / "run.json").write_text(json.dumps(content.description))
    (folder / "lipschitz.json").write_text(json.dumps(content.lipschitz))
    content.history.to_csv(folder / "history.csv", index=False)


def test_only_the_cells_of_the_grid_are_read_and_missing_ones_are_named(tmp_path):
    write_run(tmp_path / "a", "aol", 1)
    write_run(tmp_path / "b", "sandwich", 1)
    write_run(tmp_path / "old", "sandwich", 99)
    grid = {"families": ["sandwich", "aol"], "sizes": ["tiny"], "gammas": [1], "seeds": [1]}
    assert [r.family for r in load_results(tmp_path, **grid)] == ["sandwich", "aol"]
    with pytest.raises(FileNotFoundError, match=r"'sll', 'tiny', 1\.0, 1"):
        load_results(tmp_path, **(grid | {"families": ["sll"]}))
