"""NVIDIA DALI as a loader."""
