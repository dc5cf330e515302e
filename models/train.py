#!/usr/bin/env python3
"""Trains the embedded default model. Needs PyTorch (Debian: python3-torch, libopenblas0-pthread); one thread is enough.

    MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000 ./train.py --out model.pt --minutes 70

(The two variables keep freed memory in the process: without them a third of the time goes into page faults.)

Matrices are trained with Muon (momentum, orthogonalised by Newton-Schulz), the embedding with Adam. The rate is constant
after a warm-up and falls to zero over the last part of the time (--decay), so that a good model can be made from any state
by `--resume STATE --minutes 5 --decay 1`. Lengths grow as answers become right (STAGES).
"""
import argparse
import math
import random
import time

import torch
import torch.nn.functional as F

import language

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, FFN = 128, 4, 4, 2, 64, 256
GROUP = HEADS // KV_HEADS
# A high base leaves most pairs of a head without rotation at these lengths: names and characters are found by content.
ROPE_BASE, EPSILON = 1e8, 1e-5
SAME, NORM = 24, 1.2  # see wire()
MICRO_TOKENS, BLOCK = 1024, 128
# An answer's first token is one in ten of its tokens, and the one that needs the name: by stage, how much it counts.
FIRST_WEIGHTS = [6.0, 6.0, 6.0, 4.0, 2.0]


def rms(x):
    """RMSNorm without a weight of its own: the matrix that follows takes it in."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON)


def attend(q, k, v):
    """Causal attention: q [B, GROUP, T, D]; k, v [B, T, D]. Queries go in blocks, so little is computed past the diagonal."""
    length, outs = q.shape[2], []
    mask = torch.full((BLOCK, BLOCK), -1e9).triu(1)
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        rows = q[:, :, start:end].reshape(q.shape[0], -1, HEAD)
        scores = torch.bmm(rows, k[:, :end].transpose(1, 2))
        scores.view(q.shape[0], GROUP, end - start, end)[..., start:] += mask[: end - start, : end - start]
        out = torch.bmm(torch.softmax(scores, -1), v[:, :end])
        outs.append(out.view(q.shape[0], GROUP, end - start, HEAD))
    return torch.cat(outs, 2)


class Model(torch.nn.Module):
    """Llama's shape: pre-norm, rotary positions on interleaved pairs, grouped queries, SwiGLU, tied embeddings."""

    def __init__(self, bf16=True):
        """`bf16`: matrix products in it, half as long where the processor has AVX512-BF16."""
        super().__init__()
        self.bf16 = bf16
        new = lambda rows, cols: torch.nn.Parameter(torch.randn(rows, cols) / math.sqrt(cols))
        zero = lambda rows, cols: torch.nn.Parameter(torch.zeros(rows, cols))
        self.embedding = torch.nn.Parameter(torch.randn(len(language.VOCABULARY), WIDTH) * 0.1)
        self.layers = torch.nn.ModuleList()
        for _ in range(LAYERS):
            layer = torch.nn.Module()
            layer.q, layer.k, layer.v = new(HEADS * HEAD, WIDTH), new(KV_HEADS * HEAD, WIDTH), new(KV_HEADS * HEAD, WIDTH)
            layer.gate, layer.up = new(FFN, WIDTH), new(FFN, WIDTH)
            layer.o, layer.down = zero(WIDTH, HEADS * HEAD), zero(WIDTH, FFN)
            self.layers.append(layer)
        frequencies = ROPE_BASE ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.wire(frequencies)
        angles = torch.outer(torch.arange(language.MAX_POSITION), frequencies)
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles), persistent=False)

    @torch.no_grad()
    def wire(self, frequencies):
        """Starts the model with the heads that telling whose a code is takes; pin() keeps them.

        The first layer's heads attend to the token 1, 3 and 2 places back and to the nearest name: value 0 of every
        embedding is a constant, from which a head makes a key that is the same for all tokens and a query turned by the
        wanted distance; value 1 is there in names alone. The last values of the residual take what stands 3 places back,
        which is the name both at the first character of a code and where its answer begins, and the second layer's first
        head attends to where they are the same. A random start learns to continue a code within minutes, but hardly ever
        finds these three heads at once.
        """
        first, second = self.layers[0], self.layers[1]
        first.q.zero_()
        first.k.zero_()
        heads, keys = first.q.view(HEADS, HEAD, WIDTH), first.k.view(KV_HEADS, HEAD, WIDTH)
        for head, key, distance, pairs in ((0, 0, 1, 10), (1, 0, 3, 10), (2, 1, 2, 4)):
            scale, turn = 3.5 if pairs == 10 else 5.0, frequencies[:pairs] * distance
            keys[key, 0 : 2 * pairs : 2, 0] = scale
            heads[head, 0 : 2 * pairs : 2, 0] = scale * torch.cos(turn)
            heads[head, 1 : 2 * pairs : 2, 0] = -scale * torch.sin(turn)
        keys[1, 8:16:2, 1] = heads[3, 8:16:2, 0] = 3.0
        first.o[-SAME:] = 0.0
        first.o[-SAME:, HEAD : HEAD + SAME] = 0.1 * torch.eye(SAME)
        for weight in (second.q, second.k):
            weight[:HEAD] *= 0.3
            weight[HEAD - SAME : HEAD] = 0.0
            weight[HEAD - SAME : HEAD, -SAME:] = 1.8 * torch.eye(SAME)
        self.names = torch.zeros(len(language.VOCABULARY))
        self.names[language.NAME_IDS] = 0.3
        self.pinned = [(first.q, first.q.clone()), (first.k, first.k.clone()), (first.o[-SAME:], first.o[-SAME:].clone()),
                       (first.down[-SAME:], torch.zeros(SAME, FFN))]
        self.pinned_early = [(w[:HEAD], w[:HEAD].clone()) for w in (second.q, second.k)]
        self.pin(True)

    @torch.no_grad()
    def pin(self, early):
        """After a step: puts the wired weights back, and the embeddings on a sphere, so that their constants stay constant."""
        for weight, value in self.pinned + (self.pinned_early if early else []):
            weight.data.copy_(value)
        e = self.embedding.data
        e[:, :2] = 0.0
        e[:, -SAME:] = 0.0
        e *= (NORM**2 - 0.18) ** 0.5 / e.norm(dim=1, keepdim=True)
        e[:, 0], e[:, 1] = 0.3, self.names

    def rotate(self, x):
        x = x.float()
        pairs = torch.view_as_complex(x.view(*x.shape[:-1], HEAD // 2, 2))
        return torch.view_as_real(pairs * self.turn[: x.shape[1], None]).flatten(-2)

    def forward(self, ids, wanted):
        """Logits [wanted positions, vocabulary]; `wanted` is a mask over ids."""
        x = F.embedding(ids, self.embedding)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            for layer in self.layers:
                x = self.block(layer, x)
        return rms(x[wanted]) @ self.embedding.t()

    def block(self, layer, x):
        batch, length, _ = x.shape
        heads = lambda t, n: t.transpose(1, 2).reshape(batch * KV_HEADS, *n)
        h = rms(x)
        qk = h @ torch.cat((layer.q * HEAD**-0.5, layer.k)).t()
        qk = self.rotate(qk.view(batch, length, HEADS + KV_HEADS, HEAD))
        q, k = heads(qk[:, :, :HEADS], (GROUP, length, HEAD)), heads(qk[:, :, HEADS:], (length, HEAD))
        v = heads((h @ layer.v.t()).view(batch, length, KV_HEADS, HEAD), (length, HEAD))
        out = attend(q, k, v).view(batch, HEADS, length, HEAD).transpose(1, 2).reshape(batch, length, -1)
        x = x + out @ layer.o.t()
        h = rms(x)
        return x + (F.silu(h @ layer.gate.t()) * (h @ layer.up.t())) @ layer.down.t()


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
    rows = [language.training_sequence(rng, length + 1) for _ in range(MICRO_TOKENS // length)]
    ids = torch.tensor([r[0] for r in rows])
    answers = torch.tensor([r[1] for r in rows])
    return ids[:, :-1].contiguous(), ids[:, 1:], answers[:, 1:]


# Lengths by stage. Copying is learnt at once on two facts and hardly ever on eight, so a stage is left when answers are
# mostly right.
STAGES = [(64,), (64, 128), (128, 256), (256, 512), (256, 256, 512, 512, 1024)]
LEAVE_AT = [0.75, 0.9, 0.95, 0.98]  # right first tokens


def rate_at(done, decay):
    """Warm-up over the first percent of the time, constant, then linear to zero over its last part."""
    return min(1.0, done / 0.01 + 0.05, max(0.0, (1.0 - done) / decay))


def train_step(model, rng, stage, tokens):
    """Adds up the gradients of `tokens` tokens; the mean loss, the share of right first tokens, and of right others."""
    model.zero_grad(set_to_none=True)
    total, loss_sum, hits, counts = 0.0, 0.0, [0, 0], [1e-9, 1e-9]
    for _ in range(tokens // MICRO_TOKENS):
        ids, targets, answers = batch(rng, rng.choice(STAGES[stage]))
        wanted = answers > 0
        targets, first = targets[wanted], answers[wanted] == 2
        if not len(targets):
            continue
        logits = model(ids, wanted)
        weights = torch.where(first, FIRST_WEIGHTS[stage], 1.0)
        loss = (F.cross_entropy(logits, targets, reduction="none") * weights).sum()
        loss.backward()
        total, loss_sum = total + weights.sum().item(), loss_sum + loss.item()
        right = logits.argmax(-1) == targets
        for i, part in enumerate((first, ~first)):
            hits[i], counts[i] = hits[i] + (right & part).sum().item(), counts[i] + part.sum().item()
    for p in model.parameters():
        p.grad /= total
    return loss_sum / total, hits[0] / counts[0], hits[1] / counts[1]


def train(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    model = Model(not args.fp32)
    if args.resume:
        model.load_state_dict(torch.load(args.resume))
    muon = Muon((p for n, p in model.named_parameters() if n != "embedding"), rate=args.rate)
    adam = torch.optim.AdamW([model.embedding], lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
    start, seen, right, step, stage = time.time(), 0, 0.0, 0, args.stage
    saved = start
    while (done := (time.time() - start) / (args.minutes * 60)) < 1:
        if stage < len(LEAVE_AT) and right > LEAVE_AT[stage]:
            stage, right = stage + 1, right - 0.1
        tokens = args.tokens if stage > 1 else args.tokens // 2
        loss, hit, rest = train_step(model, rng, stage, tokens)
        scale = rate_at(done, args.decay)
        muon.step(scale)
        adam.param_groups[0]["lr"] = 0.3 * args.rate * scale
        adam.step()
        model.pin(early=stage < 2)
        right = 0.98 * right + 0.02 * hit
        seen += tokens
        step += 1
        now = time.time()
        if step % 25 == 0:
            print(f"{now - start:6.0f}s stage {stage} step {step} tokens {seen / 1e6:.2f}M loss {loss:.4f} first {hit:.4f} "
                  f"mean {right:.4f} rest {rest:.4f} {seen / (now - start):.0f} tok/s", flush=True)
        if now - saved > 60:
            torch.save(model.state_dict(), args.out)
            saved = now
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=70)
    parser.add_argument("--decay", type=float, default=0.3, help="the last part of the time, in which the rate falls to zero")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens for each step")
    parser.add_argument("--fp32", action="store_true", help="no bfloat16")
    parser.add_argument("--resume", help="a state to go on from")
    parser.add_argument("--stage", type=int, default=0, help="with --resume: where in the curriculum it stands")
    train(parser.parse_args())
