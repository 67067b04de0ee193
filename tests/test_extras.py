"""Packages of extras: without them the rest works, and what needs them says what to install."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(("part", "package"), [("lbdn.report", "seaborn"), ("lbdn.data.sources", "PIL")])
def test_a_part_without_its_packages_says_what_to_install(monkeypatch, part, package):
    module = importlib.import_module(part)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {package}: pip install '\.\[study\]'"):
        importlib.reload(module)
