"""Attack one model by AutoAttack."""

from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from lbdn import tracking
from lbdn.attack import attacks_for, autoattack
from lbdn.certify import certified_radius
from lbdn.data import Dataset, balanced_subset
from lbdn.files import write_rows
from lbdn.inference import as_input, on_device, predict
from lbdn.params import Attack
from lbdn.runs import load_run, read_description, weights_digest
from stages.code import STAGES, code_digests, digest_of
from stages.common import RUN, device_option, errors_in_one_line, run_settings

STATE = "attack-state.json"  # what is finished of an attack that was interrupted


def attack_run(run: Path, attack: Attack, dataset: Dataset, device: torch.device) -> list[dict[str, Any]]:
    """Write attack.csv, a row an attacked test image; return the rows. The state of what is finished stays."""
    network, description = load_run(run).to(device), read_description(run)["network"]
    count = len(dataset.test_targets) if attack.images == "all" else attack.images
    chosen = balanced_subset(dataset.test_targets, count, attack.seed)
    order = np.random.default_rng(attack.seed).permutation(chosen)  # so that finished batches are a fair sample
    images = as_input(on_device(dataset.test_inputs[order], device))
    labels = on_device(dataset.test_targets[order], device)
    bound = network.pair_gamma()
    rows = autoattack(
        network,
        images,
        labels,
        eps=[eps / 255 for eps in attack.radii_255],
        seed=attack.seed,
        batch_size=attack.batch_size,
        certified=None if bound is None else certified_radius(predict(network, images), labels, bound),
        audit=len(order) if attack.audit == "all" else attack.audit,
        numbers=order.tolist(),
        state=run / STATE,
        identity={
            "weights": weights_digest(run),
            "networks": code_digests(description["family"], description["architecture"]),
            "attack": digest_of(*STAGES["attack"]),
        },
    )
    rows.sort(key=lambda row: row["image"])
    write_rows(run / "attack.csv", rows)
    return rows


@click.command()
@RUN
@device_option
@errors_in_one_line
def main(run: Path, device: torch.device) -> None:
    """Attack the model in RUN by AutoAttack (standard version, l2, pixel space); write RUN/attack.csv.

    A row is an image: label, clean prediction, certified radius and, for each radius, whether it stayed correct, the
    prediction under attack, and by what that was decided: images that are certified are attacked only in a sample.
    An attack that was interrupted goes on after the last batch and radius that it finished.
    """
    description, settings, dataset = run_settings(run)
    if settings.attack is None:
        raise ValueError(f"params.yaml has no {description['experiment']}.attack")
    attacks, targets = attacks_for(dataset.outputs)
    click.echo(f"AutoAttack on {dataset.outputs} classes: {', '.join(attacks)}; {targets} target classes", err=True)
    with tracking.evaluation_run(run, description) as log:
        log.tags({"attack": settings.attack.model_dump()})
        rows = attack_run(run, settings.attack, dataset, device)
        log.metrics(
            {
                f"accuracy_robust_{eps:03g}": sum(row[f"robust@{eps / 255:.6g}"] for row in rows) / len(rows)
                for eps in settings.attack.radii_255
            }
        )
    (run / STATE).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
