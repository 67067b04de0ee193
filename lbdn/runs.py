"""Run folders: one trained model each, with all that it takes to rebuild the network."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lbdn.files import read_json, whole, write_json
from lbdn.networks import Network, build_network


def seeded_network(seed: int, **arguments: Any) -> Network:
    """Return ``build_network(**arguments)`` with initial values from a seed; the global random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_network(**arguments)


def save_run(folder: str | Path, network: Network, description: Mapping[str, Any]) -> None:
    """Write a run's ``weights.pt`` (plain tensors) and ``run.json``.

    ``description["network"]`` holds the arguments of ``build_network``.
    """
    folder = Path(folder)
    weights = {name: tensor.cpu() for name, tensor in network.state_dict().items()}
    with whole(folder / "weights.pt") as temporary:
        save_tensors(weights, temporary)
    write_json(folder / "run.json", dict(description))


def save_tensors(state: Mapping[str, Any], path: Path) -> None:
    """Write tensors so that the same tensors give the same file: of a path, ``torch.save`` keeps the name inside."""
    with path.open("wb") as file:
        torch.save(state, file)


def read_description(folder: str | Path) -> dict[str, Any]:
    """Return the contents of a run's ``run.json``.

    Raises:
        FileNotFoundError: if the folder isn't a finished run.
    """
    folder = Path(folder)
    if not (folder / "run.json").exists():
        raise FileNotFoundError(f"no run.json in {folder}: not a finished run; train it first, or `dvc pull` it")
    return read_json(folder / "run.json")


def load_run(folder: str | Path) -> Network:
    """Return the trained network of a run folder, in evaluation mode, on pixels in [0, 1].

    The network's ``pixel_gamma`` is its upper Lipschitz bound, and it is an ordinary ``torch.nn.Module`` for any tool
    that takes logits: AutoAttack, RobustBench's ``benchmark``, an evaluation of your own.

    Raises:
        FileNotFoundError: if the folder isn't a finished run.
        ValueError: if the weights don't fit the description.
    """
    folder = Path(folder)
    description = read_description(folder)
    try:
        network = build_network(**description["network"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'run.json'} doesn't describe a network ({error!r}); train it again") from error
    try:
        weights = torch.load(folder / "weights.pt", map_location="cpu", weights_only=True)
        network.to(next(iter(weights.values())).dtype).load_state_dict(weights)
    except FileNotFoundError:
        raise FileNotFoundError(f"no weights.pt in {folder}; train the run again, or `dvc pull` it") from None
    except Exception as error:
        raise ValueError(
            f"{folder / 'weights.pt'} doesn't hold the weights that run.json describes: {error}"
        ) from error
    return network.eval()


def weights_digest(folder: str | Path) -> str:
    """Return the SHA-256 of a run's weights file: the identity of the trained model."""
    return hashlib.sha256((Path(folder) / "weights.pt").read_bytes()).hexdigest()
