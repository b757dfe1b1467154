"""Studies: the only orchestrator."""
