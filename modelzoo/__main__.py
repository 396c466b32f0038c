"""`python -m modelzoo`, and what torchrun starts: `torchrun -m modelzoo train RECIPE`."""

import os
import sys

from modelzoo.cli import main

if __name__ == "__main__":
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # All is closed and written by now. torch's communication threads can abort a rank while the interpreter is taken down
        # ("terminate called without an active exception"), and torchrun would call a finished run failed.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
