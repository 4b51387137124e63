"""The benchmarks' own tests: what they print is read back, judged, drawn and written."""
