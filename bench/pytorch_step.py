#!/usr/bin/env python3
"""Seconds a step of examples/small-gpt-2-cpu.yaml's model in PyTorch eager on a CPU: what a paired run is compared with.

    taskset -c 0 python3 bench/pytorch_step.py --threads 1
    taskset -c 0 build/release/windtunnel run examples/small-gpt-2-cpu.yaml \
        --set cluster.node.devices=1 --set strategy.data_parallel=ddp

The same work: 8 micro-batches of one sequence whose gradients add up, clipping, Adam, one read of the loss.
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--steps", type=int, default=10)
options = parser.parse_args()
torch.set_num_threads(options.threads)

LAYERS, HIDDEN, FFN, HEADS, VOCAB, SEQUENCE, MICRO_BATCHES = 4, 256, 1024, 4, 256, 128, 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, FFN), nn.Linear(FFN, HIDDEN)

    def forward(self, x):
        q, k, v = (t.view(1, SEQUENCE, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(1, SEQUENCE, HIDDEN))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.position = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(SEQUENCE, HIDDEN)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(HIDDEN)

    def forward(self, tokens):
        x = self.table(tokens) + self.position.weight
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.table.weight)


model = Model()
adam = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
batch = torch.randint(VOCAB, (MICRO_BATCHES, SEQUENCE + 1))
times = []
for step in range(options.steps + 2):
    begin = time.perf_counter()
    adam.zero_grad(set_to_none=False)
    total = 0.0
    for row in batch:
        loss = F.cross_entropy(model(row[None, :-1])[0], row[1:]) / MICRO_BATCHES
        loss.backward()
        total += float(loss.detach())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    times.append(time.perf_counter() - begin)
print(f"median {statistics.median(times[2:]) * 1e3:.1f} ms a step, {options.threads} threads, PyTorch {torch.__version__}")
