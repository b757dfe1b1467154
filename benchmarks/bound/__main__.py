"""``python -m benchmarks.bound``: how well bounds and expectations of committed records held.

Nothing is measured: the records hold the profile, the device's rates and the times. Writes
docs/screen.md.
"""

from __future__ import annotations

from benchmarks.bound.report import DOCUMENT, insert, records, render, rows


def main() -> None:
    found = render(rows(records()))
    DOCUMENT.write_text(insert(DOCUMENT.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
