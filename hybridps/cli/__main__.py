"""`python -m hybridps.cli` runs the console script `hybridps`."""

from hybridps.cli import main

main()
