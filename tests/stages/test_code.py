import ast

import pytest

from lbdn.registry import BUILT_IN
from stages import code
from stages.code import NETWORKS, ROOT, SHARED, STAGES, code_digests

# Plumbing: it moves results, and changes none.
PLUMBING = {"lbdn/files.py", "lbdn/params.py", "lbdn/registry.py", "lbdn/tracking.py"}


def imported(file, names=None):
    """The files of the library that a file, or some names in it, import, directly or not."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lbdn."):
            wanted = {alias.name for alias in node.names} & (names or {alias.name for alias in node.names})
            path = node.module.replace(".", "/")
            if wanted and (ROOT / f"{path}.py").exists():
                found |= {f"{path}.py"} | imported(f"{path}.py")
            elif wanted:  # a package, which passes on what its modules define
                found |= imported(f"{path}/__init__.py", wanted)
    return found


@pytest.mark.parametrize("family", BUILT_IN["families"])
def test_all_that_a_family_runs_on_is_digested(family):
    own = BUILT_IN["families"][family].partition(":")[0].replace(".", "/") + ".py"
    assert imported(own) - {own} <= {*NETWORKS, *SHARED.get(family, ())}


@pytest.mark.parametrize("stage", STAGES)
def test_all_that_a_stage_runs_on_is_digested(stage):
    listed = (*STAGES[stage], *NETWORKS, *PLUMBING, "lbdn/layers")
    assert {file for file in imported(f"stages/{stage}.py") if not file.startswith(listed)} == set()


def test_a_file_that_no_list_names_is_flagged():
    assert not imported("lbdn/layers/spectral.py") <= set(NETWORKS)
    assert "lbdn/attack.py" in imported("stages/attack.py")


def test_shared_files_count_for_the_families_that_use_them_alone(monkeypatch):
    before = {family: code_digests(family, "toy") for family in ("aol", "spectral", "sll")}
    monkeypatch.setitem(code.SHARED, "spectral", ("lbdn/layers/norms.py",))
    changed = [family for family, digests in before.items() if code_digests(family, "toy") != digests]
    assert changed == ["spectral"]
