"""A bad Wi-Fi between two network namespaces: ``python -m tests.faults.air NAMESPACE LOSS DELAY_S``.

What ``tc netem loss 5% delay 100ms`` does on both ends, for kernels without it: two TUN devices ``air``, here
and in NAMESPACE, and this process, which passes packets on. It drops each with probability LOSS and holds it
for DELAY_S, so that the kernel's TCP sees real losses and retransmits. At its end it prints how many packets
came, and how many of them it dropped.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import signal
import struct
import sys
import time
from collections import deque

DEVICE = "air"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
CLONE_NEWNET = 0x40000000
MTU = 1500
QUEUE = 1000  # packets on their way in one direction, as netem has it


def open_device() -> int:
    """Open the TUN device of this namespace."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return device


def main(namespace: str, loss: float, delay_s: float) -> None:
    """Pass packets on until SIGTERM."""
    ends = [open_device()]
    with open(f"/run/netns/{namespace}") as there:
        if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    ends.append(open_device())
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: over.append(number))
    chance = random.Random(5)
    waiting: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
    came = dropped = 0
    print("here", flush=True)
    while not over:
        due = min((queue[0][0] for queue in waiting.values() if queue), default=time.monotonic() + 0.2)
        readable, _, _ = select.select(ends, [], [], max(0.0, due - time.monotonic()))
        for end in readable:
            packet, other = os.read(end, 2 * MTU), ends[end == ends[0]]
            came += 1
            if chance.random() < loss or len(waiting[other]) >= QUEUE:
                dropped += 1
            else:
                waiting[other].append((time.monotonic() + delay_s, packet))
        for end, queue in waiting.items():
            while queue and queue[0][0] <= time.monotonic():
                os.write(end, queue.popleft()[1])
    print(came, dropped, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
