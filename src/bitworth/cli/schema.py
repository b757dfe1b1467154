"""``bitworth schema``."""

from __future__ import annotations

import json
import sys

from bitworth.record.schema import Record


def schema() -> None:
    """Print the JSON Schema of a record (JSON Schema, draft 2020-12).

    Examples:
        bitworth schema > record.schema.json
    """
    tree = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Record.model_json_schema(mode="serialization"),
    }
    sys.stdout.write(json.dumps(tree, indent=1, sort_keys=True) + "\n")
