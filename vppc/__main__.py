"""``python -m vppc``: the command line."""

from vppc.cli import main

if __name__ == "__main__":
    main()
