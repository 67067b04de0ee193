"""Whole pieces of work: a toy model's training, an epoch with its loader, certification."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.layers import random_batch
from bench.measure import seconds, spread
from lbdn.certify import certified_radius
from lbdn.data.augmentation import crop_flip_jitter
from lbdn.data.prepared import Dataset
from lbdn.data.sources import square_wave
from lbdn.inference import as_input, on_device, predict
from lbdn.networks import build_network
from lbdn.training import train

CIFAR_IMAGES = 50_000


def measure_toy(families: Sequence[str], *, epochs: int = 200, device: torch.device) -> list[dict[str, Any]]:
    """Return a row a family: the seconds that a model of the paper's toy example takes to train."""
    dataset = square_wave(train_samples=300, test_samples=200, seed=0)
    settings: dict[str, Any] = {"loss": {"name": "mse"}, "batch_size": 50, "learning_rate": 0.01, "seed": 0}
    rows = []
    for family in families:
        torch.manual_seed(0)
        network = build_network("toy", family, input_shape=(1,), outputs=1)
        taken = seconds(partial(train, network, dataset, epochs=epochs, device=device, **settings), device)
        rows.append({"family": family, "epochs": epochs, "seconds": taken})
    return rows


def measure_epoch(
    families: Sequence[str], *, batch: int, batches: int = 4, repetitions: int = 2, device: torch.device
) -> list[dict[str, Any]]:
    """Return a row a family: an epoch of CIFAR-100 with augmentation, and the share of it that the loader takes.

    Of ``batches`` batches of random images, scaled to the size of CIFAR-100. The loader is all between the arrays and
    the network: choosing by index, conversion to floats, augmentation.
    """
    count = batch * batches
    generator = np.random.default_rng(0)
    images = generator.integers(256, size=(count, 3, 32, 32), dtype=np.uint8)
    labels = generator.integers(100, size=count)
    dataset = Dataset(images, labels, images[:1], labels[:1], [str(i) for i in range(100)], {})
    inputs = on_device(images, device)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(device)

    def load() -> None:
        draws = torch.Generator().manual_seed(0)
        for chosen in order.split(batch):
            crop_flip_jitter(as_input(inputs[chosen]), draws)

    load()
    loader = spread([seconds(load, device) for _ in range(repetitions)]).median
    rows = []
    for family in families:
        torch.manual_seed(0)
        network = build_network("kwlarge", family, input_shape=(3, 32, 32), outputs=100)
        times: list[float] = []
        train(
            network,
            dataset,
            loss={"name": "cross-entropy"},
            epochs=repetitions + 1,
            batch_size=batch,
            learning_rate=0.001,
            augmentation="crop-flip-jitter",
            seed=0,
            device=device,
            on_epoch=partial(_note, times),
        )
        epoch = spread(times[1:]).median  # without the first, which warms up
        rows.append({"family": family, "epoch": epoch * CIFAR_IMAGES / count, "loader_share": loader / epoch})
    return rows


def measure_certification(
    families: Sequence[str], *, images: int = 1000, batch: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return a row a bounded family: the seconds to predict images and to certify them, on KWLarge small."""
    rows = []
    for family in families:
        torch.manual_seed(0)
        network = build_network("kwlarge", family, input_shape=(3, 32, 32), outputs=100).to(device)
        bound = network.pair_gamma()
        if bound is None:
            continue
        x, y = random_batch(images, (3, 32, 32), 100, device)
        predict(network, x[:batch], batch)
        work = partial(predict, network, x, batch)
        logits = work()
        row = {"family": family, "images": images, "predict": seconds(work, device)}
        rows.append(row | {"certify": seconds(partial(certified_radius, logits, y, bound), device)})
    return rows


def _note(times: list[float], _row: dict[str, float], taken: float | None) -> None:
    if taken is not None:
        times.append(taken)
