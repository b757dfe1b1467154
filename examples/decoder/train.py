"""Trains the decoder on text/train.txt, ten seconds on a GPU.

    python -m examples.decoder.train weights.npz

What it gives depends on the machine and its libraries; decoder.onnx holds the weights of one run.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from examples.decoder.model import CONTEXT, Decoder

TEXT = Path(__file__).parent / "text"
STEPS, BATCH, RATE, WARM_UP = 600, 64, 2e-3, 50


def main(output: Path) -> None:
    """Train, and keep the weights in float16."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = torch.tensor(list((TEXT / "train.txt").read_bytes()), dtype=torch.long, device=device)
    model = Decoder().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        decay = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP) * decay
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=generator)
        rows = torch.stack([data[s : s + CONTEXT + 1] for s in starts.tolist()])
        loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step}: {loss.item():.3f} nats a byte", flush=True)
    weights = {name: w.half().cpu().numpy() for name, w in model.state_dict().items()}
    np.savez(output, **weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
