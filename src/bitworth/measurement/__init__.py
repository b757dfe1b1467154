"""Measuring plans: worker processes, timing sessions, quality, profiles and the device lock."""
