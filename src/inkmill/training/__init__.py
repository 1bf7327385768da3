"""Training, scoring and reading with torch."""
