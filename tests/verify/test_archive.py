"""The reader of saved tensors, against PyTorch's own, and against files that aren't what they should be."""

import pickle
import zipfile
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from lbdn.verify.archive import read_tensors


def saved(folder, state):
    torch.save(state, folder / "weights.pt")
    return folder / "weights.pt"


def test_tensors_are_read_as_pytorch_has_them(tmp_path):
    base = torch.randn(4, 6)
    state = {
        "matrix": base,
        "transposed": base.mT,
        "part": base[1:3, ::2],
        "scalar": torch.tensor(2.5),
        "double": torch.randn(2, 3, 4, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)).detach(),
    }
    tensors = read_tensors(saved(tmp_path, state))
    assert list(tensors) == list(state)
    for name, tensor in state.items():
        assert tensors[name].dtype == tensor.numpy().dtype
        np.testing.assert_array_equal(tensors[name], tensor.numpy())


class Harmful:
    def __reduce__(self):
        return print, ("this must not run",)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": Harmful()}, "it names __builtin__.print"),
        ({"a": torch.zeros(2, dtype=torch.int64)}, "it names torch.LongStorage"),
        ({"a": torch.zeros(2, dtype=torch.bfloat16)}, "it names torch.BFloat16Storage"),
        (torch.zeros(2), "holds no dictionary of tensors"),
        ({"a": 1.0}, "holds no dictionary of tensors"),
    ],
)
def test_anything_but_float_tensors_is_an_error_and_is_not_run(tmp_path, state, message, capsys):
    with pytest.raises(ValueError, match=message):
        read_tensors(saved(tmp_path, state))
    assert capsys.readouterr().out == ""


def rewritten(path, change):
    """Write the archive again, its entries as ``change`` returns them."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in change(entries).items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: {n: c[:-4] if n.endswith("data/0") else c for n, c in e.items()}, "5 numbers instead of 6"),
        (lambda e: {n: b"big" if n.endswith("byteorder") else c for n, c in e.items()}, "little-endian"),
        (lambda e: {n: c for n, c in e.items() if not n.endswith("data/0")}, "no item named"),
        (lambda e: {n: c for n, c in e.items() if not n.endswith("pkl")}, "no pickle inside"),
        (lambda e: {n: c[:50] if n.endswith("pkl") else c for n, c in e.items()}, "holds no dictionary"),
    ],
)
def test_damaged_archives_are_an_error(tmp_path, change, message):
    path = rewritten(saved(tmp_path, {"a": torch.randn(2, 3)}), change)
    with pytest.raises(ValueError, match=message):
        read_tensors(path)


def test_a_tensor_outside_of_its_storage_is_an_error(tmp_path):
    path = saved(tmp_path, {"a": torch.randn(2, 3)})

    def larger(entries):
        pickled = next(name for name in entries if name.endswith("data.pkl"))
        content = entries[pickled]
        assert content.count(b"K\x02K\x03\x86") == 1  # the shape
        return entries | {pickled: content.replace(b"K\x02K\x03\x86", b"K\x09K\x03\x86")}

    with pytest.raises(ValueError, match="outside of its storage"):
        read_tensors(rewritten(path, larger))


def test_files_that_are_no_archive_or_not_there_are_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "weights.pt")
    (tmp_path / "weights.pt").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="holds no dictionary of tensors"):
        read_tensors(tmp_path / "weights.pt")


@pytest.mark.parametrize("name", ["archive/data/0", "archive/DATA/0"])
def test_two_files_of_one_name_are_an_error(tmp_path, name):
    path = saved(tmp_path, {"a": torch.zeros(2)})
    with zipfile.ZipFile(path, "a") as archive:
        name = name.replace("archive", archive.namelist()[0].split("/")[0])
        with pytest.warns(UserWarning, match="Duplicate") if name in archive.namelist() else nullcontext():
            archive.writestr(name, np.ones(2, np.float32).tobytes())
    with pytest.raises(ValueError, match="two files of one name"):
        read_tensors(path)
