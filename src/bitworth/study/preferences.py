"""An engine's preferences in words, as the record holds them."""

from __future__ import annotations

from bitworth.recipe.rules import Preference, SitePreference


def told_preferences(preferred: Preference) -> dict[str, str]:
    """What ``auto`` resolves to, by key; what differs for some sites by its condition."""
    told = {key: _told(value) for key, value in vars(preferred).items() if key != "sites"}
    return told | {f"sites: {p.where}": _of_sites(p) for p in preferred.sites}


def _told(value: object) -> str:
    if value is None:
        return "all"
    return (", ".join(value) or "none") if isinstance(value, tuple) else str(value)


def _of_sites(preference: SitePreference) -> str:
    keys = ("sign", "zero_point", "placement")
    changes = [f"{key} {value}" for key in keys if (value := getattr(preference, key))]
    return f"{', '.join(changes)}: {preference.reason}"
