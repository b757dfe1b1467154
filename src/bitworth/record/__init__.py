"""Records: immutable facts, what is derived from them, and how both are shown."""
