"""Robust accuracy by AutoAttack (Croce and Hein 2020), its authors' code from the package ``pyautoattack``."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from lbdn.certify import check_labels
from lbdn.files import read_json, write_json
from lbdn.layers import freeze
from lbdn.layers.base import positive_size

STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")
ROUNDING = 1 + 1e-5  # AutoAttack works in float32: some of its perturbations are longer than the radius by a little


def attacks_for(classes: int) -> tuple[tuple[str, ...], int]:
    """Return the attacks of the standard version that a number of classes allows, and how many classes they target.

    The standard version targets the 9 classes nearest to the label; with fewer than 10 classes, all others. The
    targeted DLR loss needs four classes and the DLR loss three: below that, APGD on the DLR loss, then none, takes the
    place of the targeted one.

    Raises:
        ValueError: for fewer than two classes.

    >>> attacks_for(10), attacks_for(3)
    ((('apgd-ce', 'apgd-t', 'fab-t', 'square'), 9), (('apgd-ce', 'apgd-dlr', 'fab-t', 'square'), 2))
    """
    if classes < 2:
        raise ValueError(f"AutoAttack takes at least two classes, got {classes}")
    attacks: tuple[str, ...] = STANDARD
    if classes == 3:
        attacks = ("apgd-ce", "apgd-dlr", "fab-t", "square")
    if classes == 2:
        attacks = ("apgd-ce", "fab-t", "square")
    return attacks, min(9, classes - 1)


def autoattack(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    eps: Sequence[float],
    seed: int,
    batch_size: int = 250,
    certified: Tensor | None = None,
    audit: int = 10,
    numbers: Sequence[int] | None = None,
    state: str | Path | None = None,
    identity: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Attack a classifier by AutoAttack, standard version, l2 norm; return a row an image.

    Images are attacked where the answer is open. Radii come in ascending order, and an image that is broken at one
    counts as broken at every larger one, since the same perturbation is allowed there. An image that is certified at a
    radius can't be broken there and isn't attacked, except for a random sample that puts the certificates to the test.
    Every batch is attacked with the same seed on its own, at every radius. With a state file, what is finished is kept,
    a batch at a radius, and a later call with the same arguments goes on after that with the same result.

    Args:
        network: on pixels in [0, 1], to logits ``(n, classes)``.
        images: ``(n, channels, h, w)`` on [0, 1], on the network's device.
        labels: int64, ``(n,)``.
        eps: radii in pixel units.
        seed: of the attacks and of the sample.
        batch_size: attacked at once.
        certified: ``(n,)``, certified radii in pixel units, zero where there is none; None to attack all images.
        audit: how many certified images to attack all the same, at each radius.
        numbers: of the images, for rows and errors; by default those from 0.
        state: a file for what is finished, or None.
        identity: what makes this attack the same as an interrupted one, besides the other arguments.

    Returns:
        Rows with ``image`` (its number), ``label``, ``prediction`` (clean), ``radius`` (certified; empty without
        ``certified``) and, for each radius, ``robust@{eps}``, ``attacked@{eps}``, the prediction under attack, and
        ``decided_by@{eps}``: "prediction", wrong without an attack; "smaller radius", broken there; "certificate", not
        attacked; "audit", certified and attacked; or "attack".

    Raises:
        ValueError: for images outside [0, 1], of another shape or smaller than 5 x 5, labels that don't fit, a radius
            that isn't positive and finite, an empty batch, fewer than two classes, logits that aren't finite, or an
            image that is broken within its certified radius.
    """
    state = None if state is None else Path(state)
    if not len(images) or not (images.min() >= 0 and images.max() <= 1):
        raise ValueError("autoattack takes at least one image, with pixels in [0, 1]; normalise inside the network")
    if images.dim() != 4 or min(images.shape[-2:]) < 5:
        raise ValueError(
            f"AutoAttack takes images (n, channels, h, w), for its Square attack of 5 x 5 pixels or more, "
            f"got {tuple(images.shape)}"
        )
    if not isinstance(eps, Sequence) or not eps or not all(0 < radius < float("inf") for radius in eps):
        raise ValueError(f"eps takes positive, finite radii in a list, got {eps!r}")
    positive_size(batch_size=batch_size)
    frozen = freeze(network)
    with torch.no_grad():
        classes = frozen(images[:1]).shape[-1]
    check_labels(labels, len(images), classes)
    if certified is not None and certified.shape != labels.shape:
        raise ValueError(f"certified takes one radius for each of {len(labels)} images, got {tuple(certified.shape)}")
    radii = sorted(eps)
    if len({f"{radius:.6g}" for radius in radii}) < len(radii):
        raise ValueError(f"eps takes radii that differ in their first six digits, got {eps!r}")
    certificates = torch.zeros(len(labels)) if certified is None else certified.detach().cpu()
    certificates = certificates.clamp(max=torch.finfo(certificates.dtype).max)  # JSON knows no infinity
    data = hashlib.sha256(images.cpu().numpy().tobytes() + labels.cpu().numpy().tobytes()).hexdigest()
    same = {
        "radii": radii,
        "seed": seed,
        "batch_size": batch_size,
        "certified": None if certified is None else certificates.tolist(),
        "audit": audit,
        "numbers": None if numbers is None else list(numbers),
        "data": data,
        "identity": dict(identity or {}),
    }
    batches = [slice(start, start + batch_size) for start in range(0, len(images), batch_size)]
    rows: list[dict[str, Any]] = []
    if state is not None and state.exists():
        saved = read_json(state)
        rows = saved["rows"] if saved["identity"] == same else []
    if not rows:
        columns = {
            "image": range(len(images)) if numbers is None else numbers,
            "label": labels.tolist(),
            "prediction": [answer for batch in batches for answer in _predictions(frozen, images[batch])],
            "radius": [""] * len(images) if certified is None else certificates.tolist(),
        }
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    audited = _sample(certificates, radii, audit, seed)
    rounds = list(product(batches, range(len(radii))))
    for batch, i in tqdm(rounds, "AutoAttack, batches by radii", disable=None):
        if f"robust@{radii[i]:.6g}" in rows[batch.start]:
            continue
        # AutoAttack's doubts about the network (random? no gradients?) once, not for every batch.
        # With three classes it warns of a targeted loss that attacks_for has replaced.
        doubts = logging.WARNING if batch.start == 0 and classes > 3 else logging.ERROR
        logging.getLogger("auto-attack").setLevel(doubts)
        with torch.random.fork_rng([images.device] if images.is_cuda else []):
            adversary = _adversary(frozen, classes, radii[i], seed, images.device)
            _attack_batch(
                adversary,
                images[batch],
                labels[batch],
                rows[batch],
                certificates[batch],
                audited[i, batch],
                radii[: i + 1],
            )
        if state is not None:
            write_json(state, {"identity": same, "rows": rows})
    return rows


def _sample(certificates: Tensor, radii: Sequence[float], audit: int, seed: int) -> Tensor:
    """Return for each radius, ``(radii, n)``, which of the images certified there are attacked all the same."""
    order = torch.randperm(len(certificates), generator=torch.Generator().manual_seed(seed))
    certified = torch.stack([certificates[order] > eps * ROUNDING for eps in radii])
    return (certified & (certified.cumsum(1) <= audit))[:, order.argsort()]


def _predictions(network: nn.Module, images: Tensor) -> list[int]:
    with torch.no_grad():
        logits = network(images)
    if not torch.isfinite(logits).all():
        raise ValueError("autoattack takes a network with finite logits, got NaN or infinity")
    return logits.argmax(1).tolist()


def _attack_batch(
    adversary: Any,
    images: Tensor,
    labels: Tensor,
    rows: list[dict[str, Any]],
    certificates: Tensor,
    audited: Tensor,
    radii: Sequence[float],
) -> None:
    """Attack at the last of the radii, those before it done, and write the answers into the rows."""
    *smaller, eps = radii
    last = f"attacked@{smaller[-1]:.6g}" if smaller else "prediction"
    prediction, attacked = (torch.tensor([row[answer] for row in rows]) for answer in ("prediction", last))
    true = labels.cpu()
    robust = attacked == true
    certified = certificates > eps * ROUNDING
    decisions = np.where(certified, np.where(audited, "audit", "certificate"), "attack")
    decisions = np.where(robust, decisions, "smaller radius")
    decisions = np.where(prediction == true, decisions, "prediction")
    alive = (robust & (audited | ~certified)).nonzero().squeeze(1).to(images.device)
    if len(alive):
        adversarial, answers = adversary.run_standard_evaluation(images[alive], labels[alive], batch_size=len(alive))
        distance = (adversarial - images[alive]).double().flatten(1).norm(dim=1)
        attacked[alive.cpu()] = torch.where(distance <= eps * ROUNDING, answers, labels[alive]).cpu()
    for row, answer, certificate, decision in zip(rows, attacked.tolist(), certificates, decisions, strict=True):
        if certificate > eps * ROUNDING and answer != row["label"]:
            raise ValueError(
                f"image {row['image']} is certified at {certificate:.6g} and broken at {eps:.6g}: predicted as "
                f"{answer}, not {row['label']}; the bound or the margins behind the certificate are wrong"
            )
        row[f"robust@{eps:.6g}"] = int(answer == row["label"])
        row[f"attacked@{eps:.6g}"] = answer
        row[f"decided_by@{eps:.6g}"] = str(decision)


def _adversary(network: nn.Module, classes: int, eps: float, seed: int, device: torch.device) -> Any:
    from pyautoattack.autoattack import AutoAttack

    adversary = AutoAttack(network, norm="L2", eps=eps, seed=seed, version="standard", device=device)
    attacks, targets = attacks_for(classes)
    adversary.attacks_to_run = list(attacks)
    adversary.apgd_targeted.n_target_classes = adversary.fab.n_target_classes = targets
    return adversary
