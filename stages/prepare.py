"""Bring a data set into the prepared form."""

import click

from lbdn.data import prepare
from lbdn.params import load_params
from stages.common import PREPARED, errors_in_one_line


@click.command()
@click.argument("dataset")
@errors_in_one_line
def main(dataset: str) -> None:
    """Load DATASET from its source, check it, and write data/prepared/DATASET.

    DATASET is a key of `datasets` in params.yaml, which names the source and its options.
    """
    datasets = load_params().datasets
    if dataset not in datasets:
        raise ValueError(f"no data set {dataset!r} in params.yaml; there are {', '.join(datasets)}")
    options = dict(datasets[dataset])
    source = options.pop("source", None)
    if source is None:
        raise ValueError(f"datasets.{dataset} in params.yaml has no `source`")
    prepared = prepare(source, options, PREPARED / dataset)
    click.echo(f"{dataset}: {len(prepared.train_inputs)} training and {len(prepared.test_inputs)} test samples")


if __name__ == "__main__":
    main()
