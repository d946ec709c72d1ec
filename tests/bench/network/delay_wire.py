"""A wire that takes its time: passes Ethernet frames between two interfaces of this namespace, each after a delay. Stands in for
`tc netem`, which many kernels lack. Prints a line once it listens, and runs until it is killed.

    python3 delay_wire.py INTERFACE INTERFACE SECONDS
    python3 delay_wire.py --whole-frames INTERFACE     # for the interfaces at the wire's ends, which send through it
"""
import collections
import ctypes
import fcntl
import select
import socket
import struct
import sys
import time

ETH_P_ALL, SIOCETHTOOL, ETHTOOL_STXCSUM = 3, 0x8946, 0x17


def whole_frames(interface):
    """Makes an interface send frames that are finished, of its MTU at most and summed: a relay can neither cut nor sum them."""
    off = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_STXCSUM, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP", interface.encode(), ctypes.addressof(off)))


def relay(interfaces, delay_s):
    ends = []
    for interface in interfaces:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        end.bind((interface, ETH_P_ALL))
        end.setblocking(False)
        ends.append(end)
    waiting = [collections.deque(), collections.deque()]  # (due time, frame) that came in at each end
    print("relaying", flush=True)
    while True:
        now = time.monotonic()
        due = min((queue[0][0] for queue in waiting if queue), default=now + 1)
        select.select(ends, [], [], max(0.0, due - now))
        for end, queue in zip(ends, waiting):
            try:
                for _ in range(64):
                    frame, (_, _, kind, *_) = end.recvfrom(65536)
                    if kind != socket.PACKET_OUTGOING:
                        queue.append((time.monotonic() + delay_s, frame))
            except BlockingIOError:
                pass
        now = time.monotonic()
        for other, queue in zip(reversed(ends), waiting):
            while queue and queue[0][0] <= now:
                try:
                    other.send(queue[0][1])
                except BlockingIOError:
                    break  # the interface is full: once more in a moment
                queue.popleft()


if __name__ == "__main__":
    if sys.argv[1] == "--whole-frames":
        whole_frames(sys.argv[2])
    else:
        relay(sys.argv[1:3], float(sys.argv[3]))
