"""The settings of each module, one file for each; put together in `runtime/settings.py`."""
