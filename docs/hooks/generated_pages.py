"""Pages that the program itself knows best, made when the site is built.

Nothing of this is committed: the scenario reference comes from the pydantic models,
the command reference from the commands, the report reference from the JSON Schemas of
the reports.  What only a person can say about a scenario key stands in
``docs/reference/scenario-keys.yaml``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

HOOKS = Path(__file__).resolve().parent
# mkdocs runs a hook as a lone file; its neighbours are found here.
if str(HOOKS) not in sys.path:
    sys.path.insert(0, str(HOOKS))

from reference_cli import cli_page  # noqa: E402
from reference_reports import REPORTS_PAGE, reports_page  # noqa: E402
from reference_scenario import scenario_page  # noqa: E402


def pages() -> dict[str, str]:
    """Path below ``docs/`` and text of every generated file."""
    from raptor_cp.reports.schemas import SCHEMAS
    from raptor_cp.scenario import json_schema

    files = {
        "reference/scenario.md": scenario_page(HOOKS.parent / "reference"),
        "reference/cli.md": cli_page(),
        REPORTS_PAGE: reports_page(HOOKS.parent / "reference"),
        "schemas/scenario.json": _json(json_schema()),
    }
    for name, schema in SCHEMAS.items():
        files[f"schemas/{name}.json"] = _json(schema)
    return files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of the folder."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def _json(document: object) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
