"""Synthetic text: samples that are rows of numbers, drawn by the device that trains or by the CPU.

`docs/synth.md` is the manual. Nothing here is imported before it is used.
"""
