"""Packages that only a part of the library takes, declared as extras of the project."""

from importlib.util import find_spec


def require(part: str, extra: str, *packages: str) -> None:
    """Check that packages are installed.

    Raises:
        ModuleNotFoundError: for the first that isn't, saying what to install.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"{part} needs {package}: pip install '.[{extra}]' in the folder of lbdn")
