"""Prints what TensorBoard's own reader finds in an event folder, as one JSON object.

python tensorboard_stock_reader.py DIR   (needs the tensorboard package)
"""

import json
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator

accumulator = event_accumulator.EventAccumulator(
    sys.argv[1], size_guidance={event_accumulator.SCALARS: 0, event_accumulator.IMAGES: 0})
accumulator.Reload()
tags = accumulator.Tags()
print(json.dumps({
    "file_version": accumulator.file_version,
    "scalars": {tag: [[e.wall_time, e.step, struct.pack("<f", e.value).hex()] for e in accumulator.Scalars(tag)]
                for tag in tags["scalars"]},
    "images": {tag: [[e.step, e.width, e.height, e.encoded_image_string.hex()] for e in accumulator.Images(tag)]
               for tag in tags["images"]},
}))
