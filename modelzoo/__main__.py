"""`python -m modelzoo`, which is also what torchrun starts: `torchrun --nproc-per-node 2 -m modelzoo train RECIPE`."""

from modelzoo.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
