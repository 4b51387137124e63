"""The first and the last lines of the command `angarium`: Ctrl-C never prints a traceback.

Outside a command, while its modules load and while the interpreter ends, Ctrl-C ends the process
as it ends a process in C. Inside a command Python raises KeyboardInterrupt, so that the command
releases what it holds (`main.py`). Imports nothing else before that is set.
"""

import signal


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from angarium.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
