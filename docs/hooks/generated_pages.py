"""Fills in what the program itself knows best, when the site is built.

Nothing generated is committed.  A page says where it wants it with a comment
``<!-- generated: NAME -->``: the keys of a scenario come from the pydantic models, the
commands from their signatures, the keys of reports from their JSON Schemas, the Python
API from its docstrings.  What only a person can say about a scenario key stands in
``docs/reference/scenario-keys.yaml``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Callable

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

HOOKS = Path(__file__).resolve().parent
# mkdocs runs a hook as a lone file; its neighbours are found here.
if str(HOOKS) not in sys.path:
    sys.path.insert(0, str(HOOKS))

from reference_cli import cli_reference  # noqa: E402
from reference_python import python_reference  # noqa: E402
from reference_reports import reports_reference  # noqa: E402
from reference_scenario import scenario_reference  # noqa: E402

GENERATED: dict[str, Callable[[], str]] = {
    "commands": cli_reference,
    "python": python_reference,
    "reports": reports_reference,
    "scenario": lambda: scenario_reference(HOOKS.parent / "reference"),
}
_PLACE = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def filled(markdown: str) -> str:
    """A page with everything generated in its place."""
    return _PLACE.sub(lambda found: GENERATED[found[1]](), markdown)


def schema_files() -> dict[str, str]:
    """Path below the site and text of every JSON Schema."""
    from raptor_cp.reports.schemas import SCHEMAS
    from raptor_cp.scenario import json_schema

    schemas = {"scenario": json_schema(), **SCHEMAS}
    return {
        f"schemas/{name}.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for name, schema in schemas.items()
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the JSON Schemas to the site."""
    for path, text in schema_files().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Fill in a page."""
    return filled(markdown)
