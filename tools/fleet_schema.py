"""Writes the JSON Schema of fleet and gateway files from the models that read them; a test compares the two.

The meaning of each key is that of docs/reference/fleet-file.md.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from phasewise.fleet.config import FleetConfig, GatewayFile
from phasewise.scheduling.policies import POLICIES

ROOT = Path(__file__).parent.parent
FILE = ROOT / "src" / "phasewise" / "fleet" / "config" / "fleet-file.schema.json"
PAGE = ROOT / "docs" / "reference" / "fleet-file.md"


def schema() -> dict[str, Any]:
    """The whole schema: a file that says where workers are is a gateway's, any other is a fleet's."""
    _, made = models_json_schema([(FleetConfig, "validation"), (GatewayFile, "validation")])
    parts = made["$defs"]
    meanings = {frozenset(rows): rows for rows in documented()}
    for part in parts.values():
        keys = part.get("properties", {})
        known = meanings.get(frozenset(keys), {})
        for key, value in keys.items():
            value.pop("title", None)
            if isinstance(value.get("default"), dict | list) or value.get("default") is None:
                value.pop("default", None)  # a part that is left out; its own keys have their defaults
            if known.get(key):
                value["description"] = known[key]
        part.pop("title", None)
    parts["GatewayConfig"]["properties"]["policy"]["enum"] = sorted(POLICIES)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "phasewise fleet file",
        "description": "For `phasewise up FILE`; with `workers` or `discover`, for `phasewise gateway FILE`.",
        "type": ["object", "null"],
        "if": {"type": "object", "anyOf": [{"required": ["workers"]}, {"required": ["discover"]}]},
        "then": reference(GatewayFile),
        "else": {"if": {"type": "object"}, "then": reference(FleetConfig)},
        "$defs": parts,
    }


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Where the schema of a model stands."""
    return {"$ref": f"#/$defs/{model.__name__}"}


def documented() -> list[dict[str, str]]:
    """The tables of the page: the meaning of each key, and the phase and the flag of a lever."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [dict(filter(None, map(meaning, table.splitlines()[2:]))) for table in tables]


def meaning(line: str) -> tuple[str, str] | None:
    """A key and what it means, from its row; None of a table of another kind."""
    match cells(line):
        case [key, _, _, words]:
            return key.strip("`"), plain(words)
        case [lever, phase, _, flag, words]:
            return lever.strip("`"), f"{words} ({phase}; {flag.strip('`')})"
    return None


def cells(line: str) -> list[str]:
    """A row of a table."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def plain(words: str) -> str:
    """Words without links."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", words)


def text() -> str:
    """The file's content."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
