"""The demo: a support chat through every module, with real processes, some of them killed."""
