"""Migration of logs of generations 0 to 3 to the current one. Spec: 50.

`upgrade` gives the events of generation 4 of any log without writing; `migrate` publishes a log of
generation 4 beside its source.
"""

from __future__ import annotations

from dsh_codec.migrate.children import ChildEvidence
from dsh_codec.migrate.collect import ChildIndex
from dsh_codec.migrate.publish import Migration, migrate
from dsh_codec.migrate.upgrade import Upgrade, upgrade

__all__ = [
    "ChildEvidence",
    "ChildIndex",
    "Migration",
    "Upgrade",
    "migrate",
    "upgrade",
]
