"""The model's file: header, weights, ONNX metadata, and the card for people."""
