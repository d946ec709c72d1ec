"""The webdataset package reading tar shards (NNN.json + NNN.jpg): decode, resize to 64x64, bytes [64, 64, 3].

Arguments are the shards. One pass first (page cache), then --steps timed passes.
"""
import argparse
import io
import json

import numpy as np
import torch
import webdataset
from PIL import Image

import common


def decode(sample, side):
    name = next(k for k in ("jpg", "jpeg", "png", "webp") if k in sample)
    picture = Image.open(io.BytesIO(sample[name])).convert("RGB").resize((side, side), Image.Resampling.BOX)
    return json.loads(sample["json"]), np.array(picture)


def collate(samples):
    """One array a batch: small arrays one by one would make the workers' pipe the bottleneck."""
    return [record for record, _ in samples], np.stack([picture for _, picture in samples])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", nargs="+")
    parser.add_argument("--workers", type=int, default=2, help="processes; 0: in this one")
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts = []

    def one_pass():
        dataset = webdataset.WebDataset(args.shards, shardshuffle=False, empty_check=False)
        dataset = dataset.map(lambda sample: decode(sample, args.side)).batched(64, collation_fn=collate)
        loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=args.workers)
        count = 0
        for records, pictures in loader:
            if tuple(pictures.shape) != (len(records), args.side, args.side, 3):
                raise SystemExit(f"a batch has the shape {tuple(pictures.shape)}")
            count += len(records)
        counts.append(count)

    seconds = common.time_steps(one_pass, args.warmup, args.steps)
    if len(set(counts)) != 1 or counts[0] == 0:
        raise SystemExit(f"passes read different numbers of pictures: {counts}")
    common.report("webdataset", counts[0], seconds, dict(vars(args), images=counts[0], webdataset=webdataset.__version__))


if __name__ == "__main__":
    main()
