"""Carry a prepared data set to a machine that takes files only up to a size."""

import io
import tarfile
import tempfile
import zlib
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
    """Write the files of FOLDER as PARTS/part-0-of-3, PARTS/part-1-of-3, ..."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    packed = buffer.getbuffer()
    parts.mkdir(parents=True, exist_ok=True)
    for old in parts.glob("part-*-of-*"):
        old.unlink()
    count = -(-len(packed) // PART_BYTES)
    for i in range(count):
        (parts / f"part-{i}-of-{count}").write_bytes(packed[i * PART_BYTES : (i + 1) * PART_BYTES])
    click.echo(f"{folder}: {len(packed) / 2**20:.1f} MiB in {count} parts")


@main.command()
@click.argument("parts", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@errors_in_one_line
def join(parts: Path, folder: Path) -> None:
    """Unpack what `split` wrote to PARTS as FOLDER, which is new or empty."""
    counts = {path.name.rpartition("-")[2] for path in parts.glob("part-*-of-*")}
    if len(counts) != 1:
        raise FileNotFoundError(f"takes the parts of one folder, part-<i>-of-<n>; {parts} has those of {len(counts)}")
    count = counts.pop()
    pieces = [parts / f"part-{i}-of-{count}" for i in range(int(count))]
    missing = [piece.name for piece in pieces if not piece.exists()]
    if missing:
        raise FileNotFoundError(f"{parts} lacks {', '.join(missing)}; bring all parts")
    packed = io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} isn't empty; delete it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
        unpacked = Path(parent) / folder.name
        try:
            with tarfile.open(fileobj=packed, mode="r:gz") as archive:
                archive.extractall(unpacked, filter="data")
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise ValueError(f"the parts in {parts} are damaged ({error}); bring them again") from error
        unpacked.replace(folder)


if __name__ == "__main__":
    main()
