"""One file per finding in version 0.1.0: the program that failed then, as a test."""
