"""Engines: readers compiled by TensorRT for one kind of GPU."""
