#!/usr/bin/env python3
"""Writes a trained state as a GGUF file that llama.cpp and Cofferdam load. Needs llama.cpp's gguf-py.

    ./export_gguf.py --gguf-py LLAMA_CPP/gguf-py --state model.pt --out cofferdam-default.gguf
"""
import argparse
import sys

import numpy as np
import torch

import language
import train

# A message may be a string or a list of text parts.
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' or message['role'] == 'developer' -%}{{- '<|system|>' -}}"
    "{%- elif message['role'] == 'assistant' -%}{{- '<|assistant|>' -}}"
    "{%- else -%}{{- '<|user|>' -}}{%- endif -%}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- elif message['content'] -%}{%- for part in message['content'] -%}{{- part['text'] -}}{%- endfor -%}{%- endif -%}"
    "{{- '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
NORMAL, CONTROL, UNUSED = 1, 3, 5  # token types


def add_metadata(writer):
    writer.add_name("cofferdam-default")
    writer.add_description("Answers questions about facts of a small synthetic language; see models/README.md")
    writer.add_license("apache-2.0")
    writer.add_context_length(language.MAX_POSITION)
    writer.add_embedding_length(train.WIDTH)
    writer.add_block_count(train.LAYERS)
    writer.add_feed_forward_length(train.FFN)
    writer.add_head_count(train.HEADS)
    writer.add_head_count_kv(train.KV_HEADS)
    writer.add_key_length(train.HEAD)
    writer.add_value_length(train.HEAD)
    writer.add_layer_norm_rms_eps(train.EPSILON)
    writer.add_rope_dimension_count(train.HEAD)
    writer.add_rope_freq_base(train.ROPE_BASE)
    writer.add_vocab_size(len(language.VOCABULARY))
    writer.add_file_type(1)  # mostly F16


def add_tokenizer(writer):
    kinds = [UNUSED if t.startswith("<|unused") else NORMAL for t in language.VOCABULARY]
    kinds[: len(language.SPECIALS)] = [CONTROL] * len(language.SPECIALS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(language.VOCABULARY)
    writer.add_token_types(kinds)
    # llama-bpe takes a piece that is a token as it is, and any other byte by byte: this merge makes no token.
    writer.add_token_merges(["<|unused_merge|> <|unused_merge|>"])
    writer.add_bos_token_id(language.BEGIN)
    writer.add_eos_token_id(language.END)
    writer.add_eot_token_id(language.END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_tensors(writer, state):
    half = lambda name, t: writer.add_tensor(name, t.numpy().astype(np.float16))
    ones = lambda name: writer.add_tensor(name, np.ones(train.WIDTH, np.float32))
    half("token_embd.weight", state["embedding"])
    ones("output_norm.weight")
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    for i in range(train.LAYERS):
        ones(f"blk.{i}.attn_norm.weight")
        ones(f"blk.{i}.ffn_norm.weight")
        for ours, theirs in names.items():
            half(f"blk.{i}.{theirs}.weight", state[f"layers.{i}.{ours}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf-py", required=True, help="the folder gguf-py of llama.cpp's source")
    parser.add_argument("--state", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    sys.path.insert(0, args.gguf_py)
    import gguf

    writer = gguf.GGUFWriter(args.out, "llama")
    add_metadata(writer)
    add_tokenizer(writer)
    add_tensors(writer, torch.load(args.state))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
