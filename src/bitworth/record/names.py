"""Names that a study gives to variants itself."""

from __future__ import annotations

#: The fair baseline.
BASELINE = "baseline"
#: The model as it was given, under the options that were given.
AS_GIVEN = "as given"
