"""Benchmarks of Bitworth itself; ``python -m benchmarks.timing`` proves its verdicts."""
