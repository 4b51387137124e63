"""Half load over every role for half an hour: memory, tasks, files and connections stay flat."""
