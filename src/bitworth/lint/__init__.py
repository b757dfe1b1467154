"""Rules for records and for text rendered from them; docs/lint.md has each with an example.

Nothing here needs an engine, onnx or torch: a record is checked on any laptop.
"""
