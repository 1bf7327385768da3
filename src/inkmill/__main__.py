"""`python -m inkmill` is `inkmill`."""

from inkmill.cli.main import main

main()
