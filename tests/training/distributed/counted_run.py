"""Pre-train under torchrun; rank 0 prints the bytes of the tensors that a step exchanges."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

from firth.jobs.pretraining import pretrain
from firth.training.distributed.collectives import CollectiveCounter
from firth.training.loop import Callbacks

STEP = 2  # the first steps find out what to exchange


def main() -> None:
    counter = CollectiveCounter()
    starts: dict[int, Counter[str]] = {}  # of steps: bytes so far

    def before(step: int, batch: object) -> None:
        starts.setdefault(step, counter.payload.copy())

    with counter:
        options = json.loads(sys.argv[1])
        pretrain(**options, callbacks=Callbacks(before_micro_batch=before))
    if os.environ["RANK"] == "0":
        print(json.dumps(starts[STEP + 1] - starts[STEP]))


if __name__ == "__main__":
    main()
