"""The story: a support chat, played through every room with real processes, some of them killed."""
