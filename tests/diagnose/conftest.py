"""Planted bottlenecks: real training of small models on real captchas, one thing made slow."""

from __future__ import annotations
