"""Files are whole or absent, and damage is named."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lbdn.files import read_json, whole, write_json, write_rows, write_text

ROOT = Path(__file__).parents[1]


def write_half_and_fail(path: Path) -> None:
    with whole(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt


def test_no_file_appears_when_its_writer_raises(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_half_and_fail(tmp_path / "result")
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_before_stays_when_its_writer_raises(tmp_path):
    write_text(tmp_path / "result", "before")
    with pytest.raises(KeyboardInterrupt):
        write_half_and_fail(tmp_path / "result")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("result", "before")]


def test_a_killed_writer_leaves_the_file_of_before(tmp_path):
    path = tmp_path / "result"
    write_text(path, "before")
    script = (
        "import os, signal, sys; from pathlib import Path; from lbdn.files import whole\n"
        "with whole(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, path], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "before"


def test_folders_on_the_way_are_made(tmp_path):
    write_text(tmp_path / "a" / "b" / "result", "text")
    assert (tmp_path / "a" / "b" / "result").read_text() == "text"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused_and_nothing_is_written(tmp_path, number):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "result.json", {"deep": [1.0, {"x": number}]})
    assert list(tmp_path.iterdir()) == []


def test_json_keeps_every_bit_of_a_float(tmp_path):
    value = {"x": [0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0], "y": None, "z": "γ"}
    write_json(tmp_path / "result.json", value)
    assert read_json(tmp_path / "result.json") == value
    assert math.copysign(1, read_json(tmp_path / "result.json")["x"][-1]) == -1
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8")) == value


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b'{"a": "\xff"}', b"\x00\x01"])
def test_damaged_json_is_an_error_that_names_the_path(tmp_path, content):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged") as caught:
        read_json(path)
    assert str(path) in str(caught.value)


def test_missing_json_is_an_error_that_names_the_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.json"):
        read_json(tmp_path / "absent.json")


def test_rows_come_back_as_written(tmp_path):
    rows = [{"image": 0, "radius": 0.1 + 0.2, "name": "a,b"}, {"image": 1, "radius": "", "name": 'c "d"'}]
    write_rows(tmp_path / "rows.csv", rows)
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [{k: str(v) for k, v in row.items()} for row in rows]


def test_rows_with_other_keys_are_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="b"):
        write_rows(tmp_path / "rows.csv", [{"a": 1}, {"a": 1, "b": 2}])
    assert list(tmp_path.iterdir()) == []
