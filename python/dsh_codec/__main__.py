"""`python -m dsh_codec` is `dsh-codec`."""

import sys

from dsh_codec.cli import main

if __name__ == "__main__":
    sys.exit(main())
