"""Default bounds on what an input may demand. Each is a keyword argument of the same name."""

from __future__ import annotations

from typing import Final

MAX_ROW_BYTES: Final = 256 << 20
"""Bytes in one row, line feed included."""

MAX_FRAME_PLAIN_BYTES: Final = 1 << 30
"""Bytes of plaintext in one Zstandard frame."""

MAX_DEPTH: Final = 1024
"""Nested arrays and objects in one JSON value."""

MAX_PACKED_EVENTS: Final = 16_777_216
"""Events that one packed row of generations 0 and 1 may stand for."""

MAX_SPOOLED_BYTES: Final = 4 << 30
"""Bytes of a pipe, or of a file object that cannot seek, that are copied to be read as a log."""

MAX_WINDOW_LOG: Final = 27
"""Binary logarithm of the largest Zstandard window, in bytes. Spec: 10 §7.2."""

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""Largest integer that a double holds exactly with its neighbours. Spec: 10, intro."""
