"""Every wait of the programs, in seconds: what it waits for, and which other waits it must exceed.

Code that waits imports this module and reads ``timing.NAME`` at that moment. `tests/task/test_timing.py`
checks each `above`; an entry that follows from another is computed from it.

Tests may scale the waits, in processes that they start too, with the environment variable `TEST_SCALE`. It
counts under pytest only, so that no deployment is slowed down or sped up by accident. What Flower sets is
`fixed`, and so is what must exceed it: they are never scaled.
"""

import os

TEST_SCALE = "BOUQUET_TEST_TIME_SCALE"


class Timing(float):
    """A wait in seconds.

    Args:
        seconds: How long.
        waits_for: What it waits for, or what it limits.
        above: Waits that it must exceed.
        fixed: Whether tests must not scale it; so it is if one in `above` is.
    """

    waits_for: str
    above: "tuple[Timing, ...]"
    fixed: bool

    def __new__(cls, seconds: float, waits_for: str, *above: "Timing", fixed: bool = False) -> "Timing":
        """Make one."""
        new = super().__new__(cls, seconds)
        new.waits_for, new.above = waits_for, above
        new.fixed = fixed or any(wait.fixed for wait in above)
        return new


# fmt: off

# Flower: a node and its SuperLink
BEAT_INTERVAL_S = Timing(15, "heartbeat interval of a node", fixed=True)
BEAT_PAUSE_S = Timing(8, "between heartbeats", fixed=True)
BEAT_ANSWER_S = Timing(5, "an answer to a heartbeat", fixed=True)
LONGEST_BEAT_S = Timing(0.9 * (BEAT_INTERVAL_S - 5), "a node's next heartbeat", fixed=True)
DEAD_NODE_S = Timing(LONGEST_BEAT_S + 3, "a call of a node; another may then replace it", LONGEST_BEAT_S)
ONLINE_S = Timing(60, "for so long a SuperLink holds a silent node for online", DEAD_NODE_S)

# Storage
SUBMIT_S = Timing(10.0, "to wait for another submission to the same link")
LOCK_PROBE_S = Timing(0.01, "between tries to take a lock that another process may only look at")
LOCK_LOOK_S = Timing(0.2, "between checks whether a lock is free")
LEDGER_LOCK_S = Timing(10.0, "another process of a node that writes to its ledger of noise", LOCK_LOOK_S)

# Supervisor of processes
SUPERVISE_S = Timing(0.25, "between checks of the children")
RESTART_FIRST_S = Timing(0.5, "before a child is started again; doubles with each failure")
RESTART_LONGEST_S = Timing(30, "the longest such pause", RESTART_FIRST_S)
RECOVERED_S = Timing(20, "a child that lived so long has recovered: its next pause is the first again")
LOG_STREAMS_S = Timing(3, "open log streams, when a SuperLink ends")
TERMINATE_S = Timing(5, "from SIGTERM to SIGKILL", LOG_STREAMS_S)
KILL_S = Timing(2, "from SIGKILL to the end of a process")

# Node
RECONNECT_S = Timing(2, "longest pause before a lost SuperLink is dialled again")
RETRY_FIRST_S = Timing(0.5, "before a failed call is tried again; doubles each time, a random part is waited")
RETRY_LONGEST_S = Timing(3, "the longest such pause", RECONNECT_S, RETRY_FIRST_S)
HOLD_S = Timing(20, "a message to a waiting node, before the SuperLink answers without one")
SLOW_PART_S = Timing(10, "a part of a message; where it takes longer, parts are sent one after the other")
HELD_ANSWER_S = Timing(HOLD_S + 15, "an answer to a long poll", HOLD_S)
PULL_FIRST_S = Timing(0.2, "between polls for messages without long polls, at first")
PULL_LATER_S = Timing(3, "between such polls, after a silence", PULL_FIRST_S)
NODE_SILENT_S = Timing(15, "an exchange with the SuperLink, before anything is said", LONGEST_BEAT_S)
NODE_STALE_S = Timing(2 * NODE_SILENT_S, "an exchange, though the SuperLink's port answers", NODE_SILENT_S)
KEYS_READ_S = Timing(5, "a link that has just started to read its nodes' keys, before anything is said")
NOT_LET_IN_S = Timing(ONLINE_S + 15, "being admitted, before the key is blamed", ONLINE_S)
PROBE_S = Timing(2, "a connection to the SuperLink's port, and a TLS handshake")
PROBE_SLOW_S = Timing(2 * PROBE_S, "both; a probe that takes longer is trouble in itself", PROBE_S)
PORT_LOOK_S = Timing(2, "between probes of the port without an exchange")
CERTIFICATE_LOOK_S = Timing(24 * 3600, "between probes of the certificate with one", PORT_LOOK_S)
HOOK_S = Timing(10, "the program that is asked before each training")

# Parent of the task processes
TASK_IDLE_S = Timing(10, "between requests for a task without a signal of the link")
TASK_ANSWER_S = Timing(5, "an answer of the Runtime API")
TASK_RETRY_S = Timing(0.5, "after a question that failed")
UNPACK_S = Timing(30, "another ServerApp to unpack the app")
TASK_LATE_S = Timing(5, "after a message's time to live, before its process is ended")
MEMORY_LOOK_S = Timing(0.25, "between checks of the memory")

# Inside the SuperLink
SURVIVORS_S = Timing(ONLINE_S, "nodes and tasks to report to a new link", RETRY_LONGEST_S, LONGEST_BEAT_S)
PARTS_S = Timing(15, "the ServerApp to push all parts of a message")
SWEEP_S = Timing(60, "between sweeps of old messages")
FORGET_S = Timing(1, "further replies to be confirmed; they are deleted together")
HELD_S = Timing(30, "longest wait of a node's long poll for a message")
INBOX_S = Timing(30, "between database queries for a node without new messages")
UPLOAD_S = Timing(600, "the parts of a message, before the link's memory forgets them")
KEY_S = Timing(2, "between database queries for the node of a key")
RUN_STATE_S = Timing(1, "between database queries for the state of a run")
TRAFFIC_S = Timing(1, "between writes of the traffic of runs")
SLOWED_S = Timing(5, "longest delay of a call of a node that calls too often; more is refused")
SAME_LINE_S = Timing(10, "between two equal lines of the log")
HANDSHAKE_S = Timing(20, "the first frame of HTTP/2 on a connection, as long as a node waits for it")
CONNECTION_IDLE_S = Timing(60, "a call on a connection", LONGEST_BEAT_S)

# Link
LINK_LOOK_S = Timing(0.5, "between checks of the jobs")
NODES_LOOK_S = Timing(2, "between checks of the SuperLink's health, its nodes and the kit's keys")
CONTROL_S = Timing(5, "an answer of the Control API")
STATUS_S = Timing(2, "between writes of status.json")
STATUS_OLD_S = Timing(15, "a new status.json; an older one is of a link that is gone", STATUS_S)
NODES_CALM_S = Timing(6, "between such checks where all nodes are online and there is no job", NODES_LOOK_S)
KEPT_S = Timing(15, "the link's next call of its SuperLink on a connection", TASK_IDLE_S, NODES_CALM_S)
FIRST_REQUEST_S = Timing(20, "a request on a connection to the Control and Runtime APIs", KEPT_S)
SUPERLINK_RED_S = Timing(15, "a good answer of the SuperLink; then it is red", NODES_CALM_S, CONTROL_S)
SUPERLINK_SILENT_S = Timing(20, "a good answer of the SuperLink; then it is restarted", SUPERLINK_RED_S)
SUPERLINK_STARTS_S = Timing(
    60, "the first good answer of a new SuperLink; doubles with each that never came", SUPERLINK_SILENT_S
)
SUPERLINK_STARTS_LONGEST_S = Timing(900, "the longest such wait", SUPERLINK_STARTS_S)
SUBMISSION_S = Timing(120, "the check of a run that comes over the network", SUBMIT_S)
FOLLOW_S = Timing(0.25, "between updates of a job that a terminal follows")

# Monitor
MONITOR_BUSY_S = Timing(0.5, "the reading of clients.jsonl, for one answer")
MONITOR_SILENT_S = Timing(20, "a request on a connection")

# Jobs
ATTEMPT_FIRST_S = Timing(1, "before a run is submitted again; doubles with each attempt without a new round")
ATTEMPT_LONGEST_S = Timing(30, "the longest such pause, and the one after a full disk", ATTEMPT_FIRST_S)
RUN_LOOK_S = Timing(5, "between questions about a run whose ServerApp is alive")
SERVERAPP_LOST_S = Timing(3, "the lock of a run's folder to be held; else its ServerApp is gone", LINK_LOOK_S)
SERVERAPP_CLOSES_S = Timing(30, "the end of a ServerApp that has written its result")
FOLDER_HELD_S = Timing(ONLINE_S + 30, "the lock of a run's folder, from an earlier ServerApp", ONLINE_S)
MUSTER_S = Timing(15, "nodes that are not online, before a new run begins", RETRY_LONGEST_S, LONGEST_BEAT_S)
REUNION_S = Timing(ONLINE_S + 15, "the run's nodes, before it goes on without some", ONLINE_S)

# Nodes and replies at the ServerApp
ONLINE_LOOK_S = Timing(1, "between checks who is online")
PUSH_S = Timing(60, "a SuperLink in trouble to accept messages", SUPERLINK_SILENT_S)
TROUBLE_S = Timing(2, "an answer of the SuperLink; a slower one says that it was away")
TROUBLE_PAUSE_S = Timing(2, "longest pause between calls of a SuperLink in trouble")
COME_BACK_S = Timing(15, "a node that got lost and is not needed", RETRY_LONGEST_S, LONGEST_BEAT_S)
ASK_AGAIN_S = Timing(30, "a silent node, half of the time before it is asked again; doubles each time")
REGISTRATION_FIRST_S = Timing(0.05, "between checks for nodes, at first")
REGISTRATION_LATER_S = Timing(1, "between checks for nodes, later", REGISTRATION_FIRST_S)
SILENT_NODES_S = Timing(15, "the last silent nodes, before round 1 begins", REGISTRATION_LATER_S)
NEW_NODE_S = Timing(5, "a new node's registration before a later round", REGISTRATION_LATER_S)
REPLY_FIRST_S = Timing(0.001, "between polls for replies, at first")
REPLY_LATER_S = Timing(0.25, "between polls for replies, later", REPLY_FIRST_S)
NOTICE_S = Timing(3, "nodes that hear why they are left out", REPLY_LATER_S)
ANSWERED_S = Timing(2, "longest that the link holds the question which replies are there")
FETCH_S = Timing(1, "the fetch of a reply; the others no longer wait for it")
PART_FIRST_S = Timing(0.05, "between polls for a part of a reply, at first")
PART_LATER_S = Timing(1, "between polls for a part of a reply, later", PART_FIRST_S)

# Engines on one machine
FEDERATION_STARTS_S = Timing(300, "the SuperLink of a local federation", SUPERLINK_STARTS_S)
FEDERATION_STOPS_S = Timing(15, "the end of a local federation", TERMINATE_S)

# fmt: on


def scaled(factor: float) -> dict[str, Timing]:
    """Return the table by name, times `factor` where a wait is not fixed. For tests."""
    table = {name: wait for name, wait in globals().items() if isinstance(wait, Timing)}
    return {
        name: wait if wait.fixed else Timing(wait * factor, wait.waits_for, *wait.above)
        for name, wait in table.items()
    }


if TEST_SCALE in os.environ and "PYTEST_VERSION" in os.environ:
    globals().update(scaled(float(os.environ[TEST_SCALE])))
