"""Upper bounds beside those of another package: each is one, each proof is one."""

import sys
from dataclasses import replace
from math import inf

import pytest

from bench.peers import METHODS, fast_multipliers, measure_peers, product, proved
from bench.tables import markdown
from lbdn.explicit import explicit
from lbdn.runs import seeded_network

MACHINE = {"device": "abacus", "threads": 1, "cpu_capability": "none", "torch": "2", "batch": 4}


def form(size: str, scale: float = 1.0):
    found = explicit(seeded_network(1, architecture="mlp", family="plain", size=size, input_shape=(7,), outputs=3))
    return replace(found, weights=[scale * W for W in found.weights])


@pytest.mark.parametrize("size", ["5", "6-9", "4-4-4-4"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_product_of_norms_is_proved_by_its_multipliers_and_nothing_less_is(size, scale):
    claim = product(form(size, scale))
    assert proved(claim) == pytest.approx(claim.gamma, rel=1e-8)
    # Below a half of the product, the first block 2 Lambda - Lambda W W^T Lambda / gamma is negative.
    assert proved(replace(claim, gamma=0.4 * claim.gamma)) is None


@pytest.mark.parametrize("size", ["5", "6-9", "4-4-4-4"])
def test_the_multipliers_of_the_fast_form_prove_its_claim_and_nothing_less(size):
    pytest.importorskip("eclipse_nn")
    claim = METHODS["ECLipsE-Fast"](form(size))
    claim = replace(claim, multipliers=fast_multipliers(claim))
    assert claim.gamma <= proved(claim) <= claim.gamma * (1 + 1e-6)
    less = replace(claim, gamma=0.99 * claim.gamma)
    assert proved(replace(less, multipliers=fast_multipliers(less))) is None


def test_each_network_has_a_row_a_method_and_bounds_are_in_order():
    pytest.importorskip("eclipse_nn")
    rows = measure_peers(["4", "5-3"], "4-4", epochs=1)
    assert [row["method"] for row in rows] == [*METHODS] * 3
    assert {row["network"] for row in rows} == {"4", "5-3", "4-4, trained"}
    for start in range(0, len(rows), len(METHODS)):
        bounds = {row["method"]: row for row in rows[start : start + len(METHODS)]}
        ours = bounds["lipsdp"]
        assert ours["lower"] <= ours["bound"] <= bounds["product of norms"]["bound"] * (1 + 1e-4)
        assert ours["bound"] <= bounds["ECLipsE-Fast"]["bound"] * (1 + 1e-4)
        assert ours["proved"] == ours["bound"]
        for row in bounds.values():
            assert row["lower"] <= row["bound"] * (1 + 1e-6)
            assert row["multipliers"] == (row["method"] != "ECLipsE" or row["fell_back"])
            assert (row["proved"] or inf) >= row["bound"]
    page = markdown({"machine": MACHINE, "peers": rows})
    assert page.count("| lipsdp |") == 3
    assert page.count("| yes |") >= 3


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "eclipse_nn", None)
    monkeypatch.setitem(sys.modules, "eclipse_nn.LipConstEstimator", None)
    with pytest.raises(ModuleNotFoundError, match="pip install eclipse-nn"):
        measure_peers()
