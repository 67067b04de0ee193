from dataclasses import replace
from functools import partial
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from lbdn.report import figures, look, tables
from lbdn.report.results import published
from lbdn.report.sections import classification_section
from tests.report.runs import EPS, PLAIN, fit, result, trained_only

ALL = list(tables.FAMILY_LABELS)
FEW = [result(family, gamma=None if family == "plain" else 1.0) for family in ALL[:5]]
MANY = [result(family, gamma=gamma) for family in ALL[1:] for gamma in (0.5, 1.0, 2.0)] + [PLAIN]
SIZES = [trained_only(family, size=size, seed=seed) for family in ALL for size in ("small", "large") for seed in (1, 2)]


FITS = [fit(family, gamma) for family in ALL[1:] for gamma in (1.0, 5.0, 10.0, 20.0)]
DRAWN = {
    "square wave": lambda: figures.square_wave(FITS),
    "tightness by gamma": lambda: figures.tightness_by_gamma(FITS),
    "layers": lambda: figures.layers(tables.layers_table(FITS, published("toy"))),
    **{
        f"{figure.__name__}, {kind}": partial(figure, results)
        for figure in (figures.accuracy_by_radius, figures.accuracy_by_lipschitz, figures.tightness)
        for kind, results in (("few", FEW), ("many", MANY))
    },
    **{
        f"learning curves, {kind}": partial(figures.learning_curves, results)
        for kind, results in (("few", FEW), ("many", MANY), ("sizes", SIZES))
    },
    "accuracy by size": lambda: figures.accuracy_by_size(SIZES, published("cifar100-sizes")),
    "accuracy by gamma": lambda: figures.accuracy_by_gamma(MANY, EPS),
    "tightness, long names": lambda: figures.tightness([result("a-family-of-another-package-and-of-many-words"), *FEW]),
    "square wave, long names": lambda: figures.square_wave([fit("a-family-of-many-words", 1.0), fit("aol", 1.0)]),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_figure_is_as_wide_as_a_column_and_nothing_is_cut_covered_or_squeezed(kind):
    figure = DRAWN[kind]()
    figure.canvas.draw()
    assert figure.get_figwidth() == look.WIDTH
    shown = [axis for axis in figure.axes if axis.get_visible()]
    extents = [axis.get_tightbbox() for axis in shown] + [legend.get_window_extent() for legend in figure.legends]
    for extent in [*extents, *(text.get_window_extent() for text in figure.texts)]:
        assert extent.x0 >= -0.5
        assert extent.y0 >= -0.5
        assert extent.x1 <= figure.bbox.width + 0.5
        assert extent.y1 <= figure.bbox.height + 0.5
    for axis in shown:
        assert axis.bbox.width >= 0.9 * figure.dpi
        assert axis.bbox.height >= 0.7 * figure.dpi
        assert not any(axis.get_tightbbox().y1 > legend.get_window_extent().y0 + 0.5 for legend in figure.legends)
    for one, other in combinations(extents, 2):
        overlap = Bbox.intersection(one, other)
        assert overlap is None or min(overlap.width, overlap.height) < 1


def test_a_file_is_as_wide_as_its_figure(tmp_path):
    look.write_figure(figures.tightness(FEW), tmp_path / "figure")
    assert plt.imread(tmp_path / "figure.png").shape[1] == 300 * look.WIDTH


def legend_of(figure: Figure) -> dict[str, Line2D]:
    (legend,) = figure.legends
    return dict(zip((text.get_text() for text in legend.get_texts()), legend.get_lines(), strict=True))


def test_a_legend_shows_lines_and_markers_where_the_figure_does():
    radius = legend_of(figures.accuracy_by_radius(FEW))
    assert (radius["Unconstrained"].get_linestyle(), radius["Sandwich"].get_linestyle()) == ("None", "-")
    by_gamma = legend_of(figures.accuracy_by_gamma(MANY, EPS))
    assert (by_gamma["Unconstrained"].get_marker(), by_gamma["Sandwich"].get_marker()) == ("None", "X")
    one, several = ([run for run in SIZES if run.size in sizes] for sizes in (("small",), ("small", "large")))
    several = [*one, *(replace(run, description=run.description | {"parameters": 9}) for run in several)]
    for runs, line in ((one, "None"), (several, "-")):
        assert legend_of(figures.accuracy_by_size(runs, {}))["Sandwich"].get_linestyle() == line
    markers = {label: line.get_marker() for label, line in legend_of(figures.accuracy_by_lipschitz(MANY)).items()}
    of_bounds = {marker for label, marker in markers.items() if label.startswith("γ")}
    assert of_bounds
    assert not of_bounds & {marker for label, marker in markers.items() if not label.startswith("γ")}


def test_families_differ_in_marker_and_in_dashes():
    for look_of in (lambda family: look.mark(family)["marker"], lambda family: str(look.line(family)["linestyle"])):
        assert len({look_of(family) for family in ALL}) == len(ALL)


@pytest.mark.parametrize("limits", [(0.95, 1.05), (0.9, 3), (2, 30), (0.3, 5000)])
@pytest.mark.parametrize("side", ["x", "y"])
def test_a_logarithmic_axis_has_a_few_plain_numbers(side, limits):
    figure, (axes,) = look.axes_of([""])
    axes.set(**{f"{side}lim": limits})
    look.logarithmic(axes, side)
    figure.canvas.draw()
    axis = axes.xaxis if side == "x" else axes.yaxis
    inside = [f"{tick:g}" for tick in axis.get_majorticklocs() if limits[0] <= tick <= limits[1]]
    assert 2 <= len(inside) <= 6
    assert set(inside) <= {label.get_text() for label in axis.get_majorticklabels()}


def drawn(figure, axis: int = 0) -> list[tuple[list[float], list[float]]]:
    return [tuple(line.get_xydata().T.tolist()) for line in figure.axes[axis].lines]


def test_certified_and_robust_accuracy_by_radius_are_of_the_attacked_images():
    (attacked, robust), (radii, certified) = drawn(figures.accuracy_by_radius([result()]))
    assert attacked == pytest.approx([0, EPS], abs=1e-6)
    assert robust == pytest.approx([100, 200 / 3])
    assert np.interp([0.1, 0.25], radii, certified) == pytest.approx([200 / 3, 100 / 3])


def test_learning_curves_show_the_error():
    assert drawn(figures.learning_curves([result()])) == [([1, 2], [50, 25])]


def test_learning_curves_of_several_seeds_are_their_mean_and_a_band_of_their_standard_deviation():
    worse = trained_only(seed=2)
    figure = figures.learning_curves(
        [trained_only(), replace(worse, history=worse.history.assign(test_accuracy=[0.3, 0.65]))]
    )
    assert drawn(figure) == [([1, 2], pytest.approx([60, 30]))]
    (band,) = figure.axes[0].collections
    spread = np.std([[50, 70], [25, 35]], axis=1, ddof=1)
    edges = np.sort([y for x, y in band.get_paths()[0].vertices if x == 2])
    assert (edges.min(), edges.max()) == (pytest.approx(30 - spread[1]), pytest.approx(30 + spread[1]))


def test_markers_of_a_learning_curve_are_few():
    long = pd.DataFrame({"epoch": range(1, 101), "test_accuracy": 0.5})
    (line,) = figures.learning_curves([replace(result(), history=long)]).axes[0].lines
    start, step = line.get_markevery()
    assert start < step
    assert 5 <= 100 / step <= 7


def test_tightness_by_gamma_is_the_mean_over_seeds():
    runs = [result("aol", gamma=g, seed=s, tightness=t) for g, s, t in ((5.0, 1, 0.4), (1.0, 1, 0.9), (5.0, 2, 0.6))]
    assert drawn(figures.tightness_by_gamma(runs)) == [([1, 5], pytest.approx([90, 50]))]


def test_accuracy_by_size_stands_beside_the_published_one():
    run = result("sandwich", size="small", gamma=2.0)
    run = replace(run, description=run.description | {"parameters": 3_038_299})
    measured, printed = drawn(figures.accuracy_by_size([run], published("cifar100-sizes")))
    assert measured == ([3.038299], [75])
    assert printed == ([3, 12, 48], [54.2, 56.5, 57.5])


def test_both_bounds_of_a_network_stand_where_they_are():
    figure = figures.tightness([replace(result(), lipschitz={"lower": 0.5, "upper": 2.0, "tightness": 0.25})])
    assert drawn(figure) == [([0.5], [0]), ([2.0], [0])]
    (bar,) = figure.axes[0].collections
    assert bar.get_segments()[0].tolist() == [[0.5, 0], [2.0, 0]]
    assert "0.500 of 2.00: 25.0 %" in [text.get_text() for text in figure.axes[0].texts]


def test_the_upper_bound_of_each_gamma_is_a_vertical_line_and_its_networks_have_their_own_filling():
    runs = [replace(result(gamma=g), lipschitz={"lower": g, "upper": 4 * g, "tightness": 0.25}) for g in (1.0, 2.0)]
    lines = figures.accuracy_by_lipschitz(runs).axes[0].lines
    assert [line.get_xdata()[0] for line in lines] == [4, 8, 1, 2]
    assert len({line.get_fillstyle() for line in lines[2:]}) == len({line.get_color() for line in lines[2:]}) == 2
    assert [line.get_color() for line in lines[:2]] == [line.get_color() for line in lines[2:]]


def test_layers_stand_beside_the_published_ones_and_the_product_of_norms_is_not_drawn():
    table = tables.layers_table([fit("sandwich", 1.0)], published("toy"))
    layers, printed = figures.layers(table), published("toy")["layers"]
    (percent, _), (percent_printed, _) = drawn(layers, 0)
    assert percent == pytest.approx([90] * 11)
    assert percent_printed == [*printed["tightness_percent"]["sandwich"], printed["network_percent"]["sandwich"]]
    (norm, rows), (norm_printed, _) = drawn(layers, 1)
    assert norm == [1] * 10
    assert rows == list(range(10))
    assert norm_printed == printed["norms"]["sandwich"]


@pytest.mark.parametrize(("last", "scale"), [(0.9, "linear"), (0.95, "log"), (1.0, "linear")])
def test_errors_that_span_decades_are_drawn_on_a_logarithmic_axis(last, scale):
    run = trained_only()
    figure = figures.learning_curves([replace(run, history=run.history.assign(test_accuracy=[0.5, last]))])
    assert figure.axes[0].get_yscale() == scale


def test_a_panel_by_lipschitz_bound_shows_the_accuracy_at_its_own_radius():
    figure = figures.accuracy_by_lipschitz([result()])
    for axis, accuracy in enumerate([100, 200 / 3]):
        assert drawn(figure, axis)[-1] == ([0.9], pytest.approx([accuracy]))


def test_accuracy_by_gamma_is_that_under_attack():
    better = result(gamma=4.0)
    better.attack[f"robust@{EPS:.6g}"] = 1
    (_, unbounded), by_gamma = drawn(figures.accuracy_by_gamma([PLAIN, better, result(gamma=2.0)], EPS))
    assert unbounded == pytest.approx([200 / 3] * 2)
    assert by_gamma == ([2, 4], pytest.approx([200 / 3, 100]))


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


def test_fits_of_several_seeds_share_a_panel_and_below_bound_1_there_is_no_best_one():
    figure = figures.square_wave([fit("aol", 0.5, seed=seed) for seed in (1, 2)])
    (axis,) = figure.axes
    assert len(axis.lines) == 4 + 2
    assert not [text for text in legend_of(figure) if "best" in text]


def test_networks_without_a_bound_stand_in_every_panel_of_their_size():
    shown = look.panels([PLAIN, result(gamma=1.0), result(gamma=2.0)])
    assert {title: [run.family for run in runs] for title, runs in shown.items()} == {
        "γ = 1": ["plain", "sandwich"],
        "γ = 2": ["plain", "sandwich"],
    }
    assert list(look.panels([PLAIN])) == [""]


def test_values_of_other_networks_than_the_papers_are_not_drawn():
    drawn = [
        figures.accuracy_by_size([result(family, size="small", gamma=2.0)], published(experiment)).legends
        for family, experiment in (
            ("sandwich", "cifar100-sizes"),
            ("mine", "cifar100-sizes"),
            ("sandwich", "tiny-imagenet-sizes"),  # of 200 classes
        )
    ]
    labels = [[text.get_text() for text in legends[0].get_texts()] for legends in drawn]
    assert labels == [["Sandwich", "published"], ["mine"], ["Sandwich"]]


def test_a_lower_bound_far_beyond_all_upper_ones_stands_at_the_edge_with_its_number():
    far = result("plain", None)
    far = replace(far, lipschitz=far.lipschitz | {"lower": 4892.2})
    figure = figures.accuracy_by_lipschitz([result(), far])
    for axis in figure.axes:
        assert [text.get_text() for text in axis.texts] == ["4,892 →"]
        assert 1 < axis.get_xlim()[1] < 2
    captions = [classification_section("", [result(), other], [], {}).figures for other in (far, PLAIN)]
    assert ["arrow" in figures["accuracy-by-lipschitz"][1] for figures in captions] == [True, False]
