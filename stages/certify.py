"""Certify one model's predictions on the test images."""

import logging
from pathlib import Path
from typing import Any

import click
import torch

from lbdn import tracking
from lbdn.bounds import SoundNetwork, pair_bounds, plain_sums
from lbdn.certificate import write_certificate, write_no_certificate
from lbdn.certify import certified_accuracy, certified_radius
from lbdn.data import Dataset
from lbdn.files import write_rows
from lbdn.inference import as_input, on_device, predict
from lbdn.runs import load_run
from stages.common import RUN, device_option, errors_in_one_line, run_settings

RADII = ("radius", "radius_by_gamma", "radius_sound")

logger = logging.getLogger(__name__)


def certify_run(run: Path, dataset: Dataset, device: torch.device) -> list[dict[str, Any]]:
    """Write certify.csv, a row a test image, and certificate.json; return the rows.

    No radius where the network has no bound; none in floating point, and no certificate, where it has layers about
    whose rounding nothing is known.
    """
    network = load_run(run).to(device)
    inputs, labels = on_device(dataset.test_inputs, device), on_device(dataset.test_targets, device)
    radii = dict.fromkeys(RADII, [""] * len(labels))
    with plain_sums():
        logits = predict(network, inputs)
        if network.gamma is None:
            write_no_certificate(run, "a network without a Lipschitz bound")
        else:
            radii["radius"] = certified_radius(logits, labels, pair_bounds(network)).tolist()
            radii["radius_by_gamma"] = certified_radius(logits, labels, network.pair_gamma()).tolist()
            try:
                sound = SoundNetwork(network, as_input(inputs[:1]))
            except ValueError as error:
                logger.warning("no radii in floating point: %s", error)
                write_no_certificate(run, str(error))
            else:
                radii["radius_sound"] = sound.radius(inputs, labels).tolist()
                write_certificate(run, network, sound)
    own = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    columns = {
        "label": labels.tolist(),
        "prediction": logits.argmax(1).tolist(),
        "margin": (own - others).tolist(),
        **radii,
    }
    rows = [
        {"image": i} | dict(zip(columns, values, strict=True))
        for i, values in enumerate(zip(*columns.values(), strict=True))
    ]
    write_rows(run / "certify.csv", rows)
    return rows


@click.command()
@RUN
@device_option
@errors_in_one_line
def main(run: Path, device: torch.device) -> None:
    """Certify the model in RUN on all test images; write RUN/certify.csv and RUN/certificate.json.

    A row is an image: label, prediction, margin of the logits, and certified l2 radii in pixel units on [0, 1], by the
    bound of each pair of classes, by gamma alone, and counting all rounding errors. `python -m lbdn.verify RUN` checks
    the certificate.
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
