"""A run's certificate, and what makes it hold."""

import hashlib
import json
import math
from collections.abc import Iterator
from decimal import ROUND_CEILING, Context
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lbdn.verify.archive import read_tensors
from lbdn.verify.layers import (
    FAMILIES,
    ROWS,
    UNITS,
    WEIGHTLESS,
    NotCoveredError,
    Proof,
    Tensors,
    operators,
    proof,
    rows_hold,
)
from lbdn.verify.lmi import proves_lipschitz_bound

VERSION = 1
REAL = 1 + 1e-9  # what a constant in real arithmetic may exceed its layer's scale by
UPWARD = 1 + 1e-12  # covers the rounding of a product of some thousand constants


class RejectedError(Exception):
    """The first thing about a certificate that doesn't hold."""


def check(run: str | Path) -> Iterator[str]:
    """Yield what has been checked, step by step, of the certificate in a run's folder.

    Raises:
        RejectedError: for the first thing that doesn't hold.
        NotCoveredError: for a network of layers about which nothing is proved here.
        FileNotFoundError: if there is no certificate, or no weights.
    """
    run = Path(run)
    certificate = read_certificate(run / "certificate.json")
    weights = run / "weights.pt"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if digest != certificate["weights_sha256"]:
        raise RejectedError(f"{weights} isn't the file that was certified: its SHA-256 is {digest}")
    yield f"{weights} is the file that was certified"
    if "not_covered" in certificate:
        raise NotCoveredError(certificate["not_covered"])
    tensors = read_tensors(weights)
    layers = certificate["layers"]
    if not all(layer[name] > 0 for layer in layers for name in ("scale", "constant", "norm") if name in layer):
        raise RejectedError("the certificate's scales and constants aren't all positive")
    _described(run / "run.json", layers)
    parameters = _distributed(layers, tensors)
    deviations = tensors.get("normalization.std", np.ones(1)).astype(np.float64)
    if not (deviations.min() > 0 and np.isfinite(deviations).all()):
        raise RejectedError("the standard deviations that the input is divided by aren't all positive and finite")
    factor = 1 / float(deviations.min())
    proofs = [proof(layer, own) for layer, own in zip(layers, parameters, strict=True)]
    yield _real(certificate, parameters, proofs)
    product = 1.0
    for layer, holds in zip(layers, proofs, strict=True):
        if not holds(layer["constant"], certificate["precision"]):
            raise RejectedError(f"{layer['name']} ({layer['type']}), rounded, isn't {layer['constant']!r}-Lipschitz")
        product *= layer["constant"]
    rounded = certificate["gamma_rounded"]
    if not product * UPWARD <= rounded:
        raise RejectedError(f"the layers' constants have the product {product!r}, above gamma_rounded {rounded!r}")
    yield f"operators rounded to {certificate['precision']} prove {_up(rounded)}, layer by layer"
    each = ""
    if layers and layers[-1]["type"] == ROWS:
        _each_output(certificate, parameters[-1])
        alone = certificate["each_output"]
        each = f"; each output alone {_up(factor * alone['gamma'])}, and {_up(factor * alone['gamma_rounded'])} rounded"
    real = _up(factor * certificate["gamma"])
    yield f"holds: from pixels, {real}-Lipschitz, and {_up(factor * rounded)} rounded{each}"


def read_certificate(path: Path) -> dict[str, Any]:
    """Return a certificate's contents.

    Raises:
        FileNotFoundError: if there is none.
        RejectedError: if it is damaged, changed since it was written, or of another version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sealed = content.pop("sha256")
        seal(content)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise RejectedError(f"{path} is no certificate: {error!r}") from error
    if seal(content) != sealed:
        raise RejectedError(f"{path} has been changed since it was written")
    if content.get("version") != VERSION or ("not_covered" not in content and content.get("precision") not in UNITS):
        raise RejectedError(f"{path} is of another version than {VERSION}, or of an unknown precision")
    return content


def seal(content: dict[str, Any]) -> str:
    """Return the digest of a certificate's contents: against accidents, since who changes a file can write it anew."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _up(bound: float, digits: int = 7) -> str:
    """Return a bound in decimal digits, rounded up."""
    return f"{Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(bound).normalize():g}"


def _described(path: Path, layers: list[dict[str, Any]]) -> None:
    """Check what no weights hold, the layers' scales and what is made of the weights, against the run's description."""
    network = json.loads(path.read_text(encoding="utf-8")).get("network", {})
    gamma, family = network.get("gamma"), network.get("family")
    product = math.prod(layer["scale"] for layer in layers)
    if network and gamma is None:
        raise RejectedError(f"{path} describes a network without a bound")
    if network and not math.isclose(product, gamma, rel_tol=1e-12):
        raise RejectedError(f"the layers' scales make {product!r}, but {path} describes a network of gamma {gamma!r}")
    types = [layer["type"] for layer in layers if layer["type"] not in WEIGHTLESS]
    normalized = [kind == ROWS for kind in types]
    if network and normalized != [False] * (len(types) - 1) + [bool(network.get("last_layer_normalization"))]:
        raise RejectedError(f"{path} describes a network with another last layer than {types[-1:]}")
    others = [kind for kind in types if FAMILIES.get(kind, family) != family]
    if family in FAMILIES.values() and others:
        raise RejectedError(f"{path} describes a network of family {family}, but the certificate lists {others[0]}")


def _distributed(layers: list[dict[str, Any]], tensors: Tensors) -> list[Tensors]:
    """Return each layer's own tensors; all tensors have to belong to one, in the order of the network."""
    parts: list[Tensors] = []
    places = [int(layer["name"].removeprefix("body.")) for layer in layers]
    if any(after <= before for before, after in pairwise(places)):
        raise RejectedError("the certificate's layers are out of order")
    for layer in layers:
        start = layer["name"] + "."
        own = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        if own and layer["type"] in WEIGHTLESS:
            raise RejectedError(f"{layer['name']} has weights, which no layer of type {layer['type']} has")
        parts.append(own)
    known = sum(map(len, parts)) + sum(name.startswith("normalization.") for name in tensors)
    if known != len(tensors):
        raise RejectedError("the certificate leaves out layers that have weights")
    return parts


def _real(certificate: dict[str, Any], parameters: list[Tensors], proofs: list[Proof]) -> str:
    """Check the bound of the network in real arithmetic; return what was proved."""
    gamma, multipliers, layers = certificate["gamma"], certificate["multipliers"], certificate["layers"]
    if multipliers is None:
        for layer, holds in zip(layers, proofs, strict=True):
            if not holds(_real_constant(layer), "float64"):
                raise RejectedError(
                    f"{layer['name']} ({layer['type']}) isn't proved to be {_real_constant(layer)!r}-Lipschitz"
                )
        if not math.prod(map(_real_constant, layers)) <= gamma:
            raise RejectedError(f"the layers' constants don't prove gamma {gamma!r}")
        return f"the layers' constants prove gamma {_up(gamma, 10)}"
    if not _alternating(layers):
        raise RejectedError("multipliers prove a bound of fully connected layers, all but the last with an activation")
    weights, pending = [], None
    for layer, own in zip(layers, parameters, strict=True):
        if own:
            weight, *following = operators(layer["type"], own, layer["scale"])
            weights.append(weight if pending is None else weight @ pending)
            pending = following[0] if following else None
    try:
        proved = proves_lipschitz_bound(weights, [np.array(m) for m in multipliers], gamma)
    except ValueError as error:
        raise RejectedError(f"the multipliers don't fit the weights: {error}") from error
    if not proved:
        raise RejectedError(f"the multipliers don't prove gamma {gamma!r}")
    return f"multipliers of {sum(map(len, multipliers))} hidden units prove gamma {_up(gamma, 10)}"


def _alternating(layers: list[dict[str, Any]]) -> bool:
    """Return whether the layers are matrices with an activation after each but the last, and nothing else."""
    *hidden, last = [layer["type"] for layer in layers if layer["type"] not in WEIGHTLESS] or [""]
    others = [layer for layer in layers if layer["type"] in WEIGHTLESS]
    unchanged = all(layer["type"] == "Flatten" and layer["scale"] == 1 for layer in others)
    return unchanged and last.endswith("Lin") and all(kind.endswith("Fc") for kind in hidden)


def _real_constant(layer: dict[str, Any]) -> float:
    """Return a layer's bound in real arithmetic: its scale, unless it says another."""
    return float(layer.get("norm", layer["scale"] * REAL))


def _each_output(certificate: dict[str, Any], parameters: Tensors) -> None:
    """Check the bounds of each output alone behind a last layer with normalised rows, whose norm may be above them."""
    *body, last = certificate["layers"]
    if certificate["multipliers"] is not None:
        raise RejectedError("multipliers prove nothing of each output alone; it takes constants of all layers")
    bounds = {
        "gamma": ("float64", math.prod(map(_real_constant, body))),
        "gamma_rounded": (certificate["precision"], math.prod(layer["constant"] for layer in body)),
    }
    for name, (precision, before) in bounds.items():
        claim = certificate["each_output"][name]
        if not (claim > 0 and rows_hold(parameters, last["scale"], claim / (before * UPWARD), precision)):
            raise RejectedError(f"the layers don't prove that each output alone is {claim!r}-Lipschitz, its {name}")
