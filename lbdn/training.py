"""Training that can be killed: it goes on from its last checkpoint and ends the same."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from lbdn.data.augmentation import find_augmentation
from lbdn.data.prepared import Dataset
from lbdn.files import whole
from lbdn.inference import as_input, on_device, predict
from lbdn.losses import LOSSES, Loss
from lbdn.schedules import piecewise_triangular

EpochHook = Callable[[dict[str, float], float | None], None]
CHECKPOINT_SECONDS = 5.0  # between two checkpoints: what an interruption costs at most, besides an epoch


def train(
    network: nn.Module,
    dataset: Dataset,
    *,
    loss: Mapping[str, Any],
    epochs: int,
    batch_size: int,
    learning_rate: float,
    augmentation: str = "none",
    seed: int,
    device: torch.device | str = "cpu",
    checkpoint: str | Path | None = None,
    identity: Mapping[str, Any] | None = None,
    on_epoch: EpochHook | None = None,
) -> list[dict[str, float]]:
    """Train a network in place with Adam and the piecewise triangular schedule; return a row an epoch.

    What an epoch does depends on the seed and its number alone. With a checkpoint file, the state after the last
    epoch, and every few seconds that after the epoch just finished, is kept there. A later call with the same
    ``identity`` goes on from it; on a CPU the result is the same, bit for bit, as without the interruption.

    Args:
        network: on pixels in [0, 1] for images, on the raw inputs for regression.
        dataset: to learn, and to measure after each epoch.
        loss: ``{"name": ..., options}``, a key of ``lbdn.losses.LOSSES`` and its arguments.
        epochs: passes over the training half.
        batch_size: at most the size of the training half.
        learning_rate: the maximum of the schedule.
        augmentation: a key of ``lbdn.data.augmentation.AUGMENTATIONS``.
        seed: of the order of the samples and of the augmentation; not of the network's initial values.
        device: to train on; the network is moved there.
        checkpoint: a file, or None.
        identity: what makes this training the same as an interrupted one.
        on_epoch: called with each row and the seconds that the epoch's training took, without its evaluation; with
            None for epochs that were finished before.

    Returns:
        Rows with ``epoch``, ``learning_rate``, ``train_loss``, ``test_loss`` and, for a classifier,
        ``train_accuracy`` and ``test_accuracy`` (fractions).

    Raises:
        ValueError: for a batch larger than the data, an unknown name, or a loss that becomes infinite or NaN.
    """
    checkpoint = None if checkpoint is None else Path(checkpoint)
    if not 1 <= batch_size <= len(dataset.train_inputs):
        raise ValueError(f"batch_size takes 1 to the {len(dataset.train_inputs)} training samples, got {batch_size}")
    criterion = make_loss(loss)
    if (loss["name"] == "mse") == dataset.is_classification:
        what = "labels" if dataset.is_classification else "numbers"
        raise ValueError(
            f"loss {loss['name']!r} doesn't fit targets that are {what}; choose another of {', '.join(LOSSES)}"
        )
    augment = find_augmentation(augmentation)
    device = torch.device(device)
    network.to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.0, fused=True)
    history = _restore(checkpoint, identity, network, optimizer)
    for row in history:
        if on_epoch is not None:
            on_epoch(row, None)
    inputs, targets = on_device(dataset.train_inputs, device), on_device(dataset.train_targets, device)
    held_out = on_device(dataset.test_inputs, device), on_device(dataset.test_targets, device)
    steps = math.ceil(len(inputs) / batch_size)
    progress = tqdm(range(len(history), epochs), "epochs", epochs, initial=len(history), disable=None)
    saved = time.monotonic()
    for epoch in progress:
        network.train()
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(inputs), generator=generator).to(device)
        start = time.perf_counter()
        total, correct = torch.zeros((), device=device), torch.zeros((), device=device)
        for step, chosen in enumerate(order.split(batch_size)):
            rate = piecewise_triangular((epoch + (step + 1) / steps) / epochs, learning_rate)
            optimizer.param_groups[0]["lr"] = rate
            x, y = as_input(inputs[chosen]), targets[chosen]
            outputs = network(x if augment is None else augment(x, generator))
            value = criterion(outputs, y)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            total += value.detach() * len(x)
            if dataset.is_classification:
                correct += (outputs.detach().argmax(1) == y).sum()
        row = {"epoch": epoch + 1, "learning_rate": rate, "train_loss": total.item() / len(inputs)}
        if dataset.is_classification:
            row["train_accuracy"] = correct.item() / len(inputs)
        seconds = time.perf_counter() - start
        row |= {f"test_{name}": x for name, x in evaluate(network, *held_out, criterion).items()}
        if not all(math.isfinite(x) for x in row.values()):
            raise ValueError(
                f"the loss became {row['train_loss']} (test {row['test_loss']}) in epoch {epoch + 1}; lower "
                f"learning_rate (now {learning_rate}) or check the data"
                + (f"; the last checkpoint is kept in {checkpoint}" if checkpoint and checkpoint.exists() else "")
            )
        history.append(row)
        progress.set_postfix_str(f"train loss {row['train_loss']:.4f}, test loss {row['test_loss']:.4f}")
        if checkpoint is not None and (epoch + 1 == epochs or time.monotonic() - saved >= CHECKPOINT_SECONDS):
            state = {"identity": dict(identity or {}), "history": history, "network": network.state_dict()}
            with whole(checkpoint) as temporary:
                torch.save(state | {"optimizer": optimizer.state_dict()}, temporary)
            saved = time.monotonic()
        if on_epoch is not None:
            on_epoch(row, seconds)
    network.eval()
    return history


def make_loss(loss: Mapping[str, Any]) -> Loss:
    """Return the loss that ``{"name": ..., options}`` describes.

    Raises:
        ValueError: for an unknown name or option.
    """
    options = dict(loss)
    name = options.pop("name", None)
    if name not in LOSSES:
        raise ValueError(f"no loss {name!r}; there are {', '.join(LOSSES)}")
    try:
        return LOSSES[name](**options)
    except TypeError as error:
        raise ValueError(f"loss {name!r} doesn't take the options {options}: {error}") from error


@torch.no_grad()
def evaluate(network: nn.Module, inputs: Tensor, targets: Tensor, criterion: Loss) -> dict[str, float]:
    """Return the mean ``loss`` and, for labels, the ``accuracy`` (a fraction) over a data set."""
    outputs = predict(network, inputs)
    result = {"loss": criterion(outputs, targets).item()}
    if targets.dtype == torch.int64:
        result["accuracy"] = (outputs.argmax(1) == targets).double().mean().item()
    return result


def _restore(
    checkpoint: Path | None,
    identity: Mapping[str, Any] | None,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> list[dict[str, float]]:
    if checkpoint is None or not checkpoint.exists():
        return []
    device = next(network.parameters()).device
    try:
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        same = state["identity"] == dict(identity or {})
    except Exception as error:  # whatever the unpickler raises
        raise ValueError(f"{checkpoint} is damaged ({error}); delete it to train from the start") from error
    if not same:
        return []
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    return state["history"]
