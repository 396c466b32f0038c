"""`modelzoo`, `python -m modelzoo`, and what torchrun starts: `torchrun -m modelzoo train RECIPE`."""

import os
import sys

__all__ = ["main"]


def main() -> int:
    """Run the command and return its exit code; Ctrl-C while it is being loaded is one line too."""
    try:
        from modelzoo.cli import main as run

        code = run()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        code = 130
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # All is closed and written by now. torch's communication threads can abort a rank while the interpreter is taken down
        # ("terminate called without an active exception"), and torchrun would call a finished run failed.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
