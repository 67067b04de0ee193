"""Carry a prepared data set to a machine that takes files only up to a size."""

import io
import tarfile
from pathlib import Path

import click

from stages.common import errors_in_one_line

PART_BYTES = 60 * 2**20


@click.group()
def main() -> None:
    """Split a folder into compressed parts of at most 60 MiB, and join them again."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("parts", type=click.Path(path_type=Path, file_okay=False))
def split(folder: Path, parts: Path) -> None:
    """Write the files of FOLDER as PARTS/part-000, PARTS/part-001, ..."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    packed = buffer.getbuffer()
    parts.mkdir(parents=True, exist_ok=True)
    for index, start in enumerate(range(0, len(packed), PART_BYTES)):
        (parts / f"part-{index:03}").write_bytes(packed[start : start + PART_BYTES])
    click.echo(f"{folder}: {len(packed) / 2**20:.1f} MiB in {index + 1} parts")


@main.command()
@click.argument("parts", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@errors_in_one_line
def join(parts: Path, folder: Path) -> None:
    """Unpack what `split` wrote to PARTS into FOLDER."""
    pieces = sorted(parts.glob("part-*"))
    if not pieces:
        raise FileNotFoundError(f"no part-* in {parts}")
    packed = io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))
    try:
        with tarfile.open(fileobj=packed, mode="r:gz") as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"the parts in {parts} don't make a whole archive ({error}); bring all of them") from error


if __name__ == "__main__":
    main()
