"""Certify one model's predictions on the test images."""

from pathlib import Path
from typing import Any

import click
import torch

from lbdn import tracking
from lbdn.certify import certified_accuracy, certified_radius
from lbdn.data import Dataset
from lbdn.files import write_rows
from lbdn.inference import on_device, predict
from lbdn.runs import load_run
from stages.common import RUN, device_option, errors_in_one_line, run_settings


def certify_run(run: Path, dataset: Dataset, device: torch.device) -> list[dict[str, Any]]:
    """Write certify.csv, a row a test image; return the rows. No radius where the network has no bound."""
    network = load_run(run).to(device)
    labels = on_device(dataset.test_targets, device)
    logits = predict(network, on_device(dataset.test_inputs, device))
    bound = network.pair_gamma()
    radii = [""] * len(labels) if bound is None else certified_radius(logits, labels, bound).tolist()
    own = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    columns = (labels.tolist(), logits.argmax(1).tolist(), (own - others).tolist(), radii)
    rows = [
        {"image": i, "label": label, "prediction": prediction, "margin": margin, "radius": radius}
        for i, (label, prediction, margin, radius) in enumerate(zip(*columns, strict=True))
    ]
    write_rows(run / "certify.csv", rows)
    return rows


@click.command()
@RUN
@device_option
@errors_in_one_line
def main(run: Path, device: torch.device) -> None:
    """Certify the model in RUN on all test images; write RUN/certify.csv.

    A row is an image: label, prediction, margin of the logits, and certified l2 radius in pixel units on [0, 1].
    """
    description, settings, dataset = run_settings(run)
    if settings.certify is None:
        raise ValueError(f"params.yaml has no {description['experiment']}.certify")
    with tracking.evaluation_run(run, description) as log:
        log.tags({"certify": settings.certify.model_dump()})
        rows = certify_run(run, dataset, device)
        count = len(rows)
        log.metrics({"accuracy_clean": sum(row["label"] == row["prediction"] for row in rows) / count})
        if rows[0]["radius"] != "":
            log.metrics(
                {
                    f"accuracy_certified_{eps:03g}": certified_accuracy([row["radius"] for row in rows], eps / 255)
                    for eps in settings.certify.radii_255
                }
            )


if __name__ == "__main__":
    main()
