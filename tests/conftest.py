import sys
from pathlib import Path

import pytest
import torch

# pytest's importlib mode leaves sys.path alone; this makes `tests.oracles` importable from any working directory.
sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def reproducible():
    torch.set_num_threads(1)
    torch.manual_seed(0)
