"""The spec: its keys with types, ranges and meaning, how files and overrides become one, and what a run leaves."""
