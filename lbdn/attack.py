"""Robust accuracy by AutoAttack (Croce and Hein 2020), its authors' code from the package ``pyautoattack``."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from lbdn.files import read_json, write_json
from lbdn.layers import freeze

STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")


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
    state: Path | None = None,
    identity: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Attack a classifier by AutoAttack, standard version, l2 norm; return a row an image.

    Radii are attacked in ascending order, and an image that is broken at one radius counts as broken at every larger
    one, since the same perturbation is allowed there. Every batch is attacked with the same seed on its own; with a
    state file, finished batches are kept, and a later call with the same arguments goes on after them with the same
    result.

    Args:
        network: on pixels in [0, 1].
        images: ``(n, channels, h, w)`` on [0, 1], on the network's device.
        labels: int64, ``(n,)``.
        eps: radii in pixel units.
        seed: of the attacks.
        batch_size: attacked at once.
        state: a file for finished batches, or None.
        identity: what makes this attack the same as an interrupted one, besides the other arguments.

    Returns:
        Rows with ``image`` (its index), ``label``, ``prediction`` (clean) and, for each radius, ``robust@{eps}`` and
        ``attacked@{eps}``, the prediction under attack.

    Raises:
        ValueError: for images outside [0, 1], images smaller than 5 x 5, a radius that isn't positive and
            finite, fewer than two classes, or logits that aren't finite.
    """
    if not len(images) or not (images.min() >= 0 and images.max() <= 1):
        raise ValueError("autoattack takes at least one image, with pixels in [0, 1]; normalise inside the network")
    if min(images.shape[-2:]) < 5:
        raise ValueError(f"AutoAttack's Square attack takes images of 5 x 5 pixels or more, got {tuple(images.shape)}")
    if not eps or not all(0 < radius < float("inf") for radius in eps):
        raise ValueError(f"eps takes positive, finite radii, got {list(eps)}")
    radii = sorted(eps)
    data = hashlib.sha256(images.cpu().numpy().tobytes() + labels.cpu().numpy().tobytes()).hexdigest()
    same = {"radii": radii, "seed": seed, "batch_size": batch_size, "data": data, "identity": dict(identity or {})}
    rows: list[dict[str, Any]] = []
    if state is not None and state.exists():
        saved = read_json(state)
        rows = saved["rows"] if saved["identity"] == same else []
    frozen = freeze(network)
    starts = range(len(rows), len(images), batch_size)
    for start in tqdm(starts, "AutoAttack, batches", disable=None):
        batch = slice(start, start + batch_size)
        with torch.random.fork_rng([images.device] if images.is_cuda else []):
            rows += _attack_batch(frozen, images[batch], labels[batch], radii, seed, start)
        if state is not None:
            write_json(state, {"identity": same, "rows": rows})
    return rows


def _attack_batch(
    network: nn.Module, images: Tensor, labels: Tensor, radii: Sequence[float], seed: int, first: int
) -> list[dict[str, Any]]:
    with torch.no_grad():
        logits = network(images)
    if not torch.isfinite(logits).all():
        raise ValueError("autoattack takes a network with finite logits, got NaN or infinity")
    prediction = logits.argmax(1)
    robust = prediction == labels
    attacked = prediction.clone()
    rows = [
        {"image": first + i, "label": int(label), "prediction": int(p)}
        for i, (label, p) in enumerate(zip(labels, prediction, strict=True))
    ]
    for eps in radii:
        alive = robust.nonzero().squeeze(1)
        if len(alive):
            # AutoAttack's doubts about the network (random? no gradients?) once, not for every batch.
            # With three classes it warns of a targeted loss that attacks_for has replaced.
            doubts = logging.WARNING if first == 0 and logits.shape[1] > 3 else logging.ERROR
            logging.getLogger("auto-attack").setLevel(doubts)
            adversary = _adversary(network, logits.shape[1], eps, seed, images.device)
            adversarial, answers = adversary.run_standard_evaluation(
                images[alive], labels[alive], batch_size=len(alive)
            )
            distance = (adversarial - images[alive]).double().flatten(1).norm(dim=1)
            answers = torch.where(distance <= eps * (1 + 1e-5), answers, labels[alive])
            attacked[alive] = answers
            robust = attacked == labels
        for row, flag, answer in zip(rows, robust.tolist(), attacked.tolist(), strict=True):
            row[f"robust@{eps:.6g}"] = int(flag)
            row[f"attacked@{eps:.6g}"] = answer
    return rows


def _adversary(network: nn.Module, classes: int, eps: float, seed: int, device: torch.device) -> Any:
    from pyautoattack.autoattack import AutoAttack

    adversary = AutoAttack(network, norm="L2", eps=eps, seed=seed, version="standard", device=device)
    attacks, targets = attacks_for(classes)
    adversary.attacks_to_run = list(attacks)
    adversary.apgd_targeted.n_target_classes = adversary.fab.n_target_classes = targets
    return adversary
