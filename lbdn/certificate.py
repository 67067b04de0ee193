"""Certificates: claims about a trained network that ``python -m lbdn.verify`` checks, in a file beside its weights."""

import math
from pathlib import Path
from typing import Any

from lbdn.bounds import SoundNetwork, lmi_certificate
from lbdn.bounds.enclosure import unit_roundoff
from lbdn.explicit import explicit
from lbdn.files import write_json
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
ROOM = 4  # units of roundoff, and a quarter of a constant's excess: another machine's last digits have to prove it, too


def write_certificate(run: Path, network: Network, sound: SoundNetwork) -> dict[str, Any]:
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
    layers: list[dict[str, Any]] = []
    for step in sound.steps:
        if step.name.startswith("body."):
            layer = network.get_submodule(step.name)
            scale = float(getattr(layer, "scale", 1.0))
            room = max((step.lipschitz - scale) / 4, ROOM * unit_roundoff(sound.dtype) * scale)
            constant = step.lipschitz + (room if list(layer.parameters()) else 0.0)
            claim = {"name": step.name, "type": type(layer).__name__, "scale": scale, "constant": constant}
            layers.append(claim | ({"size": list(step.size)} if step.size else {}))
    gamma = math.prod(layer["scale"] * REAL for layer in layers) if proved is None else proved.gamma
    content = {
        "version": VERSION,
        "weights_sha256": weights_digest(run),
        "precision": str(sound.dtype).removeprefix("torch."),
        "layers": layers,
        "gamma": gamma,
        "multipliers": multipliers,
        "gamma_rounded": math.prod(layer["constant"] for layer in layers) * UPWARD**2,
        "assumptions": ASSUMPTIONS,
    }
    write_json(run / "certificate.json", content | {"sha256": seal(content)})
    return content


def write_no_certificate(run: Path, reason: str) -> None:
    """Write a ``certificate.json`` that says why nothing is claimed about a run's network."""
    content = {"version": VERSION, "weights_sha256": weights_digest(run), "not_covered": reason}
    write_json(run / "certificate.json", content | {"sha256": seal(content)})
