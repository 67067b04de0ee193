"""Networks of RobustNeuralNetworks.jl, the authors' Julia toolbox, read from the files that BSON.jl saves, and written.

A saved model is a dictionary with one Flux ``Chain``: a ``DiffLBDN`` in Float32 with ReLU, then perhaps a softmax. Its
direct parameters are those of Sandwich layers: ``XY`` the stacked [X; Y], ``α`` its gain, ``d`` the logarithm of Psi,
``b`` the biases, and the logarithm of gamma.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lbdn.files import whole
from lbdn.layers import SandwichFc, SandwichLin
from lbdn.networks import Network


def read_lbdn(path: str | Path) -> Network:
    """Return the network of a file that RobustNeuralNetworks.jl's users save by BSON.jl, in evaluation mode.

    It takes batches of vectors or of images, which are flattened row by row as MLDatasets.jl's columns are; a softmax
    at its end is left out, since the bound is one of the logits.

    Raises:
        ModuleNotFoundError: without the package pymongo, naming the extra to install.
        FileNotFoundError: if there is no such file.
        ValueError: if the file holds something else.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no {path.resolve()}; save a model there by `BSON.@save` in Julia")
    bson = _bson()
    try:
        document = bson.decode(path.read_bytes())
        direct = _find(document, document.get("_backrefs", []), "DirectLBDNParams")
        stacked, gains, logarithms, biases = ([_array(a) for a in entry["data"]] for entry in direct[:4])
        gamma = math.exp(_array(direct[4]).item())
    except Exception as error:  # whatever the decoder and a document of another kind raise
        raise ValueError(f"{path} holds no DiffLBDN of RobustNeuralNetworks.jl ({error!r})") from error
    layers: list[nn.Module] = [nn.Flatten()]
    for k, matrix in enumerate(stacked):
        q, last = matrix.shape[1], k == len(stacked) - 1
        scale = math.sqrt(gamma) if k == 0 or last else 1.0
        layer = (SandwichLin if last else SandwichFc)(len(matrix) - q, q, scale=scale)
        state = {"stacked": matrix, "gain": gains[k].squeeze(), "bias": biases[k]}
        layer.load_state_dict(state if last else state | {"log_psi": logarithms[k]})
        layers.append(layer)
    return Network(layers, outputs=stacked[-1].shape[1], gamma=gamma).eval()


def write_lbdn(network: Network, path: str | Path) -> None:
    """Write a fully connected Sandwich network with ReLU as RobustNeuralNetworks.jl's users save one, without softmax.

    Raises:
        ModuleNotFoundError: without the package pymongo, naming the extra to install.
        ValueError: for a network that isn't one of Sandwich layers with biases and ReLU, that normalises its input, or
            whose layers have other scales than the root of gamma at both ends, which is all that the file holds.
    """
    bson = _bson()
    inner = [layer for layer in network.body if isinstance(layer, SandwichFc) and isinstance(layer.activation, nn.ReLU)]
    outer = [layer for layer in network.body if isinstance(layer, SandwichLin)]
    layers: list[SandwichFc | SandwichLin] = [*inner, *outer]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    in_order = [layer for layer in network.body if not isinstance(layer, nn.Flatten)] == layers
    if network.gamma is None or network.normalization is not None or not (in_order and len(layers) == len(biases) > 1):
        raise ValueError("write_lbdn takes Sandwich layers with biases and ReLU, without normalisation of the input")
    root = math.sqrt(network.gamma)
    if len(outer) != 1 or not np.allclose([layer.scale for layer in layers], [root, *[1.0] * (len(inner) - 1), root]):
        raise ValueError(
            "write_lbdn takes one SandwichLin at the end, and the root of gamma on the first and last layer"
        )
    integer = bson.int64.Int64
    sizes = [
        integer(layers[0].inputs),
        _tuple([integer(layer.outputs) for layer in inner]),
        integer(layers[-1].outputs),
    ]
    count = [_type("Core", "Float32"), integer(len(layers)), integer(len(inner))]
    relu = _struct(_type("NNlib", "#relu"), [])
    direct = [
        _tuple([_document(layer.stacked) for layer in layers]),
        _tuple([_document(layer.gain[None]) for layer in layers]),
        _tuple([_document(layer.log_psi) for layer in inner]),
        _tuple([_document(bias) for bias in biases]),
        _document(torch.tensor([math.log(network.gamma)])),
        False,
    ]
    parameters = _struct(_type("RobustNeuralNetworks", "DirectLBDNParams", *count), direct)
    few = [count[0], count[2]]
    dense = _struct(_type("RobustNeuralNetworks", "DenseLBDNParams", *few), [relu, *sizes, parameters])
    kind = _type("RobustNeuralNetworks", "DiffLBDN", *few)
    chain = _type("Flux", "Chain", _type("Core", "Tuple", kind))
    model = _struct(chain, [_tuple([_struct(kind, [relu, *sizes, dense])])])
    dictionary = _type("Main", "Base", "Dict", parameters=[_type("Core", "String"), chain])
    with whole(Path(path)) as temporary:
        temporary.write_bytes(bson.encode(_struct(dictionary, [["model"], [model]])))


def _bson() -> Any:
    try:
        import bson.int64
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("models of Julia's BSON.jl take pymongo: pip install pymongo") from error
    return bson


def _find(value: Any, references: list[Any], name: str) -> Any:
    """Return the data of the first struct of a type, following BSON.jl's references, which count from one."""
    if isinstance(value, list):
        found = (_find(entry, references, name) for entry in value)
        return next((data for data in found if data is not None), None)
    if not isinstance(value, dict):
        return None
    if value.get("tag") == "backref":
        return _find(references[value["ref"] - 1], references, name)
    if value.get("tag") == "struct":
        kind = value["type"]
        kind = references[kind["ref"] - 1] if kind["tag"] == "backref" else kind
        if kind["name"][-1] == name:
            return value["data"]
    return _find(value.get("data"), references, name)


def _array(document: dict[str, Any]) -> Tensor:
    """Return a Float32 array, stored column by column."""
    if document["type"]["name"] != ["Core", "Float32"]:
        raise ValueError(f"takes arrays of Float32, got {document['type']['name'][-1]}")
    return torch.tensor(np.frombuffer(document["data"], np.float32).reshape(document["size"], order="F").copy())


def _document(array: Tensor) -> dict[str, Any]:
    values = array.detach().float().cpu().numpy()
    size = [_bson().int64.Int64(n) for n in values.shape]
    return {"tag": "array", "type": _type("Core", "Float32"), "size": size, "data": values.tobytes(order="F")}


def _type(*name: Any, parameters: list[Any] | None = None) -> dict[str, Any]:
    """Return a Julia data type: its module and name, then its parameters."""
    path = [part for part in name if isinstance(part, str)]
    return {"tag": "datatype", "params": parameters or [p for p in name if not isinstance(p, str)], "name": path}


def _struct(kind: dict[str, Any], data: list[Any]) -> dict[str, Any]:
    return {"tag": "struct", "type": kind, "data": data}


def _tuple(data: list[Any]) -> dict[str, Any]:
    return {"tag": "tuple", "data": data}
