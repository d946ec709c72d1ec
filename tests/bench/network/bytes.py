"""What a pipeline is predicted to send between two nodes, against what the network interfaces count: within 5 percent, headers included.

    sudo python3 tests/bench/network/bytes.py --bench build/tests/layout_bench

Exits with 77 where network namespaces cannot be made.
"""
import argparse
import os
import shutil
import sys

from two_nodes import TwoNodes

# Tensor-parallel ranks a node, microbatches, elements of a hidden state (4 bytes each).
LAYOUTS = [(1, 4, 65536), (1, 8, 65536), (1, 3, 262144), (2, 4, 65536), (2, 8, 131072), (4, 2, 65536)]
STEPS = 4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/tests/layout_bench", help="the program layout_bench")
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("skipped: network namespaces need root, ip and tc")
        sys.exit(77)
    wrong = 0
    print(f"{'layout':<22}{'predicted':>12}{'interfaces':>12}{'more':>8}")
    with TwoNodes() as nodes:
        nodes.set_rate(1000)
        for tp, microbatches, elements in LAYOUTS:

            def sent(steps):
                before = nodes.bytes_sent()
                nodes.run([options.bench, str(tp), "2", str(microbatches), str(steps), str(elements), "0.0"], ranks_per_node=tp)
                return [after - b for after, b in zip(nodes.bytes_sent(), before)]

            # The difference of a long and a short run leaves connecting and measuring out. Each node sends, per step, one hidden state or
            # one gradient for each microbatch and tensor-parallel rank.
            counted = [long - short for long, short in zip(sent(1 + STEPS), sent(1))]
            predicted = STEPS * microbatches * tp * elements * 4
            more = max(abs(c / predicted - 1) for c in counted)
            wrong += more > 0.05
            print(f"tp {tp} pp 2, {microbatches} x {elements:<8}{predicted / 1e6:10.2f}MB{max(counted) / 1e6:10.2f}MB{100 * more:7.1f}%")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
