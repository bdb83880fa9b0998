"""Live frames beside the log: pure state machines for producer, host and client.

`AgentLifecycle`, `Framer` and `run_attempt` produce; `Baseline`, `Follower` and `Host` serve;
`Journal`, `Reconciler`, `Window` and `Viewer` consume. Frames are never written to a log. All of these
do no I/O: clocks, transports and logs are handed in. `WriterLog` and `AsyncWriterLog` are a host's log
on disk, `Server` and `Client` a reference transport over a local socket. Spec: 40.
"""

from __future__ import annotations

from dsh_codec.live.attempt import (
    AttemptResult,
    ModelFailureError,
    Step,
    run_attempt,
    run_attempt_async,
)
from dsh_codec.live.baseline import Baseline
from dsh_codec.live.client import Client, RefusedError
from dsh_codec.live.follower import Follower
from dsh_codec.live.framer import AgentLifecycle, Framer
from dsh_codec.live.frames import (
    AgentFrame,
    AttemptId,
    BaselineSnapshot,
    FollowItem,
    Page,
    WireFrame,
    check_baseline,
    check_frame,
)
from dsh_codec.live.host import AsyncSessionLog, Host, SessionLog
from dsh_codec.live.journal import Journal
from dsh_codec.live.page import cut_page
from dsh_codec.live.reconciler import Entry, Reconciler
from dsh_codec.live.server import Server
from dsh_codec.live.viewer import Viewer
from dsh_codec.live.window import Change, Window
from dsh_codec.live.writer_log import AsyncWriterLog, WriterLog

__all__ = [
    "AgentFrame",
    "AgentLifecycle",
    "AsyncSessionLog",
    "AsyncWriterLog",
    "AttemptId",
    "AttemptResult",
    "Baseline",
    "BaselineSnapshot",
    "Change",
    "Client",
    "Entry",
    "FollowItem",
    "Follower",
    "Framer",
    "Host",
    "Journal",
    "ModelFailureError",
    "Page",
    "Reconciler",
    "RefusedError",
    "Server",
    "SessionLog",
    "Step",
    "Viewer",
    "Window",
    "WireFrame",
    "WriterLog",
    "check_baseline",
    "check_frame",
    "cut_page",
    "run_attempt",
    "run_attempt_async",
]
