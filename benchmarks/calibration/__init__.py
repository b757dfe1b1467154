"""What calibration costs: variants from one pass, against a call of quantize_static for each."""
