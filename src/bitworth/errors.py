"""The one exception that a user's mistake raises."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what the user gave: shown as one line, exit code 2, no traceback.

    The message names the file, node or key, says what is wrong and what to do.
    """
