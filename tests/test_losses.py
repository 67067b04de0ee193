"""Losses against NumPy, the schedule against the paper's description."""

import numpy as np
import pytest
import torch

from lbdn.losses import cross_entropy, multi_margin
from lbdn.schedules import piecewise_triangular
from lbdn.training import make_loss

LOGITS = np.random.default_rng(0).normal(size=(7, 5)) * 3
LABELS = np.array([0, 1, 2, 3, 4, 0, 2])


def value(loss) -> float:
    return loss(torch.tensor(LOGITS), torch.tensor(LABELS)).item()


@pytest.mark.parametrize(("temperature", "offset"), [(1, 0), (0.25, 3 * 2**0.5 / 2), (0.25, 0), (2, 1), (0.01, 5)])
def test_cross_entropy_is_the_formula_with_temperature_and_offset(temperature, offset):
    scaled = LOGITS.copy()
    scaled[np.arange(7), LABELS] -= offset
    scaled /= temperature
    top = scaled.max(axis=1)
    log_sum = top + np.log(np.exp(scaled - top[:, None]).sum(axis=1))
    expected = temperature * (log_sum - scaled[np.arange(7), LABELS]).mean()
    assert value(cross_entropy(temperature, offset)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("margin", [0.5, 2.0])
def test_multi_margin_is_the_hinge_over_all_other_classes(margin):
    total = 0.0
    for logits, label in zip(LOGITS, LABELS, strict=True):
        total += sum(max(0.0, margin - logits[label] + f) for j, f in enumerate(logits) if j != label)
    assert value(multi_margin(margin)) == pytest.approx(total / (7 * 5), rel=1e-12)


def test_mean_squared_error_is_the_mean_over_samples_and_outputs():
    loss = make_loss({"name": "mse"})
    targets = LOGITS[::-1].copy()
    expected = ((LOGITS - targets) ** 2).mean()
    assert loss(torch.tensor(LOGITS), torch.tensor(targets)).item() == pytest.approx(expected, rel=1e-12)


def test_a_loss_is_made_from_its_name_and_options():
    made = make_loss({"name": "cross-entropy", "temperature": 0.25, "offset": 1.0})
    assert value(made) == value(cross_entropy(0.25, 1.0))
    assert value(make_loss({"name": "multi-margin"})) == value(multi_margin(0.5))
    assert value(made) != value(make_loss({"name": "cross-entropy"}))


def test_making_a_loss_leaves_its_description_alone():
    description = {"name": "multi-margin", "margin": 1.0}
    make_loss(description)
    assert description == {"name": "multi-margin", "margin": 1.0}


@pytest.mark.parametrize("description", [{"name": "hinge"}, {"name": None}, {}])
def test_an_unknown_loss_is_an_error_that_lists_the_known_ones(description):
    with pytest.raises(ValueError, match=r"no loss .*cross-entropy, multi-margin, mse"):
        make_loss(description)


@pytest.mark.parametrize("name", ["cross-entropy", "multi-margin", "mse"])
def test_an_unknown_option_is_an_error_that_names_loss_and_option(name):
    with pytest.raises(ValueError, match=rf"'{name}'.*weight"):
        make_loss({"name": name, "weight": 2})


@pytest.mark.parametrize("maximum", [0.01, 3.0])
def test_the_schedule_passes_through_the_papers_points(maximum):
    for progress, share in {0: 0, 0.2: 1 / 2, 2 / 5: 1, 0.6: 0.525, 4 / 5: 1 / 20, 0.9: 1 / 40, 1: 0}.items():
        rate = piecewise_triangular(progress, maximum)
        assert rate == pytest.approx(share * maximum, abs=1e-12 * maximum)


def test_the_schedule_is_continuous_and_never_negative():
    grid = np.linspace(0, 1, 10_001)
    rates = np.array([piecewise_triangular(p, 1.0) for p in grid])
    assert np.abs(np.diff(rates)).max() <= 2.5e-4 * (1 + 1e-9)  # its steepest slope is 1 over 2/5
    assert rates.min() >= 0
    assert grid[rates.argmax()] == pytest.approx(0.4)
    assert piecewise_triangular(1 + 1e-12, 1.0) == 0
