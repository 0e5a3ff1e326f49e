"""`python3 -m lmgym`, the same as `lmgym`."""

from lmgym.cli.main import main

if __name__ == "__main__":
    main(prog_name="lmgym")
