"""Upper bounds of networks without structure: the project's beside those of another package, and what can be proved."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any, cast

import torch
from torch import Tensor

from lbdn.bounds import empirical_lower_bound, layer_norms, lipsdp, lmi_certificate
from lbdn.data.sources import digits
from lbdn.explicit import Explicit, explicit
from lbdn.inference import as_input
from lbdn.networks import Network
from lbdn.runs import seeded_network
from lbdn.training import train
from lbdn.verify.lmi import proves_lipschitz_bound

SIZES = ("64", "16-16", "64-64", "32-32-32-32", "32-32-32-32-32-32-32-32")
TRAINED = "64-64"
FAST = "ECLipsE-Fast"  # whose bound ECLipsE takes where its solver fails


def product(form: Explicit) -> Explicit:
    r"""Return the product of the spectral norms, with the multipliers that prove it.

    For matrices of norm one these are ones. With :math:`s_k` the product of the norms up to layer k and s that of all,
    they become :math:`s / s_k^2`.
    """
    norms = torch.tensor(layer_norms(form.weights), dtype=torch.float64)
    whole = norms.prod()
    multipliers = [
        torch.full((len(W),), float(whole / s**2), dtype=torch.float64)
        for W, s in zip(form.weights[:-1], norms.cumprod(0)[:-1], strict=True)
    ]
    return replace(form, gamma=float(whole), multipliers=multipliers)


def eclipse(form: Explicit, method: str) -> Explicit:
    """Return the bound that eclipse-nn's ``method`` claims; it doesn't give its multipliers.

    Source: Xu and Sivaranjani (2024), ECLipsE: efficient compositional Lipschitz constant estimation.
    """
    estimator = _estimator()(weights=form.weights)
    with redirect_stdout(StringIO()):  # it prints that a solver failed
        return replace(form, gamma=float(estimator.estimate(method)), multipliers=None)


def fast_multipliers(form: Explicit) -> list[Tensor]:
    r"""Return the multipliers that give ECLipsE-Fast's bound gamma, one number a layer.

    With :math:`S_{-1} = \gamma I` and :math:`S_k = 2\Lambda_k - \Lambda_k W_k S_{k-1}^{-1} W_k^T \Lambda_k`, they are
    :math:`\Lambda_k = I / \|W_k S_{k-1}^{-1} W_k^T\|`, multiples of I that make the least eigenvalue of S_k largest.

    Source: Xu and Sivaranjani (2024), the closed form for one multiplier a layer.
    """
    S = (form.gamma or 0.0) * torch.eye(form.weights[0].shape[1], dtype=torch.float64)
    multipliers = []
    for W in form.weights[:-1]:
        M = W @ torch.linalg.solve(S, W.mT)
        number = 1 / torch.linalg.matrix_norm(M, 2)
        multipliers.append(number.expand(len(W)).clone())
        S = 2 * number * torch.eye(len(W), dtype=torch.float64) - number**2 * M
    return multipliers


METHODS: dict[str, Callable[[Explicit], Explicit]] = {
    "product of norms": product,
    "lipsdp": lipsdp,
    FAST: lambda form: eclipse(form, "ECLipsE_Fast"),
    "ECLipsE": lambda form: eclipse(form, "ECLipsE"),
}


def proved(claim: Explicit) -> float | None:
    """Return the bound closest to a claim that ``lbdn.verify`` proves by its multipliers; None within a thousandth.

    A claim that holds by nothing is proved only with some slack.
    """
    weights, multipliers = ([tensor.numpy() for tensor in some or []] for some in (claim.weights, claim.multipliers))
    if proves_lipschitz_bound(weights, multipliers, claim.gamma or 0.0):
        return claim.gamma
    try:
        return lmi_certificate(claim).gamma
    except ValueError:
        return None


def networks(sizes: Sequence[str], trained: str, epochs: int) -> Iterator[tuple[str, Network]]:
    """Yield fully connected networks for the digits, of several sizes at their initial values, and one trained."""
    dataset = digits()
    settings: dict[str, Any] = {"loss": {"name": "cross-entropy"}, "batch_size": 64, "learning_rate": 0.01, "seed": 0}
    shape: dict[str, Any] = {"input_shape": dataset.input_shape, "outputs": dataset.outputs}
    for size in sizes:
        yield size, seeded_network(0, architecture="mlp", family="plain", size=size, **shape)
    network = seeded_network(0, architecture="mlp", family="plain", size=trained, **shape)
    train(network, dataset, epochs=epochs, **settings)
    yield f"{trained}, trained", network


def measure_peers(sizes: Sequence[str] = SIZES, trained: str = TRAINED, epochs: int = 10) -> list[dict[str, Any]]:
    """Return a row a network and method: the bound that it claims, its seconds, and what of the claim is proved.

    ``multipliers`` says whether there are any to check, ``proved`` which bound they prove.

    Raises:
        ModuleNotFoundError: without the package eclipse-nn.
    """
    _estimator()
    inputs = as_input(torch.tensor(digits().test_inputs))
    rows = []
    for name, network in networks(sizes, trained, epochs):
        form = cast(Explicit, explicit(network))  # there is one of every fully connected network
        lower = empirical_lower_bound(network, inputs).ratio
        claims: dict[str, Explicit] = {}
        for method, bound in METHODS.items():
            start = time.perf_counter()
            claim = claims[method] = bound(form)
            seconds = time.perf_counter() - start
            fell_back = method == "ECLipsE" and claim.gamma == claims[FAST].gamma
            if method == FAST or fell_back:
                claim = replace(claim, multipliers=fast_multipliers(claim))
            rows.append(
                {
                    "network": name,
                    "method": method,
                    "lower": lower,
                    "bound": claim.gamma,
                    "seconds": seconds,
                    "fell_back": fell_back,
                    "multipliers": claim.multipliers is not None,
                    "proved": None if claim.multipliers is None else proved(claim),
                }
            )
    return rows


def _estimator() -> Any:
    try:
        from eclipse_nn.LipConstEstimator import LipConstEstimator
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the bounds of ECLipsE take eclipse-nn: pip install eclipse-nn") from error
    return LipConstEstimator
