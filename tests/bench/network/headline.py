"""Four ranks on two nodes with a slow link between: tensor parallelism over all four, against tensor parallelism inside the nodes and a
pipeline across. Same work, real communication, layers that sleep (layout_bench.cpp). For links on which pure tensor parallelism
spends 0.3, 0.5 and 0.7 of its step: throughput ratio measured, predicted by cost model and simulator, and by the published formula.

    sudo python3 tests/bench/network/headline.py --bench build/tests/layout_bench --figure headline.svg
"""
import argparse
import json

from two_nodes import TwoNodes

LAYERS, MICROBATCHES, STEPS, ELEMENTS = 2, 16, 3, 65536  # a hidden state of 256 KiB


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/tests/layout_bench", help="the program layout_bench")
    parser.add_argument("--rate", type=float, default=200, help="of the link between the nodes, Mbit/s")
    parser.add_argument("--latency", type=float, default=1, help="of that link, one way, ms; 0: none but its own")
    parser.add_argument("--figure", help="an SVG to write")
    options = parser.parse_args()
    rows = []
    with TwoNodes(options.latency / 1e3) as nodes:
        nodes.set_rate(options.rate)

        def measure(tp, layer_s):
            out = nodes.run([options.bench, str(tp), str(LAYERS), str(MICROBATCHES), str(STEPS), str(ELEMENTS), repr(layer_s)], ranks_per_node=2)
            return json.loads(out.splitlines()[-1])

        # Without work the step is all communication: so long does pure tensor parallelism wait, whatever a layer takes.
        network_s = measure(4, 0.0)["step_s"]
        for share in (0.3, 0.5, 0.7):
            work_s = network_s * (1 - share) / share  # of a step: 3 parts a layer (forward 1, backward 2) on four devices
            layer_s = work_s * 4 / (3 * LAYERS * MICROBATCHES)
            tensor, pipeline = measure(4, layer_s), measure(2, layer_s)
            rows.append({"share": 1 - work_s / tensor["step_s"], "tensor_s": tensor["step_s"], "pipeline_s": pipeline["step_s"],
                         "measured": tensor["step_s"] / pipeline["step_s"], "predicted": tensor["predicted_s"] / pipeline["predicted_s"],
                         "formula": 1 / (1 - share + share / 2), "across": tensor["across"], "inside": tensor["inside"]})
    print(f"{'share':>6}{'tp 4':>10}{'tp 2 x pp 2':>13}{'measured':>10}{'predicted':>11}{'off':>7}{'formula, r = 2':>16}")
    for r in rows:
        print(f"{r['share']:6.2f}{r['tensor_s']:9.3f}s{r['pipeline_s']:12.3f}s{r['measured']:10.2f}{r['predicted']:11.2f}"
              f"{100 * (r['predicted'] / r['measured'] - 1):+6.0f}%{r['formula']:16.2f}")
    print(json.dumps(rows))
    if options.figure:
        with open(options.figure, "w") as file:
            file.write(figure(rows))


def figure(rows):
    width, height, left, bottom = 560, 300, 50, 250
    top = max(max(r["measured"], r["predicted"], r["formula"]) for r in rows) * 1.15
    bars = [("measured", "#2b6cb0"), ("predicted", "#90cdf4"), ("formula", "#cbd5e0")]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           '<text x="50" y="20" font-size="14">Throughput of tensor inside, pipeline across, over tensor across</text>']
    for i, r in enumerate(rows):
        for j, (key, colour) in enumerate(bars):
            x, h = left + i * 165 + j * 42, r[key] / top * (bottom - 40)
            out.append(f'<rect x="{x}" y="{bottom - h:.1f}" width="38" height="{h:.1f}" fill="{colour}"/>'
                       f'<text x="{x + 19}" y="{bottom - h - 4:.1f}" text-anchor="middle">{r[key]:.2f}</text>')
        out.append(f'<text x="{left + i * 165 + 61}" y="{bottom + 18}" text-anchor="middle">{r["share"]:.2f} in the network</text>')
    for j, (key, colour) in enumerate(bars):
        out.append(f'<rect x="{left + j * 120}" y="{bottom + 30}" width="12" height="12" fill="{colour}"/><text x="{left + j * 120 + 17}" y="{bottom + 40}">{key}</text>')
    return "\n".join(out + ["</svg>", ""])


if __name__ == "__main__":
    main()
