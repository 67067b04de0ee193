import ast
import importlib
from pathlib import Path

import pytest

import lbdn
from lbdn.registry import BUILT_IN
from stages import families
from stages.families import NETWORKS, SHARED, code_digests

PACKAGE = Path(lbdn.__file__).parent


def imported(file):
    """The files of the library that a file imports, those included that these import."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("lbdn."):
            name = node.module.removeprefix("lbdn.").replace(".", "/")
            if (PACKAGE / f"{name}.py").exists():
                found |= {f"{name}.py"} | imported(f"{name}.py")
    return found


@pytest.mark.parametrize("family", BUILT_IN["families"])
def test_all_that_a_family_runs_on_is_digested(family):
    module = importlib.import_module(BUILT_IN["families"][family].partition(":")[0])
    own = str(Path(module.__file__).relative_to(PACKAGE))
    assert imported(own) - {own} <= {*NETWORKS, *SHARED.get(family, ())}


def test_a_file_that_no_list_names_is_flagged():
    assert not imported("layers/spectral.py") <= set(NETWORKS)


def test_shared_files_count_for_the_families_that_use_them_alone(monkeypatch):
    before = {family: code_digests(family, "toy") for family in ("aol", "spectral", "sll")}
    monkeypatch.setitem(families.SHARED, "spectral", ("layers/norms.py",))
    changed = [family for family, digests in before.items() if code_digests(family, "toy") != digests]
    assert changed == ["spectral"]
