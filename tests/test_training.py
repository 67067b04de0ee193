"""Training learns, repeats itself bit by bit, survives interruptions, and refuses what it can't do."""

import os
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lbdn.training
from lbdn.data import Dataset
from lbdn.data.sources import digits, square_wave
from lbdn.layers import SandwichFc, SandwichLin
from lbdn.schedules import piecewise_triangular
from lbdn.training import as_input, evaluate, make_loss, on_device, predict, train

ROOT = Path(__file__).parents[1]
EPOCHS = 4
IDENTITY = {"seed": 5, "loss": {"name": "cross-entropy"}}


def small_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), SandwichFc(64, 24, scale=3.0), SandwichLin(24, 10, scale=3.0))


def train_digits(network: nn.Module, **changes) -> list[dict[str, float]]:
    settings = {
        "loss": {"name": "cross-entropy"},
        "epochs": EPOCHS,
        "batch_size": 64,
        "learning_rate": 0.02,
        "augmentation": "crop-flip-jitter",
        "seed": 5,
    }
    return train(network, digits(), **(settings | changes))


def weights(network: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


class Interruption(Exception):
    pass


def interrupt_after(epoch: int):
    def hook(row, seconds):
        if row["epoch"] == epoch:
            raise Interruption

    return hook


@pytest.fixture(autouse=True)
def _a_checkpoint_after_each_epoch(monkeypatch):
    monkeypatch.setattr(lbdn.training, "CHECKPOINT_SECONDS", 0.0)


@pytest.fixture(scope="module")
def uninterrupted():
    torch.set_num_threads(1)
    network = small_network()
    history = train_digits(network)
    return weights(network), history


def test_a_small_network_learns_digits():
    network = small_network()
    history = train_digits(network, augmentation="none", epochs=6)
    assert [row["epoch"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1]["test_accuracy"] > 0.85
    assert history[-1]["train_loss"] < history[0]["train_loss"] / 2
    assert not network.training


def test_a_regression_is_learnt_and_has_no_accuracy():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1))
    history = train(
        network, square_wave(), loss={"name": "mse"}, epochs=20, batch_size=50, learning_rate=0.02, seed=0
    )  # fmt: skip
    assert history[-1].keys() == {"epoch", "learning_rate", "train_loss", "test_loss"}
    assert history[-1]["test_loss"] < 0.24  # a constant has 0.25


def test_the_last_row_is_what_the_network_scores(uninterrupted):
    dataset = digits()
    network = small_network()
    nn.utils.vector_to_parameters(uninterrupted[0], network.parameters())
    with torch.no_grad():
        logits = network(torch.tensor(dataset.test_inputs) / 255)
    accuracy = (logits.argmax(1).numpy() == dataset.test_targets).mean()
    assert uninterrupted[1][-1]["test_accuracy"] == accuracy
    loss = nn.functional.cross_entropy(logits, torch.tensor(dataset.test_targets)).item()
    assert uninterrupted[1][-1]["test_loss"] == pytest.approx(loss, rel=1e-5)


def test_the_training_score_is_the_mean_over_samples_also_with_a_short_last_batch():
    dataset, network = digits(), small_network()
    with torch.no_grad():
        logits = network(torch.tensor(dataset.train_inputs) / 255)
    row = train_digits(network, augmentation="none", learning_rate=1e-12, batch_size=1000, epochs=1)[0]
    loss = nn.functional.cross_entropy(logits, torch.tensor(dataset.train_targets)).item()
    assert row["train_loss"] == pytest.approx(loss, rel=1e-4)
    assert row["train_accuracy"] == pytest.approx((logits.argmax(1).numpy() == dataset.train_targets).mean(), abs=2e-3)


def test_the_same_seed_gives_the_same_bits(uninterrupted):
    network = small_network()
    history = train_digits(network)
    assert torch.equal(weights(network), uninterrupted[0])
    assert history == uninterrupted[1]


def test_another_seed_gives_another_training(uninterrupted):
    network = small_network()
    assert train_digits(network, seed=6) != uninterrupted[1]
    assert not torch.equal(weights(network), uninterrupted[0])


@pytest.mark.parametrize("augmentation", ["none", "crop-flip-jitter"])
def test_training_neither_reads_nor_moves_the_global_random_state(augmentation):
    results = []
    for state in (1, 2):
        network = small_network()
        torch.manual_seed(state)
        before = torch.get_rng_state()
        train_digits(network, epochs=1, augmentation=augmentation)
        assert torch.equal(torch.get_rng_state(), before)
        results.append(weights(network))
    assert torch.equal(*results)


@pytest.mark.parametrize("epoch", [1, 3])
def test_an_interrupted_training_goes_on_and_ends_the_same_bit_by_bit(tmp_path, uninterrupted, epoch):
    checkpoint = tmp_path / "checkpoint.pt"
    with pytest.raises(Interruption):
        train_digits(small_network(), checkpoint=checkpoint, identity=IDENTITY, on_epoch=interrupt_after(epoch))
    network, seen = small_network(seed=9), []
    history = train_digits(
        network, checkpoint=str(checkpoint), identity=IDENTITY, on_epoch=lambda row, _: seen.append(row)
    )
    assert torch.equal(weights(network), uninterrupted[0])
    assert history == seen == uninterrupted[1]


def test_a_killed_training_goes_on_and_ends_the_same_bit_by_bit(tmp_path, uninterrupted):
    checkpoint = tmp_path / "checkpoint.pt"
    script = (
        "import os, signal, sys; from pathlib import Path; import torch, lbdn.training; torch.set_num_threads(1)\n"
        "lbdn.training.CHECKPOINT_SECONDS = 0.0\n"
        "from tests.test_training import IDENTITY, small_network, train_digits\n"
        "def kill(row, seconds):\n"
        "    if row['epoch'] == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "train_digits(small_network(), checkpoint=Path(sys.argv[1]), identity=IDENTITY, on_epoch=kill)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, checkpoint], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    network, epochs = small_network(), []
    history = train_digits(
        network, checkpoint=checkpoint, identity=IDENTITY, on_epoch=lambda row, _: epochs.append(row["epoch"])
    )
    assert epochs == [1, 2, 3, 4]
    assert torch.equal(weights(network), uninterrupted[0])
    assert history == uninterrupted[1]


def test_checkpoints_are_written_every_few_seconds_and_at_the_end(tmp_path, monkeypatch, uninterrupted):
    monkeypatch.setattr(lbdn.training, "CHECKPOINT_SECONDS", 60.0)
    clock = iter(range(0, 10_000, 25))  # at every look 25 s later: once an epoch, and after a checkpoint
    monkeypatch.setattr(lbdn.training.time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(lbdn.training.time, "monotonic", lambda: next(clock))
    checkpoint, kept = tmp_path / "checkpoint.pt", []
    hook = lambda *_: kept.append(len(torch.load(checkpoint)["history"]) if checkpoint.exists() else 0)  # noqa: E731
    train_digits(small_network(), checkpoint=checkpoint, identity=IDENTITY, on_epoch=hook)
    assert kept == [0, 0, 3, 4]


def test_a_resumed_training_does_not_repeat_its_finished_epochs(tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    train_digits(small_network(), checkpoint=checkpoint, identity=IDENTITY)
    network, calls = small_network(), []
    network.register_forward_pre_hook(lambda *_: calls.append(1))
    history = train_digits(network, checkpoint=checkpoint, identity=IDENTITY)
    assert len(history) == EPOCHS
    assert not calls


@pytest.mark.parametrize("identity", [{**IDENTITY, "seed": 6}, {}, None])
def test_a_checkpoint_of_another_identity_is_ignored(tmp_path, uninterrupted, identity):
    checkpoint = tmp_path / "checkpoint.pt"
    with pytest.raises(Interruption):
        train_digits(
            small_network(), learning_rate=0.5, checkpoint=checkpoint, identity=identity, on_epoch=interrupt_after(2)
        )  # fmt: skip
    network = small_network()
    assert train_digits(network, checkpoint=checkpoint, identity=IDENTITY) == uninterrupted[1]
    assert torch.equal(weights(network), uninterrupted[0])


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04"])
def test_a_damaged_checkpoint_is_an_error_that_names_it(tmp_path, content):
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint\.pt"):
        train_digits(small_network(), checkpoint=checkpoint, identity=IDENTITY)


@pytest.mark.parametrize("batch_size", [64, 500, 1437])
def test_the_learning_rate_of_an_epoch_is_the_schedules_at_its_end(batch_size):
    history = train_digits(small_network(), batch_size=batch_size)
    for row in history:
        assert row["learning_rate"] == pytest.approx(piecewise_triangular(row["epoch"] / EPOCHS, 0.02), abs=1e-15)


def test_every_sample_is_seen_once_an_epoch_in_training_mode_and_tests_in_evaluation_mode():
    inputs = np.arange(10, dtype=np.float32)[:, None]
    dataset = Dataset(inputs, inputs, inputs, inputs, classes=[], provenance={})
    seen = []
    network = nn.Linear(1, 1).eval()
    network.register_forward_pre_hook(lambda module, args: seen.append((module.training, args[0].flatten().tolist())))
    train(network, dataset, loss={"name": "mse"}, epochs=2, batch_size=4, learning_rate=0.01, seed=0)
    assert [(training, len(batch)) for training, batch in seen] == [(True, 4), (True, 4), (True, 2), (False, 10)] * 2
    batches = [batch for training, batch in seen if training]
    first, second = list(chain(*batches[:3])), list(chain(*batches[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 1438}, "1 to the 1437 training samples, got 1438"),
        ({"batch_size": 0}, "got 0"),
        ({"loss": {"name": "hinge"}}, "no loss 'hinge'"),
        ({"loss": {"name": "cross-entropy", "heat": 1}}, "heat"),
        ({"augmentation": "rotation"}, "no augmentation 'rotation'.*none, crop-flip-jitter"),
    ],
)
def test_what_cannot_be_trained_is_an_error_before_anything_happens(tmp_path, changes, message):
    network = small_network()
    with pytest.raises(ValueError, match=message):
        train_digits(network, checkpoint=tmp_path / "checkpoint.pt", **changes)
    assert torch.equal(weights(network), weights(small_network()))
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_explodes_is_an_error_and_the_earlier_checkpoint_stays(tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    with pytest.raises(Interruption):
        train_digits(small_network(), checkpoint=checkpoint, identity=IDENTITY, on_epoch=interrupt_after(1))
    before = checkpoint.read_bytes()
    with pytest.raises(ValueError, match=r"epoch 2; lower learning_rate") as caught:
        train_digits(small_network(), learning_rate=1e38, checkpoint=checkpoint, identity=IDENTITY)
    assert str(checkpoint) in str(caught.value)
    assert checkpoint.read_bytes() == before
    assert len(train_digits(small_network(), checkpoint=checkpoint, identity=IDENTITY)) == EPOCHS


def test_data_with_nan_are_an_error():
    wave = square_wave()
    wave.train_inputs[7] = np.nan
    with pytest.raises(ValueError, match=r"nan.*epoch 1.*check the data"):
        train(nn.Linear(1, 1), wave, loss={"name": "mse"}, epochs=2, batch_size=50, learning_rate=0.01, seed=0)


def test_predictions_are_those_of_evaluation_mode_whatever_the_batches():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).train()
    pixels = on_device(digits().test_inputs, "cpu")
    expected = network[2](pixels.flatten(1) / 255)
    torch.testing.assert_close(predict(network, pixels, batch_size=7), expected.detach())
    assert network.training
    result = evaluate(network, pixels, on_device(digits().test_targets, "cpu"), make_loss({"name": "cross-entropy"}))
    assert result["accuracy"] == (expected.argmax(1).numpy() == digits().test_targets).mean()


def test_pixels_become_fractions_and_floats_stay():
    assert torch.equal(as_input(torch.tensor([0, 51, 255], dtype=torch.uint8)), torch.tensor([0, 0.2, 1]))
    floats = torch.tensor([-2.0, 300.0])
    assert torch.equal(as_input(floats), floats)
