"""A bank belongs to one machine and one set of libraries: others would be another population."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from bitworth.atomic import write_atomic
from bitworth.errors import UserError
from bitworth.study.environment import environment_facts

_NAME = "identity.json"
#: What changes what is timed.
_LIBRARIES = ("onnxruntime", "openvino", "numpy")


def identity() -> dict[str, str]:
    """CPU, cores, Python and the engines' versions."""
    facts = environment_facts()
    versions = {name: facts.libraries.get(name, "") for name in _LIBRARIES}
    return {"cpu": facts.cpu, "cores": str(facts.cores), "python": facts.python, **versions}


def check_identity(banks: Path, plans: Path) -> None:
    """Keep sessions of another machine or engine out of the banks.

    Plans that another engine built are removed, to be built again.

    Args:
        banks: folder of the banks; its identity is written where it has none.
        plans: folder of the built plans.

    Raises:
        UserError: the banks are of another machine or of other versions.
    """
    here = identity()
    for folder in (banks, plans):
        path = folder / _NAME
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, (json.dumps(here, sort_keys=True, indent=1) + "\n").encode())
        known = json.loads(path.read_bytes())
        if known == here:
            continue
        if folder == plans:
            shutil.rmtree(plans)
            check_identity(banks, plans)
            return
        differ = ", ".join(k for k in sorted(here) if known.get(k) != here[k])
        raise UserError(
            f"{path}: these sessions differ from this machine in {differ}; "
            "choose another folder with --results"
        )
