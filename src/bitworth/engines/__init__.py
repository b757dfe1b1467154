"""Engines: what builds a lowered model into a plan and runs it."""
