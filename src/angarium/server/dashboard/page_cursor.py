"""Page cursors of the dashboard's lists are those of the modules."""

from angarium.runtime.page_cursor import cursor_numbers, page_cursor

__all__ = ["cursor_numbers", "page_cursor"]
