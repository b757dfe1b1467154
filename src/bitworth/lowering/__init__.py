"""Recipe and scales to a graph that an engine builds, or that emulates what none can."""
