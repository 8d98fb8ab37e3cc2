"""`python -m hybridps.cli` is the console script `hybridps`."""

from hybridps.cli import main

main()
