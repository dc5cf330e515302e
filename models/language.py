"""The synthetic language of the embedded default model, shared by training, export and the tests' prompts.

A context states facts ("The access code of Anna is 7391."), filler sentences and questions ("What is the access code
of Anna?"). The answer is the code when the context holds the fact, and `unknown` otherwise: a known function of the
context, so that text from another request's context shows as an answer that the prompt cannot give.

Tokens are words with their leading space, one token for each character of a code, and all 256 bytes; the ids are those
that llama.cpp's `llama-bpe` pre-tokenizer gives for the same text (export_gguf.py writes the vocabulary, and
eval_prompts.py --check compares the two).
"""
import random

SPECIALS = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
BEGIN, END, SYSTEM, USER, ASSISTANT = range(5)

NAMES = """Anna Ben Carla David Elena Felix Greta Henry Irene Jonas Karin Leo Maria Nils Olga Paul Quinn Rosa Simon Tara
Ulrich Vera Walter Xenia Yusuf Zoe Adam Bella Cyrus Daria Emil Fiona Gavin Hanna Igor Julia Kevin Laura Marco Nadia Oscar
Petra Ralf Sofia Tobias Ursula Victor Wanda Yara Zeno Alice Boris Chloe Dennis Edith Frank Gloria Hugo Ines Jakob Klara
Lukas Mona Noah Olivia Pedro Ruth Stefan Tina Uwe Viola Wilma Yvonne Aaron Bianca Conrad Diana Erik Flora Georg Helga Ivan
Judith Kurt Linda Martin Nora Otto Paula Robert Sara Thomas Valerie William Agnes Bruno Cecilia Dominic Eva Ferdinand
Gisela Harald Ilse Johann Katrin Ludwig Miriam Norbert Ophelia Philip Regina Samuel Theresa Vincent""".split()
ADJECTIVES = """old quiet green small bright cold heavy narrow empty gentle busy dusty golden hollow early late distant
plain round silver steep warm wide young""".split()
NOUNS = """river boat garden market window bridge tower forest kitchen letter street morning winter mountain village ship
harbour clock basket candle door field horse island lamp meadow orchard path roof school stone table valley wagon wall
well bird cloud fence fire""".split()
VERBS = """waited moved rested turned stood slept shone waved fell rose changed remained arrived vanished returned
opened closed burned""".split()
PLACES = "near behind above below beside past under around".split()
EXTRA = "What is the The access code of was and in a by after before while again unknown A In".split()

CODE_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_POSITION = 2048


def byte_table():
    keep = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(rest)) for b in range(256)]


BYTE_TABLE = byte_table()


def byte_level(text):
    """A text, or one byte, in GPT-2's reversible map from bytes to printable characters, as BPE vocabularies are written."""
    return "".join(BYTE_TABLE[b] for b in text.encode("utf-8")) if isinstance(text, str) else BYTE_TABLE[text]


def build_vocabulary():
    words = NAMES + ADJECTIVES + NOUNS + VERBS + PLACES + EXTRA
    tokens = list(SPECIALS) + [byte_level(b) for b in range(256)]
    tokens += [byte_level(w) for w in words] + [byte_level(" " + w) for w in words]
    tokens = list(dict.fromkeys(tokens))  # "A" is a word and a byte
    while len(tokens) % 32:
        tokens.append(f"<|unused{len(tokens)}|>")
    return tokens


VOCABULARY = build_vocabulary()
IDS = {token: i for i, token in enumerate(VOCABULARY)}


def word(text):
    """The id of a word, with its leading space where it has one, or of a single character."""
    return IDS[byte_level(text)]


SPACE, STOP, QUESTION, UNKNOWN = word(" "), word("."), word("?"), word("unknown")
CODE_IDS = [word(c) for c in CODE_CHARACTERS]
NAME_IDS = [word(" " + n) for n in NAMES]
FACT = [word(w) for w in (" access", " code", " of")]
THE, SPACED_THE = word("The"), word(" The")
IS = word(" is")
ASK = [word(w) for w in (" is", " the", " access", " code", " of")]
WHAT, SPACED_WHAT = word("What"), word(" What")


class Writer:
    """Builds a conversation as token ids. `answers` marks the ids that the model is trained to say."""

    def __init__(self, rng):
        self.rng, self.ids, self.answers, self.facts = rng, [BEGIN], [0], {}
        self.fresh = True  # the next word opens a message, so it has no space in front

    def say(self, ids, answer=0):
        self.ids += ids
        self.answers += [answer] * len(ids)

    def open(self, role):
        self.say([role])
        self.fresh = True

    def first(self, plain, spaced):
        chosen = plain if self.fresh else spaced
        self.fresh = False
        return chosen

    def fact(self, name=None, code=None):
        rng = self.rng
        if name is None:
            free = [n for n in range(len(NAMES)) if n not in self.facts]
            name = rng.choice(free)
        if code is None:
            alphabet = CODE_IDS[: rng.choice((10, 36, 36, 4))] if rng.random() < 0.5 else CODE_IDS
            code = [rng.choice(alphabet) for _ in range(rng.randint(4, 16))]
        self.facts[name] = code
        self.say([self.first(THE, SPACED_THE), *FACT, NAME_IDS[name], IS, SPACE, *code, STOP])

    def filler(self):
        rng = self.rng
        pick = lambda words: word(" " + rng.choice(words))
        kind = rng.random()
        noun = [pick(ADJECTIVES), pick(NOUNS)]
        if kind < 0.5:
            self.say([self.first(THE, SPACED_THE), *noun, pick(VERBS), pick(PLACES), ASK[1], pick(NOUNS), STOP])
        elif kind < 0.8:
            self.say([self.first(word("A"), word(" A")), *noun, pick(VERBS), word(" and"), pick(VERBS), word(" again"), STOP])
        else:
            self.say([self.first(word("In"), word(" In")), ASK[1], *noun, word(" a"), pick(NOUNS), pick(VERBS), STOP])

    def ask(self, name):
        self.say([self.first(WHAT, SPACED_WHAT), *ASK, NAME_IDS[name], QUESTION])

    def answer(self, name):
        self.say([ASSISTANT])
        self.say([*self.facts.get(name, [UNKNOWN]), END], answer=1)


def some_name(rng, facts, unknown_rate):
    if not facts or rng.random() < unknown_rate:
        return rng.choice([n for n in range(len(NAMES)) if n not in facts])
    return rng.choice(list(facts))


def training_sequence(rng, length):
    """Facts among filler, then question-answer turns until `length` tokens are there."""
    w = Writer(rng)
    if rng.random() < 0.15:
        w.open(SYSTEM)
        w.filler()
        if rng.random() < 0.5:
            w.fact()
        w.say([END])
    w.open(USER)
    body = length * rng.choice((0.3, 0.45, 0.45, 0.6))
    fact_share = rng.choice((0.15, 0.5, 0.8, 1.0))
    while len(w.ids) < body:
        if rng.random() < fact_share and len(w.facts) < len(NAMES) - 20:
            w.fact()
        else:
            w.filler()
    while len(w.ids) < length:
        name = some_name(rng, w.facts, 0.12)
        w.ask(name)
        w.say([END])
        w.answer(name)
        w.open(USER)
        if rng.random() < 0.15:
            w.filler()
        if rng.random() < 0.15:
            w.fact()
    return w.ids[:length], w.answers[:length]


def held_out_prompt(rng, tokens, with_fact):
    """One conversation of at most `tokens` tokens (with the chat template's): (text of the user message, answer, count)."""
    w = Writer(rng)
    w.open(USER)
    target = rng.randint(40, tokens - 30)
    fact_share = rng.choice((0.1, 0.3, 0.6, 1.0))
    w.fact()
    while len(w.ids) < target - 40:
        if rng.random() < fact_share and len(w.facts) < len(NAMES) - 20:
            w.fact()
        else:
            w.filler()
    name = some_name(rng, w.facts, 0.0 if with_fact else 1.0)
    w.ask(name)
    text = decode(w.ids[2:])
    count = len(w.ids) + 2
    return text, decode(w.facts.get(name, [UNKNOWN])), count


def decode(ids):
    return bytes(BYTE_TABLE.index(c) for i in ids for c in VOCABULARY[i]).decode("utf-8")


if __name__ == "__main__":
    sample, marks = training_sequence(random.Random(1), 256)
    print(len(VOCABULARY), "tokens;", sum(marks), "of", len(marks), "are answers")
    print("".join(SPECIALS[i] if i < 5 else decode([i]) for i in sample))
