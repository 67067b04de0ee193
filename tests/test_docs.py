"""What the README and the pages in docs show runs."""

import doctest
import re
from pathlib import Path

import pytest
import torch

from lbdn.layers import SandwichConv, SandwichFc, SandwichLin
from lbdn.params import load_params
from lbdn.runs import save_run, seeded_network

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page):
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    network = {"architecture": "kwlarge", "family": "sandwich", "size": "tiny", "gamma": 1.0, "input_shape": [1, 8, 8]}
    network |= {"outputs": 10, "normalization": [[0.3], [0.4]], "last_layer_normalization": False}
    monkeypatch.chdir(tmp_path)
    save_run(Path("runs/study/sandwich-tiny-seed123"), seeded_network(0, **network), {"network": network})
    names = {"images": torch.rand(3, 1, 8, 8), "labels": torch.tensor([0, 1, 2])}
    names |= {"MyFc": SandwichFc, "MyConv": SandwichConv, "MyLin": SandwichLin}
    for block in blocks:
        exec(block, names)
    assert names["network"].gamma == 2.0
    assert names["FAMILY"].bounded


def test_the_readmes_table_of_experiments_is_that_of_the_parameters():
    rows = re.findall(r"^\| (`report-.*`) \|.*\| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    names = [name for reports, _ in rows for name in re.findall("`report-(.*?)`", reports)]
    counts = [int(count) for _, networks in rows for count in networks.split(", ")]
    params = load_params(ROOT / "params.yaml")
    expected = [(name, len(params.cells(name))) for name in params.experiments if name != "mnist-julia"]
    assert sorted(zip(names, counts, strict=True)) == sorted(expected)
