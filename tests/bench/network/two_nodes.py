"""Two nodes on one machine: network namespaces joined by a link of a given rate (tc tbf) and latency (delay_wire.py). Needs root and iproute2."""
import os
import pathlib
import subprocess
import sys

ADDRESSES = ("10.77.0.1", "10.77.0.2")
DELAY_WIRE = [sys.executable, str(pathlib.Path(__file__).with_name("delay_wire.py"))]


class TwoNodes:
    """A context; run() starts ranks in both nodes. Everything it made is gone when it ends. latency_s: of the link, one way, on top of its own."""

    def __init__(self, latency_s=0.0):
        self.latency_s = latency_s
        self.names = [f"contexture-{os.getpid()}-{side}" for side in "ab"]
        self.links = [f"cx{os.getpid() % 100000}{side}" for side in "ab"]
        self.wire = f"contexture-{os.getpid()}-wire"  # namespace of the relay, if there is latency
        self.relay = None

    def __enter__(self):
        if os.geteuid() != 0:
            sys.exit("network namespaces need root: run it with sudo")
        try:
            for name in self.names:
                ip("netns", "add", name)
            if self.latency_s > 0:
                ip("netns", "add", self.wire)
                for name, link in zip(self.names, self.links):
                    join(link, name, link + "w", self.wire)
                    ip("-n", self.wire, "link", "set", link + "w", "up")
                    subprocess.run(["ip", "netns", "exec", name, *DELAY_WIRE, "--whole-frames", link], check=True)
            else:
                join(self.links[0], self.names[0], self.links[1], self.names[1])
            for name, link, address in zip(self.names, self.links, ADDRESSES):
                ip("-n", name, "addr", "add", address + "/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
                ip("-n", name, "link", "set", "lo", "up")
            if self.latency_s > 0:
                self.relay = subprocess.Popen(["ip", "netns", "exec", self.wire, *DELAY_WIRE, *(link + "w" for link in self.links), repr(self.latency_s)],
                                              stdout=subprocess.PIPE)
                self.relay.stdout.readline()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.relay:
            self.relay.kill()
            self.relay.communicate()
        for name in (*self.names, self.wire):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def set_rate(self, mbit):
        """Of each direction of the link between the nodes."""
        for name, link in zip(self.names, self.links):
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", link, "root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb",
                            "latency", "200ms"], check=True)

    def bytes_sent(self):
        """So far, by each node into the link, headers and all."""
        out = []
        for name, link in zip(self.names, self.links):
            path = f"/sys/class/net/{link}/statistics/tx_bytes"
            out.append(int(subprocess.run(["ip", "netns", "exec", name, "cat", path], check=True, capture_output=True, text=True).stdout))
        return out

    def run(self, command, ranks_per_node, timeout_s=300, environment=None):
        """The command on every rank; rank 0's standard output. Stops the program when a rank fails."""
        size, processes = 2 * ranks_per_node, []
        for rank in range(size):
            node = rank // ranks_per_node
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank % ranks_per_node), LOCAL_WORLD_SIZE=str(ranks_per_node),
                       MASTER_ADDR=ADDRESSES[0], MASTER_PORT="29511", OMP_NUM_THREADS="1", **(environment or {}))
            processes.append(subprocess.Popen(["ip", "netns", "exec", self.names[node], *command], env=env, text=True,
                                              stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
        try:
            output = processes[0].communicate(timeout=timeout_s)[0]
            codes = [p.wait(timeout=60) for p in processes]
        finally:
            for p in processes:
                p.kill()
        if any(codes):
            sys.exit(f"{' '.join(command)}: the ranks ended with {codes}")
        return output


def join(link, name, other_link, other_name):
    """Two ends of a cable in two namespaces. Jumbo frames, as between the nodes of a cluster: headers are then under a hundredth of what is sent."""
    ip("link", "add", link, "mtu", "9000", "netns", name, "type", "veth", "peer", "name", other_link, "mtu", "9000", "netns", other_name)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)
