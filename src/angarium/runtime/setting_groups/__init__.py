"""The settings of each room, one file for each; put together in `runtime/settings.py`."""
