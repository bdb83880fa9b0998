"""`python -m dsh_codec` is `dsh-codec`."""

import sys

from dsh_codec.cli import main

sys.exit(main())
