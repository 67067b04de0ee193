import ast

import pytest

from lbdn.registry import BUILT_IN
from stages import code
from stages.code import NETWORKS, ROOT, SHARED, STAGES, code_digests

# Plumbing: it moves results, and changes none.
PLUMBING = {f"lbdn/{name}.py" for name in ("extras", "files", "memory", "params", "registry", "tracking")}
PLUMBING |= {"stages/code.py", "stages/common.py"}
CHECKS = {"adopt": STAGES["train"]}  # where a stage gets what refuses settings, which changes no results


def imports(file, name):
    """What a file imports, as modules and names; of a package's file, what brings one name."""
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.rpartition(".")[::2] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: relative imports aren't followed"
            yield from ((node.module, alias.name) for alias in node.names if name in (None, alias.name))


def imported(file):
    """The files of this project that a file imports, directly or not, and of packages those that they pass on."""
    todo = [(file, None)]
    for place in todo:
        for module, name in imports(*place):
            for dotted, wanted in ((f"{module}.{name}".strip("."), None), (module, name)):
                path = dotted.replace(".", "/")
                found = [p for p in ((f"{path}.py", None), (f"{path}/__init__.py", wanted)) if (ROOT / p[0]).exists()]
                todo += [p for p in found if p not in todo]
                if found:
                    break
    return {path for path, _ in todo[1:] if not path.endswith("__init__.py")}


@pytest.mark.parametrize("family", BUILT_IN["families"])
def test_all_that_a_family_runs_on_is_digested(family):
    own = BUILT_IN["families"][family].partition(":")[0].replace(".", "/") + ".py"
    assert imported(own) <= {*NETWORKS, *SHARED.get(family, ())}


@pytest.mark.parametrize("stage", STAGES)
def test_all_that_a_stage_runs_on_is_digested(stage):
    listed = (*STAGES[stage], *CHECKS.get(stage, ()), *NETWORKS, *PLUMBING, "lbdn/layers")
    assert {file for file in imported(f"stages/{stage}.py") if not file.startswith(listed)} == set()


@pytest.mark.parametrize(
    ("statement", "file"),
    [
        ("from lbdn.memory import keep_freed_memory", "lbdn/memory.py"),
        ("from lbdn import memory", "lbdn/memory.py"),
        ("import lbdn.memory", "lbdn/memory.py"),
        ("def f():\n    from lbdn import load_run", "lbdn/runs.py"),
        ("from lbdn import bounds", "lbdn/bounds/lower.py"),
        ("from lbdn.bounds import lipsdp", "lbdn/bounds/lipsdp.py"),
        ("from stages.parts import split", "stages/parts.py"),
        ("import stages.train", "lbdn/training.py"),
    ],
)
def test_every_kind_of_import_is_followed(tmp_path, statement, file):
    (tmp_path / "stage.py").write_text(statement)
    assert file in imported(tmp_path / "stage.py")


def test_a_file_that_no_list_names_is_flagged():
    assert not imported("lbdn/layers/spectral.py") <= set(NETWORKS)
    assert "lbdn/attack.py" in imported("stages/attack.py")


def test_shared_files_count_for_the_families_that_use_them_alone(monkeypatch):
    before = {family: code_digests(family, "toy") for family in ("aol", "spectral", "sll")}
    monkeypatch.setitem(code.SHARED, "spectral", ("lbdn/layers/norms.py",))
    changed = [family for family, digests in before.items() if code_digests(family, "toy") != digests]
    assert changed == ["spectral"]
