"""Two nodes on one machine: network namespaces joined by a link of a given rate (tc tbf). Needs root and iproute2."""
import os
import subprocess
import sys

ADDRESSES = ("10.77.0.1", "10.77.0.2")


class TwoNodes:
    """A context; run() starts ranks in both nodes. Everything it made is gone when it ends."""

    def __init__(self):
        self.names = [f"contexture-{os.getpid()}-{side}" for side in "ab"]
        self.links = [f"cx{os.getpid() % 100000}{side}" for side in "ab"]

    def __enter__(self):
        if os.geteuid() != 0:
            sys.exit("network namespaces need root: run it with sudo")
        try:
            for name in self.names:
                ip("netns", "add", name)
            # Jumbo frames, as between the nodes of a cluster: headers are then under a hundredth of what is sent.
            ip("link", "add", self.links[0], "mtu", "9000", "netns", self.names[0], "type", "veth", "peer", "name", self.links[1], "mtu", "9000", "netns", self.names[1])
            for name, link, address in zip(self.names, self.links, ADDRESSES):
                ip("-n", name, "addr", "add", address + "/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
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


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)
