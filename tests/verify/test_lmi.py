"""The proof checker, against exact rational arithmetic."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from lbdn.verify import is_positive_semidefinite, proves_lipschitz_bound


def exactly_semidefinite(rows: list[list[Fraction]]) -> bool:
    """Symmetric elimination over the rationals, without pivoting for size: PSD if and only if it never fails."""
    rows = [list(row) for row in rows]
    for k in range(len(rows)):
        if rows[k][k] < 0 or (rows[k][k] == 0 and any(rows[k][k:])):
            return False
        if rows[k][k] == 0:
            continue
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            for j in range(k, len(rows)):
                rows[i][j] -= factor * rows[k][j]
    return True


def exact_lmi(weights, multipliers, gamma: float) -> list[list[Fraction]]:
    """The theorem's whole matrix, corners and all, in rationals."""
    sizes = [weights[0].shape[1], *(len(W) for W in weights)]
    starts = np.cumsum([0, *sizes])
    rows = [[Fraction(0)] * starts[-1] for _ in range(starts[-1])]
    diagonal = [[gamma] * sizes[0], *[[2 * float(x) for x in m] for m in multipliers], [gamma] * sizes[-1]]
    for i, value in enumerate(x for block in diagonal for x in block):
        rows[i][i] = Fraction(float(value))
    for k, W in enumerate(weights):
        for i, row in enumerate(W):
            factor = Fraction(float(multipliers[k][i])) if k < len(multipliers) else Fraction(1)
            for j, value in enumerate(row):
                entry = -factor * Fraction(float(value))
                rows[starts[k + 1] + i][starts[k] + j] = rows[starts[k] + j][starts[k + 1] + i] = entry
    return rows


def case(rng, *widths: int, factor: float):
    weights = [rng.normal(size=(q, p)) for p, q in pairwise(widths)]
    multipliers = [np.exp(rng.normal(size=n)) for n in widths[1:-1]]
    low, high = 0.0, 100.0
    for _ in range(60):  # the factor at which the LMI is about to fail, in floating point
        middle = (low + high) / 2
        matrix = np.array(
            [[float(x) for x in row] for row in exact_lmi([middle * W for W in weights], multipliers, 2.0)]
        )
        low, high = (middle, high) if np.linalg.eigvalsh(matrix)[0] >= 0 else (low, middle)
    return [low * factor * W for W in weights], multipliers


@pytest.mark.parametrize("widths", [(2, 3, 1), (3, 2, 4, 2), (1, 2, 2, 1), (2, 1, 1, 1, 2)], ids=str)
@pytest.mark.parametrize("margin", [1e-2, 1e-6, 1e-10, 1e-13, 1e-15])
def test_what_is_proved_holds_exactly_and_what_holds_by_a_margin_is_proved(widths, margin):
    for seed in range(5):
        inside, multipliers = case(np.random.default_rng(seed), *widths, factor=1 - margin)
        proved = proves_lipschitz_bound(inside, multipliers, 2.0)
        assert not proved or exactly_semidefinite(exact_lmi(inside, multipliers, 2.0))
        assert proved or margin < 1e-12
        outside = [(1 + 2 * margin) * W / (1 - margin) for W in inside]
        assert not exactly_semidefinite(exact_lmi(outside, multipliers, 2.0)) or margin < 1e-14
        assert not proves_lipschitz_bound(outside, multipliers, 2.0)


def test_a_bound_one_number_below_the_least_one_of_a_single_hidden_unit_is_not_proved():
    """Were the rounding errors of entries not counted, some of these would be: by rounding alone."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        weights, multiplier = [rng.normal(size=(1, 40)), rng.normal(size=(40, 1))], np.exp(rng.normal(size=1))
        inner, outer = (sum(Fraction(float(w)) ** 2 for w in W.flat) for W in weights)
        least = (Fraction(float(multiplier[0])) * inner + outer / Fraction(float(multiplier[0]))) / 2
        below = float(least) if float(least) < least else math.nextafter(float(least), 0)
        assert not proves_lipschitz_bound(weights, [multiplier], below)
        assert proves_lipschitz_bound(weights, [multiplier], below * (1 + 1e-13))


def test_any_part_of_the_proof_that_is_changed_makes_it_fail():
    weights, multipliers = case(np.random.default_rng(0), 3, 4, 4, 2, factor=1 - 1e-9)
    assert proves_lipschitz_bound(weights, multipliers, 2.0)
    assert not proves_lipschitz_bound(weights, multipliers, 2.0 * (1 - 1e-6))
    for k in range(len(weights)):
        changed = [1.001 * W if j == k else W for j, W in enumerate(weights)]
        assert not proves_lipschitz_bound(changed, multipliers, 2.0)
    for k in range(len(multipliers)):
        changed = [1000 * m if j == k else m for j, m in enumerate(multipliers)]
        assert not proves_lipschitz_bound(weights, changed, 2.0)
    for wrong in (0.0, -1.0):
        assert not proves_lipschitz_bound(weights, multipliers, wrong)
    assert not proves_lipschitz_bound(weights, [-multipliers[0], *multipliers[1:]], 2.0)


def test_errors_of_entries_count_against_the_claim():
    identity = np.eye(3)
    assert is_positive_semidefinite(identity, 0.3 * np.ones((3, 3)))
    assert not is_positive_semidefinite(identity, 0.34 * np.ones((3, 3)))  # three times 0.34 is more than one
    singular = np.ones((2, 2))
    assert not is_positive_semidefinite(singular, np.zeros((2, 2)))  # it is, by nothing
    assert not is_positive_semidefinite(np.diag([1.0, 0.0]), np.zeros((2, 2)))
    assert not is_positive_semidefinite(np.diag([1.0, np.inf]), np.zeros((2, 2)))


def test_badly_scaled_matrices_are_proved_too():
    d = np.array([1e-12, 1.0, 1e9])
    matrix = d[:, None] * np.array([[2.0, -1, 0], [-1, 2, -1], [0, -1, 2]]) * d
    assert is_positive_semidefinite(matrix, 1e-15 * np.abs(matrix))


@pytest.mark.parametrize(
    ("shapes", "sizes"), [([(2, 3)], []), ([(2, 3), (1, 3)], [2]), ([(2, 3), (1, 2)], [3]), ([(2, 3), (1, 2)], [])]
)
def test_shapes_that_do_not_fit_are_an_error(shapes, sizes):
    with pytest.raises(ValueError, match="matrices that can be multiplied"):
        proves_lipschitz_bound([np.ones(shape) for shape in shapes], [np.ones(n) for n in sizes], 1.0)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e200, 1e-200])
def test_numbers_that_cannot_be_reckoned_with_are_an_error(wrong):
    for weight, gamma in ((wrong, 1.0), (1.0, wrong)):
        with pytest.raises(ValueError, match="finite numbers between"):
            proves_lipschitz_bound([np.array([[weight]]), np.array([[1.0]])], [np.ones(1)], gamma)
