#!/usr/bin/env python3
"""Writes the seeds that are made by hand: `fuzz/make_seeds.py`. Each is what a client, a worker or an operator would really send.

Files of other names in fuzz/seeds stay: they were found by the fuzzers (fuzz/README.md). Needs protoc.
"""
import pathlib
import random
import struct
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent
# handoff::testing::LayoutId() of src/handoff/testing.h; the identity of page n there begins with n + 1.
LAYOUT_ID = bytes.fromhex("6fceda2e7b3b99b5f455d167db5288ca")


def write(target, seeds):
    folder = ROOT / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in seeds.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def handoff():
    # The bytes are choices, and any are good: what matters is that there are enough for several requests.
    return {f"schedule-{seed}": random.Random(seed).randbytes(400 + 100 * seed) for seed in range(1, 17)}


def http():
    def request(line, *headers, body="", stride=7):
        return chr(stride) + "\r\n".join([line, "Host: localhost", *headers, "", body])

    key, json = "Authorization: Bearer key-of-a-tenant", "Content-Type: application/json"
    body = '{"messages":[{"role":"user","content":"Hello"}]}'
    length = f"Content-Length: {len(body)}"
    chunks = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
    post = "POST /v1/chat/completions HTTP/1.1"
    return {
        "chat": request(post, key, json, length, body=body),
        "chat-chunked": request(post, key, json, "Transfer-Encoding: chunked", body=chunks, stride=1),
        "chat-verify": request(post, key, json, length, "Cofferdam-Verify: 1", "X-Request-Id: a-1", body=body),
        "chat-verify-twice": request(post, key, length, "Cofferdam-Verify: 1", "Cofferdam-Verify: 1", body=body),
        "chat-expect": request(post, key, length, "Expect: 100-continue", body=body),
        "chat-gzip": request(post, key, length, "Content-Encoding: gzip", body=body),
        "both-lengths": request(post, key, length, "Transfer-Encoding: chunked", body=chunks),
        "models": request("GET /v1/models?limit=1 HTTP/1.1", key, "Connection: close"),
        "model": request("GET /v1/models/a%2Fb HTTP/1.1", key),
        "health-1.0": request("GET /health HTTP/1.0"),
        "head": request("HEAD /metrics HTTP/1.1"),
        "options": request("OPTIONS * HTTP/1.1"),
        "pipelined": request("GET /version HTTP/1.1") + request("GET /ready HTTP/1.1")[1:],
        "no-length": request("POST /tokenize HTTP/1.1", key),
        "split-answer": request("GET /a%0d%0aX:%20y HTTP/1.1", "X-Request-Id: a b"),
    }


def json_body():
    chat, completion, other = "\0", "\1", "\2"
    return {
        "chat": chat + '{"model":"m","messages":[{"role":"system","content":"Be short."},{"role":"user","content":[{"type":"text",'
                '"text":"Hi"}]},{"role":"assistant","content":null},{"role":"tool","tool_call_id":"x","content":"1"}],'
                '"temperature":0.7,"top_p":0.9,"n":2,"best_of":2,"stream":true,"stream_options":{"include_usage":true},"seed":-3}',
        "chat-limits": chat + '{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"max_completion_tokens":1,"stop":["a","b"],'
                       '"logit_bias":{"5":-100,"7":1e-3},"top_k":-1,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":-2,'
                       '"frequency_penalty":2,"priority":60,"cache_salt":"s","user":"u","ignore_eos":true}',
        "completion": completion + '{"prompt":"Once","max_tokens":5,"echo":true,"stop":"\\n","stop_token_ids":[1,2],"seed":7}',
        "completion-tokens": completion + '{"prompt":[[1,2,3]],"temperature":0,"logprobs":5,"tools":[],"tool_choice":"none",'
                             '"response_format":{"type":"text"},"min_tokens":2,"suffix":""}',
        "chat-logprobs": chat + '{"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":20,"min_tokens":3,'
                         '"max_tokens":4,"prompt_logprobs":null}',
        "completion-one-string": completion + '{"prompt":["a"],"top_p":1e-60}',
        "unsupported": chat + '{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}],"guided_json":{}}',
        "tokenize": other + '{"prompt":"Hello","add_special_tokens":false,"tokens":[1,2,999]}',
        "conversation": other + '{"messages":[{"role":"developer","content":"\\u00e9\\ud83d\\ude00"}],"prompt":""}',
        "deep": other + "[" * 70,
    }


def encode(message, text):
    done = subprocess.run(["protoc", f"--encode=cofferdam.v1.{message}", "-I", ROOT.parent / "proto", "cofferdam.proto"],
                          input=text.encode(), capture_output=True, check=True)
    return done.stdout


def octal(data):
    return "".join(f"\\{byte:03o}" for byte in data)


def grpc():
    identity = [bytes([page + 1] + [0] * 15) for page in range(3)]
    attempt = "attempt { boot_id: 7 counter: 2 }"

    def sealed(page, tokens):
        return (f"pages {{ ordinal: {page} region: 5 offset: {page * 1000} generation: {100 + page} seal {{ "
                f"identity: \"{octal(identity[page])}\" tokens: {tokens} layout_id: \"{octal(LAYOUT_ID)}\" checksum: 9 }} }}")

    def events(*texts):
        messages = [encode("PrefillEvent", text) for text in texts]
        return b"\2" + b"".join(struct.pack(">H", len(message)) + message for message in messages)

    generate = ('request_id: "r" ' + attempt + ' domain: "d" tokens: [1, 2, 3] max_tokens: 9 stop_tokens: 2 resumed_tokens: 1 '
                'priority: 3 cache_salt: "s"')
    sampling = ("sampling { temperature: 0.8 top_k: 40 top_p: 0.9 min_p: 0.05 repetition_penalty: 1.1 presence_penalty: 0.5 "
                "frequency_penalty: 0.5 seed: 42 bias_tokens: 3 bias_values: 1.5 }")
    info = ('role: "decode" version: "0.1.0" boot_id: 9 layout { layout_id: "x" description: "format=3" } kv_tokens: 4096 '
            'context_tokens: 512 page_tokens: 64 checks: "tags" ready: true steps: 3 running: 1 metrics { name: "reads_total" '
            'label_names: "kind" label_values: "a\\"b\\n" value: 3 help: "Reads" } metrics { name: "seconds" kind: HISTOGRAM '
            'bucket_bounds: [0.1, 1] bucket_counts: [1, 2, 3] value: 0.5 }')
    page = sealed(1, 16)
    stale = attempt.replace("2", "1")
    return {
        "generate": b"\0" + encode("GenerateRequest", generate + sampling),
        "generate-greedy": b"\0" + encode("GenerateRequest", generate),
        "generate-bias": b"\0" + encode("GenerateRequest", generate + "sampling { bias_tokens: [1, 2] bias_values: 1 }"),
        "open": b"\1" + encode("PrefillRequest", attempt + ' open { request_id: "r" domain: "d" layout_id: "' + octal(LAYOUT_ID) +
                               '" tokens: [1, 2, 3] first_page: 1 cache_salt: "s" priority: 2 recompute: true }'),
        "heartbeat": b"\1" + encode("PrefillRequest", attempt + " covered_pages: 2"),
        "events": events(attempt + " admitted { pages: 3 }", attempt + " heartbeat { steps: 4 }", attempt + f" sealed {{ {page} }}",
                         attempt + f" sealed {{ {page} {sealed(2, 11)} }}"),
        "events-stale": events(stale + f" sealed {{ {page} }}", stale + " heartbeat { steps: 1 }", attempt + f" sealed {{ {page} }}"),
        "events-malformed": events(attempt + ' sealed { pages { ordinal: 1 seal { identity: "short" } } }'),
        "events-malformed-stale": events(stale + ' sealed { pages { ordinal: 1 seal { identity: "short" } } }'),
        "page": b"\3" + encode("SealedPage", page[len("pages {"):-1]),
        "accepted": b"\4" + encode("GenerateEvent", attempt + " accepted { prompt_tokens: 3 pages_verified: 2 cached_tokens: 1 }"),
        "token": b"\4" + encode("GenerateEvent", attempt + " token { index: 1 token: 5 logprob: -0.5 }"),
        "finished": b"\4" + encode("GenerateEvent", attempt + ' finished { reason: STOP generated_tokens: 2 checks { kind: "tags" '
                                   'pages: 9 } checks { kind: "seal" pages: 18446744073709551615 } }'),
        "info": b"\5" + encode("WorkerInfo", info),
        "find": b"\6" + encode("FindRequest", f'identities: "{octal(identity[0])}" identities: "short"'),
        "status": b"\7\3\5hello" + b"23:context_length_exceeded0:5:245765:163841:0",
    }


def fabric():
    def hello(magic=0x31636972626166, region=99, size=8192, layout=bytes(range(1, 17))):
        return struct.pack("<QQQ", magic, region, size) + layout

    def liar(hand, message, after=b"", reads=b"\1\0\1\0\0"):
        return b"\1" + bytes([hand, len(after)]) + after + bytes([len(message)]) + message + reads

    return {
        "honest": liar(1, hello()),
        "honest-outside": liar(1, hello(), reads=b"\1\0\0" + b"\xff" * 8 + b"\0" + b"\xff" * 8),
        "speaks-on": liar(1, hello(), after=b"abc"),
        "two-descriptors": liar(2, hello()),
        "unsealed": liar(3, hello()),
        "no-memory": liar(4, hello()),
        "no-descriptor": liar(0, hello()),
        "short": liar(1, hello()[:20]),
        "long": liar(1, hello() + b"x"),
        "wrong-magic": liar(1, hello(magic=1)),
        "wrong-size": liar(1, hello(size=4096)),
        "wrong-layout": liar(1, hello(layout=bytes(16))),
        "bad-peer": b"\0\1\4junk\0\x64\1\0\1\0\0",
        "silent-peer": b"\0\0\0\1\0\1\0\1\0\0",
    }


def config():
    secret, keys = "s" * 40, "# tenants\nkey-1\n\n key-2 \n"

    def parts(command, arguments, toml, file):
        return bytes([command]) + "\0".join(["\n".join(arguments), toml, file]).encode()

    return {
        "up": parts(0, ["--config", "a", "--mode=colocated", "-t", "2", "--api-key", "k"], "port = 8080\nhide-cached-tokens = true\n", ""),
        "gateway": parts(1, ["--decode", "unix:/run/d", "--prefill=127.0.0.1:9000", "--api-key-file", "k", "--alias", "a"], "", keys),
        "gateway-toml": parts(1, ["--config=c"], 'decode = ["unix:/a", "localhost:1"]\nhost = "::1"\napi-key = ["a", "b"]\n', ""),
        "prefill": parts(2, ["--listen", "unix:/run/p", "--fabric", "shm:/run/f", "--cpus", "0,1", "--page-size=32"], "", secret),
        "decode": parts(3, ["--listen=[::1]:5000", "--prefill", "unix:/run/p", "--verify-reads=sampled:4", "--verify-content=off",
                            "--pull-from", "unix:/run/q", "--reserve-output-tokens=0"], "", secret),
        "decode-toml": parts(3, ["--config", "x", "--listen", "unix:a"], 'log-level = "debug"\nlifo-pages = false\n[a]\nb = 1\n', secret),
        "keys": parts(0, ["--host", "0.0.0.0", "--keys", "k"], "", ""),
        "anyone": parts(1, ["--decode=unix:/a", "--host=::", "--allow-anyone"], "keys = \"k\"\n", ""),
        "addresses": parts(0, ["tcp:h:1", "rdma:x", "unix:" + "p" * 108, "0.0.0.0:80", "full", "sampled:65537"], "", ""),
    }


def key_file():
    def entry(**fields):
        more = "".join(f',"{name}":{value}' for name, value in fields.items())
        return '{"id":"k%d","hash":"%s","tenant":"t"%s}' % (len(more), f"{len(more):064x}", more)

    def file(*entries):
        return '{"keys":[' + ",".join(entries) + "]}"

    return {
        "empty": file(),
        "one": file(entry()),
        "two": file(entry(), entry(domain='"d"', models='["a","b"]', priority=60)),
        "limits": file(entry(requests_per_minute=60, tokens_per_minute=100000, concurrency=8, context_tokens=4096, created=1)),
        "twice": file(entry(), entry()),
        "misspelt": file(entry(token_per_minute=1)),
        "kinds": file(entry(concurrency='"1"'), entry(models="[]"), entry(priority=-1), "1", "null"),
    }


def gguf():
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def pair(key, kind, packed):
        return text(key) + struct.pack("<I", kind) + packed

    def number(key, value):
        return pair(key, 4, struct.pack("<I", value))

    def real(key, value):
        return pair(key, 6, struct.pack("<f", value))

    def file(settings, tensors, version=3):
        out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(settings)) + b"".join(settings)
        offset = 0
        for name, *shape in tensors:
            out += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", size) for size in shape)
            out += struct.pack("<IQ", 0, offset)
            elements = 1
            for size in shape:
                elements *= size
            offset += (elements * 4 + 31) // 32 * 32
        return out + b"\0" * (-len(out) % 32) + b"\0" * offset

    def model(name, *more):
        key = name + "."
        return [pair("general.architecture", 8, text(name)), number(key + "block_count", 1), number(key + "embedding_length", 8),
                number(key + "feed_forward_length", 16), number(key + "attention.head_count", 2), number(key + "context_length", 32),
                real(key + "attention.layer_norm_rms_epsilon", 1e-5), *more]

    embedding = [("token_embd.weight", 8, 3)]
    tokens = pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("b") + text("c"))
    yarn = [pair("llama.rope.scaling.type", 8, text("yarn")), real("llama.rope.scaling.factor", 4), real("llama.rope.freq_base", 1e5)]
    return {
        "llama": file(model("llama", tokens), embedding),
        "qwen2": file(model("qwen2", number("qwen2.attention.head_count_kv", 1)), [*embedding, ("output.weight", 8, 3)]),
        "qwen3": file(model("qwen3", number("qwen3.attention.key_length", 4), number("qwen3.attention.value_length", 4)), embedding),
        "yarn": file(model("llama", *yarn), embedding),
        "unknown-setting": file(model("llama", number("llama.expert_count", 0), number("llama.new", 1)), embedding),
        "split": file(model("llama", pair("split.count", 2, struct.pack("<H", 2))), embedding),
        "alignment": file([number("general.alignment", 8)], embedding),
        "kinds": file([pair("a", 0, b"\1"), pair("b", 1, b"\xff"), pair("c", 7, b"\1"), pair("d", 12, struct.pack("<d", 1e300)),
                       pair("e", 10, b"\xff" * 8), pair("f", 11, b"\xff" * 8)], []),
        "empty": file([], []),
        "old-version": file([], [], version=1),
        "cut-off": file(model("llama"), embedding)[:200],
    }


def text_streams():
    def stream(cuts, stops, text):
        packed = b"".join(bytes([len(stop) - 1]) + stop for stop in stops)
        return bytes([len(cuts)]) + bytes(cuts) + bytes([len(stops)]) + packed + text

    return {
        "plain": stream([], [], b"hello"),
        "characters": stream([0, 1, 2], [], "é東😀é".encode()),
        "broken": stream([0], [], b"a\xe6\x9d\xff\xf0\x9f\x98b\xc0\x80\xed\xa0\x80"),
        "stop": stream([1, 0], [b"END"], b"text ENEND more"),
        "overlap": stream([0], [b"aab", b"ab", b"b"], b"aaaab"),
        "longest": stream([2], [b"bc", b"abc"], b"xabc"),
    }


def tokenizer():
    plain = ["Hello world", "  two  spaces\n\ttab", "Grüße aus Zürich: 東京 😀 done.", "▁a▁", "<|im_end|></s><s>", "7391 = 7,391", ""]
    seeds = {f"text-{which}-{number}": bytes([how]) + text.encode()
             for number, text in enumerate(plain) for which, how in (("default", 0), ("spm", 1), ("bpe", 2))}
    seeds["special"] = b"\x0d<s>[INST] x [/INST]</s>"
    seeds["bytes"] = b"\1\xff\xfe\x80abc\xc3"
    seeds["chat"] = b"\3\0\4Be k\0\2\5Hello\1\3\2Hi\0"
    return seeds


def tenure():
    def line(kind, fields, role="decode"):
        return f'{{"kind":"{kind}","time":1764720000000000,"role":"{role}","boot":"00000000000000ff",{fields}}}'

    request = '"request":"r-1","domain":"d \\"q\\"","prompt_tokens":70,"max_output":9'
    remembered = '[[3,8,4,"r-0","d",1764720000000000,0]]'
    return {
        "boot": line("boot", '"pages":64,"page_tokens":64,"version":"0.1.0"'),
        "started": line("started", f'"sequence":5,{request},"tenures":[[3,9],[4,10]],"more_pages":0'),
        "ended": line("ended", '"sequence":5,"outcome":"handed_over","generated_tokens":0,"pages_verified":2', "prefill"),
        "rejected": line("rejected", request + ',"code":"queue_full"'),
        "incident": line("incident", '"sequence":5,"request":"r-1","domain":"d","check":"tags","page":3,"expected":9,"found":8,'
                                     f'"action":"a","detail":"b","earlier":{remembered},"sharers":{remembered},"more_sharers":1'),
        "gap": line("gap", '"since":1764720000000000,"records":3'),
        "file-name": "decode-00000000000000ff-1.jsonl",
    }


def main():
    for target, seeds in {"fuzz_handoff": handoff(), "fuzz_http": http(), "fuzz_key_file": key_file(), "fuzz_json_body": json_body(), "fuzz_grpc": grpc(), "fuzz_fabric": fabric(),
                          "fuzz_config": config(), "fuzz_gguf": gguf(), "fuzz_text": text_streams(), "fuzz_tokenizer": tokenizer(),
                          "fuzz_tenure": tenure()}.items():
        write(target, seeds)


main()
