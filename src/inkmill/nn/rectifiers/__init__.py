"""Rectifiers: what straightens the text before it is read."""
