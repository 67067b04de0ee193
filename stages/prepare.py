"""Bring a data set into the prepared form."""

import click

from lbdn.data import prepare
from lbdn.params import load_params
from stages.common import PREPARED, errors_in_one_line


@click.command()
@click.argument("dataset")
@click.option("--if-needed", is_flag=True, help="Leave the folder empty if no experiment uses the data set.")
@errors_in_one_line
def main(dataset: str, if_needed: bool) -> None:
    """Load DATASET from its source, check it, and write data/prepared/DATASET.

    DATASET is a key of `datasets` in params.yaml, which names the source and its options.
    """
    params = load_params()
    datasets = params.datasets
    if dataset not in datasets:
        raise ValueError(f"no data set {dataset!r} in params.yaml; there are {', '.join(datasets)}")
    if if_needed and not params.needs(dataset):
        (PREPARED / dataset).mkdir(parents=True, exist_ok=True)
        click.echo(f"{dataset}: no experiment that is on uses it")
        return
    chosen = datasets[dataset]
    prepared = prepare(
        chosen.source,
        chosen.options,
        PREPARED / dataset,
        train_images=chosen.train_images,
        test_images=chosen.test_images,
        subset_seed=chosen.subset_seed,
    )
    click.echo(f"{dataset}: {len(prepared.train_inputs)} training and {len(prepared.test_inputs)} test samples")


if __name__ == "__main__":
    main()
