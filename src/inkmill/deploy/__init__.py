"""Compression: smaller and faster readers that read the same."""
