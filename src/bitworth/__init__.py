"""Bitworth: is a narrower number format worth it for this model, on this engine and device?"""

__version__ = "0.1.0"
