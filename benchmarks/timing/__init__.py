"""How far the timing verdict can be trusted, measured on this machine."""
