#!/usr/bin/env python3
"""Trains the embedded default model. Needs PyTorch (python3-torch, libopenblas0-pthread); one thread is enough.

    MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000 ./train.py --out model.pt --minutes 90

Matrices are trained with Muon (momentum, orthogonalised by Newton-Schulz), the embedding with Adam; the rate is constant
after a warm-up and falls to zero over the last quarter of the time. Lengths grow as answers become right.
"""
import argparse
import math
import random
import time

import torch
import torch.nn.functional as F

import language

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, FFN = 128, 4, 4, 2, 32, 384
ROPE_BASE, EPSILON = 10000.0, 1e-5
BATCH_TOKENS = 4096


def rms(x):
    """RMSNorm without a weight of its own: the matrix that follows takes it in."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)


def attend(q, k, v):
    """Causal attention, [B, H, T, D] each; queries go in blocks so that little is computed past the diagonal."""
    length, outs = q.shape[2], []
    for start in range(0, length, 128):
        end = min(start + 128, length)
        scores = q[:, :, start:end] @ k[:, :, :end].transpose(-1, -2)
        mask = torch.full((end - start, end), -1e9).triu(start + 1)
        outs.append(torch.softmax(scores + mask, -1) @ v[:, :, :end])
    return torch.cat(outs, 2)


class Model(torch.nn.Module):
    """Llama's shape: pre-norm, rotary positions on interleaved pairs, grouped queries, SwiGLU, tied embeddings."""

    def __init__(self):
        super().__init__()
        new = lambda rows, cols: torch.nn.Parameter(torch.randn(rows, cols) / math.sqrt(cols))
        self.embedding = torch.nn.Parameter(torch.randn(len(language.VOCABULARY), WIDTH) * 0.5)
        self.layers = torch.nn.ModuleList()
        for _ in range(LAYERS):
            layer = torch.nn.Module()
            layer.q, layer.k, layer.v = new(HEADS * HEAD, WIDTH), new(KV_HEADS * HEAD, WIDTH), new(KV_HEADS * HEAD, WIDTH)
            layer.o = torch.nn.Parameter(torch.zeros(WIDTH, HEADS * HEAD))
            layer.gate, layer.up = new(FFN, WIDTH), new(FFN, WIDTH)
            layer.down = torch.nn.Parameter(torch.zeros(WIDTH, FFN))
            self.layers.append(layer)
        angles = torch.outer(torch.arange(language.MAX_POSITION), ROPE_BASE ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def rotate(self, x):
        pairs = torch.view_as_complex(x.view(*x.shape[:-1], HEAD // 2, 2))
        return torch.view_as_real(pairs * self.turn[: x.shape[1], None]).flatten(-2)

    def forward(self, ids, wanted):
        """Logits [wanted positions, vocabulary]; `wanted` is a mask over ids."""
        batch, length = ids.shape
        x = F.embedding(ids, self.embedding)
        for layer in self.layers:
            h = rms(x)
            q = self.rotate((h @ layer.q.t()).view(batch, length, HEADS, HEAD)).transpose(1, 2) * HEAD**-0.5
            k = self.rotate((h @ layer.k.t()).view(batch, length, KV_HEADS, HEAD)).transpose(1, 2)
            v = (h @ layer.v.t()).view(batch, length, KV_HEADS, HEAD).transpose(1, 2)
            group = HEADS // KV_HEADS
            q = q.reshape(batch * KV_HEADS, group, length, HEAD)
            k, v = (t.reshape(batch * KV_HEADS, 1, length, HEAD).expand(-1, group, -1, -1) for t in (k, v))
            out = attend(q, k, v).view(batch, HEADS, length, HEAD).transpose(1, 2).reshape(batch, length, -1)
            x = x + out @ layer.o.t()
            h = rms(x)
            x = x + (F.silu(h @ layer.gate.t()) * (h @ layer.up.t())) @ layer.down.t()
        return rms(x[wanted]) @ self.embedding.t()


def orthogonalise(g):
    """Newton-Schulz iteration of Muon (Jordan and others, 2024): pushes the singular values of g to about one."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    wide = x if x.shape[0] <= x.shape[1] else x.t()
    for _ in range(5):
        s = wide @ wide.t()
        wide = a * wide + (b * s + c * s @ s) @ wide
    return wide if x.shape[0] <= x.shape[1] else wide.t()


class Muon:
    def __init__(self, parameters, rate, momentum=0.95):
        self.parameters, self.rate, self.momentum = list(parameters), rate, momentum
        self.moments = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, scale):
        for p, m in zip(self.parameters, self.moments):
            m.mul_(self.momentum).add_(p.grad)
            update = orthogonalise(p.grad + self.momentum * m)
            p.mul_(1 - self.rate * scale * 0.02)
            p.add_(update, alpha=-self.rate * scale * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def batch(rng, length):
    rows = [language.training_sequence(rng, length + 1) for _ in range(BATCH_TOKENS // length)]
    ids = torch.tensor([r[0] for r in rows])
    answers = torch.tensor([r[1] for r in rows], dtype=torch.bool)
    return ids[:, :-1].contiguous(), ids[:, 1:], answers[:, 1:]


def length_for(rng, seen_tokens, right):
    """First 128 until answers are mostly right, then longer ones mixed in."""
    if seen_tokens < 1.5e6 or (right < 0.9 and seen_tokens < 5e6):
        return 128
    if seen_tokens < 4e6 or (right < 0.95 and seen_tokens < 8e6):
        return rng.choice((128, 256, 256))
    return rng.choice((256, 512, 512, 1024))


def rate_at(done):
    """Warm-up over the first percent of the time, constant, then linear to zero over the last quarter."""
    return min(1.0, done / 0.01 + 0.05, max(0.0, (1.0 - done) / 0.3))


def train(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    model = Model()
    if args.resume:
        model.load_state_dict(torch.load(args.resume))
    muon = Muon((p for n, p in model.named_parameters() if n != "embedding"), rate=0.02)
    adam = torch.optim.AdamW([model.embedding], lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
    start, seen, right, step, saved = time.time(), args.seen_tokens, 0.0, 0, time.time()
    while (done := (time.time() - start) / (args.minutes * 60)) < 1:
        length = length_for(rng, seen, right)
        ids, targets, wanted = batch(rng, length)
        logits = model(ids, wanted)
        loss = F.cross_entropy(logits, targets[wanted])
        model.zero_grad(set_to_none=True)
        loss.backward()
        scale = rate_at(done) if not args.resume else min(rate_at(done), args.scale)
        muon.step(scale)
        adam.param_groups[0]["lr"] = 3e-3 * scale
        adam.step()
        hit = (logits.argmax(-1) == targets[wanted]).float().mean().item()
        right = 0.98 * right + 0.02 * hit
        seen += ids.numel()
        step += 1
        if step % 25 == 0:
            print(f"{time.time() - start:7.0f}s step {step} tokens {seen / 1e6:.2f}M length {length} loss {loss.item():.4f} "
                  f"right {hit:.4f} mean {right:.4f} {(seen - args.seen_tokens) / (time.time() - start):.0f} tok/s", flush=True)
        if time.time() - saved > 120:
            torch.save(model.state_dict(), args.out)
            saved = time.time()
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", help="a state to go on from")
    parser.add_argument("--seen-tokens", type=float, default=0, help="with --resume: where in the curriculum it stands")
    parser.add_argument("--scale", type=float, default=1.0, help="with --resume: upper bound of the rate's factor")
    train(parser.parse_args())
