"""The sequence stage between backbone and head."""
