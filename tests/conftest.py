"""Settings of all tests."""

from hypothesis import settings

# An example may take long on a loaded machine. pytest-timeout bounds the whole test.
settings.register_profile("hybridps", deadline=None)
settings.load_profile("hybridps")
