"""Results of runs that were never made, to make reports of."""

import pandas as pd

from lbdn.report.results import Result

EPS = 72 / 255


def result(
    family: str = "sandwich", gamma: float | None = 1.0, seed: int = 1, tightness: float = 0.9, size: str = "tiny"
) -> Result:
    rows = pd.DataFrame({"image": [0, 1, 2, 3], "label": [0, 1, 1, 0], "prediction": [0, 1, 1, 1]})
    return Result(
        description={
            "family": family,
            "gamma": gamma,
            "seed": seed,
            "size": size,
            "dataset": "digits",
            "samples": {"train": 100, "test": 4},
            "parameters": 1234,
            "network": {"architecture": "kwlarge", "outputs": 100, "normalization": [[0.5] * 3, [0.3, 0.2564, 0.3]]},
            "training": {"epochs": 2, "loss": {"name": "cross-entropy"}, "augmentation": "crop-flip-jitter"},
        },
        history=pd.DataFrame(
            {"epoch": [1, 2], "train_loss": [2.0, 1.0], "test_loss": [2.0, 1.5], "test_accuracy": [0.5, 0.75]}
        ),
        lipschitz={
            "lower": 0.9,
            "upper": None if gamma is None else 1.0,
            "tightness": None if gamma is None else tightness,
            "spectral_product": None,
        },
        certify=rows.assign(radius=[float("nan")] * 4 if gamma is None else [0.5, 0.2, 0.0, 0.0]),
        attack=rows.head(3).assign(**{f"robust@{EPS:.6g}": [1, 1, 0]}),
        provenance={},
    )


def trained_only(family: str = "sandwich", **place) -> Result:
    complete = result(family, **place)
    return Result(complete.description, complete.history, None, None, None, {})


def fit(family: str, gamma: float | None = 1.0, product: float = 1.0, **place) -> Result:
    """Of a fit to the square wave: its curve, and the ten layers of the paper's toy."""
    run = result(family, gamma=gamma, **place)
    curve, inner = {"x": [-2.0, 2.0], "y": [1.0, 0.5]}, {"tightness": [0.9] * 10, "norms": [1.0] * 10}
    bounds = run.lipschitz | {"curve": curve, "layers": inner, "spectral_product": product}
    return Result(run.description, run.history.drop(columns="test_accuracy"), bounds, None, None, {})


PLAIN = result("plain", gamma=None)
