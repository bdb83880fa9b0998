"""Payload admission of generations 0 to 3: what a payload of an old event may hold.

Spec: 50 appendix A.
"""

from __future__ import annotations

from dsh_codec.migrate.admission.content import check_strict_content
from dsh_codec.migrate.admission.message import is_legacy_goal
from dsh_codec.migrate.admission.payload import (
    EARLY_TYPES,
    FEEDBACK_TYPES,
    V2_TYPES,
    check_feedback,
    check_payload,
)

__all__ = [
    "EARLY_TYPES",
    "FEEDBACK_TYPES",
    "V2_TYPES",
    "check_feedback",
    "check_payload",
    "check_strict_content",
    "is_legacy_goal",
]
