"""The report page: every section's tables and figures in one self-contained HTML file."""

import base64
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from lbdn.files import read_json
from lbdn.report.tables import BESIDE, without_common_budget


def render_page(reports: Path, experiments: Sequence[str]) -> str:
    """Return the page as HTML, with figures and tables inside it.

    Experiments that are off or weren't run are left out.
    """
    sections = []
    for name in experiments:
        path = reports / "tables" / name / "section.json"
        if not path.exists() or not (section := read_json(path))["tables"]:
            continue
        tables = [
            {"name": table, "caption": caption, **_cells(reports / "tables" / name / f"{table}.csv")}
            for table, caption in section["tables"].items()
        ]
        figures = [
            {"name": figure, "caption": caption, "source": _data_uri(reports / "figures" / name / f"{figure}.svg")}
            for figure, caption in section["figures"].items()
        ]
        sections.append(section | {"id": name, "tables": tables, "figures": figures})
    template = files("lbdn.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(sections=sections)


def _cells(path: Path) -> dict[str, Any]:
    """Return a table's columns and rows; what stands beside a measured value goes into its cell.

    A budget that all rows share is a note below them.
    """
    frame, note = without_common_budget(pd.read_csv(path, dtype=str, keep_default_na=False))
    columns = [str(column) for column in frame if not str(column).endswith(BESIDE)]
    numeric = [bool(pd.to_numeric(frame[c], errors="coerce").notna().any()) for c in columns]
    rows = [
        [{"value": row[c]} | {mark.strip(): row.get(c + mark, "") for mark in BESIDE} for c in columns]
        for row in frame.to_dict("records")
    ]
    return {"columns": columns, "rows": rows, "numeric": numeric, "note": note}


def _data_uri(path: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
