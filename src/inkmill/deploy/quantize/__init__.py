"""Quantisation: a reader as an ONNX graph that computes in int8, and which layers may."""
