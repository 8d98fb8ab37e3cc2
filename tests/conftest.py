"""Settings of all tests."""

import os

from hypothesis import settings

# An example may take long on a loaded machine. pytest-timeout bounds the whole test.
settings.register_profile("hybridps", deadline=None)
settings.load_profile("hybridps")

if not {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} & os.environ.keys():
    # Settings of the developer's own shell; ranks have theirs from the test that started them.
    for name in [name for name in os.environ if name.startswith("HYBRIDPS_") or name == "PYTHONUNBUFFERED"]:
        del os.environ[name]
