"""Folders of runs with certificates, and certificates that say something else under a new seal."""

import json

import torch

from lbdn import build_network
from lbdn.bounds import SoundNetwork
from lbdn.certificate import write_certificate
from lbdn.runs import save_run
from lbdn.verify.certificate import seal
from tests.oracles import perturb


def certified(folder, family="sandwich", architecture="mlp", shape=(1, 6, 6), *, factor=1.0, **options):
    """The folder; ``factor`` multiplies all parameters."""
    arguments = {"architecture": architecture, "family": family, "input_shape": shape, "outputs": 4}
    arguments |= {"gamma": 2.0, "normalization": ([0.3], [0.4])} | options
    network = perturb(build_network(**arguments), 0.02)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter *= factor
        network.normalization.std.fill_(0.4)
    save_run(folder, network, {"network": arguments})
    write_certificate(folder, network, SoundNetwork(network, torch.zeros(1, *shape)))
    return folder


def contents(folder):
    content = json.loads((folder / "certificate.json").read_text())
    content.pop("sha256")
    return content


def resealed(folder, **changes):
    content = contents(folder) | changes
    (folder / "certificate.json").write_text(json.dumps(content | {"sha256": seal(content)}))
    return folder
