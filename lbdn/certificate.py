"""Certificates: claims about a trained network that ``python -m lbdn.verify`` checks, in a file beside its weights."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lbdn.bounds import SoundNetwork, lmi_certificate
from lbdn.bounds.enclosure import unit_roundoff
from lbdn.bounds.rounding import Step
from lbdn.explicit import explicit
from lbdn.files import write_json
from lbdn.layers import LastLayerNormalization
from lbdn.networks import Network
from lbdn.runs import weights_digest
from lbdn.verify.certificate import REAL, UPWARD, VERSION, seal

ASSUMPTIONS = [
    "the layers listed are those of the network, at the image sizes listed",
    "activations act on each unit alone, with slopes in [0, 1]",
    "distances are l2, from pixels or from normalised input",
    "operators are rounded once, to within 2 units of roundoff of the real ones",
    "gamma is the bound in real arithmetic, gamma_rounded that of the rounded operators, both from normalised input",
]
NORMALIZED_ROWS = (
    "the last layer normalises its rows: gamma and gamma_rounded bound the map to all outputs, each_output each output "
    "alone, and the difference of two outputs is bounded by that times the distance of their rows, over the longest row"
)
ROOM = 4  # units of roundoff, and a quarter of a constant's excess: another machine's last digits have to prove it, too


def write_certificate(run: str | Path, network: Network, sound: SoundNetwork) -> dict[str, Any]:
    """Write a run's ``certificate.json``; return its contents.

    Args:
        run: the folder with the network's weights.
        network: as the run's folder describes it.
        sound: the same as it runs.

    Raises:
        ValueError: for a network without a bound.
    """
    if network.gamma is None:
        raise ValueError("a network without a Lipschitz bound can't be certified; it takes one from a bounded family")
    form = explicit(network)
    proved = lmi_certificate(form) if form is not None and form.multipliers else None
    multipliers = None if proved is None else [m.tolist() for m in proved.multipliers or []]
    own = [step for step in sound.steps if step.name.startswith("body.")]
    layers = [_claim(step, network.get_submodule(step.name), sound.dtype) for step in own]
    real = [layer.get("norm", layer["scale"] * REAL) for layer in layers]
    content = {
        "version": VERSION,
        "weights_sha256": weights_digest(run),
        "precision": str(sound.dtype).removeprefix("torch."),
        "layers": layers,
        "gamma": math.prod(real) if proved is None else proved.gamma,
        "multipliers": multipliers,
        "gamma_rounded": math.prod(layer["constant"] for layer in layers) * UPWARD**2,
        "assumptions": ASSUMPTIONS,
    }
    if isinstance(network.body[-1], LastLayerNormalization):
        row = layers[-1]["scale"] * REAL
        rounded = row * (1 + ROOM * unit_roundoff(sound.dtype))
        content["each_output"] = {
            "gamma": math.prod([*real[:-1], row]),
            "gamma_rounded": math.prod([*(layer["constant"] for layer in layers[:-1]), rounded]),
        }
        content["assumptions"] = [*ASSUMPTIONS, NORMALIZED_ROWS]
    write_json(Path(run) / "certificate.json", content | {"sha256": seal(content)})
    return content


def _claim(step: Step, layer: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """Return what is claimed of a layer: its bound is its scale or, for rows of norm one, the norm of all together."""
    scale = float(getattr(layer, "scale", 1.0))
    claim = {"name": step.name, "type": type(layer).__name__, "scale": scale}
    bound = scale
    if isinstance(layer, LastLayerNormalization):
        bound = float(torch.linalg.matrix_norm(copy.deepcopy(layer).double().operators()[0].detach(), 2))
        claim["norm"] = bound * REAL
    room = max((step.lipschitz - bound) / 4, ROOM * unit_roundoff(dtype) * bound)
    claim["constant"] = step.lipschitz + (room if list(layer.parameters()) else 0.0)
    return claim | ({"size": list(step.size)} if step.size else {})


def write_no_certificate(run: str | Path, reason: str) -> None:
    """Write a ``certificate.json`` that says why nothing is claimed about a run's network."""
    content = {"version": VERSION, "weights_sha256": weights_digest(run), "not_covered": reason}
    write_json(Path(run) / "certificate.json", content | {"sha256": seal(content)})
