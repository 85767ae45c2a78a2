"""The adapters themselves, which are subclasses of PEFT's: importing this imports peft."""

import peft  # noqa: F401  first, so that what registers the adapters once it is loaded finds this package empty
