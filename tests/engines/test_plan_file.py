from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bitworth.engines.base import one_line
from bitworth.engines.plan_file import write_file

FULL = """
import resource, signal, sys
from pathlib import Path
from bitworth.engines.plan_file import publish, write_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
target = Path(sys.argv[1])
for write in (lambda: write_file(target, b"x" * 5000), lambda: publish(Path(sys.argv[2]), target)):
    try:
        write()
    except OSError as error:
        print(error.errno)
"""


def test_a_full_disk_leaves_the_old_plan_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    source.write_bytes(b"y" * 5000)
    target = tmp_path / "plans" / "plan.bin"
    write_file(target, b"old")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(target), str(source)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.split()) == 2
    assert target.read_bytes() == b"old"
    assert [p.name for p in target.parent.iterdir()] == ["plan.bin"]


@pytest.mark.parametrize(
    ("text", "told"),
    [("a\n  b\tc", "a b c"), ("", "ValueError"), ("x" * 400, "x" * 297 + "...")],
)
def test_one_line(text: str, told: str) -> None:
    assert one_line(ValueError(text)) == told
