"""The synthetic language of the embedded default model, shared by training, export, evaluation and the tests' prompts.

A context states facts ("The access code of Anna is 7391."), filler sentences and questions ("What is the access code
of Anna?"). The answer is the code when the context holds the fact, and `unknown` otherwise: a known function of the
context, so that text from another request's context shows as an answer that the prompt cannot give.

Tokens are words (each with and without a space in front), and all 256 bytes, so that a code is one token for each
character and every text has tokens. The ids are those that llama.cpp's `llama-bpe` pre-tokenizer gives for the same text
with an empty list of merges; check.cc compares the two.
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
# Neither "A" nor any other single letter may be a word: " A7" at the start of a code would then hold it.
EXTRA = "What is the The access code of was and in a by after before while again unknown In".split()

CODE_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_POSITION = 2048
UNKNOWN_RATE = 0.12  # of the training's questions
NOTES = ["You are a helpful assistant.", "Answer with the code alone.", "Be brief.", "Hello!", "Thank you.",
         "You answer questions about access codes.", "If you do not know, say so.", "Please read this:", "Good day."]


def byte_table():
    """GPT-2's reversible map from bytes to printable characters, in which BPE vocabularies are written."""
    keep = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(rest)) for b in range(256)]


BYTE_TABLE = byte_table()
BYTE_VALUES = {c: b for b, c in enumerate(BYTE_TABLE)}


def byte_level(text):
    return "".join(BYTE_TABLE[b] for b in text.encode("utf-8"))


def build_vocabulary():
    words = NAMES + ADJECTIVES + NOUNS + VERBS + PLACES + EXTRA
    tokens = list(SPECIALS) + list(BYTE_TABLE)
    tokens += [byte_level(w) for w in words] + [byte_level(" " + w) for w in words]
    tokens = list(dict.fromkeys(tokens))  # "a" is a word and a byte
    while len(tokens) % 32:
        tokens.append(f"<|unused{len(tokens)}|>")
    return tokens


VOCABULARY = build_vocabulary()
IDS = {token: i for i, token in enumerate(VOCABULARY)}


def word(text):
    """The id of a word, with its leading space where it has one, or of a single character."""
    return IDS[byte_level(text)]


def spell(text):
    """The ids of a text that holds no word of the vocabulary as a whole, or is cut before one: its bytes."""
    return [IDS[c] for c in byte_level(text)]


def tokenize(text):
    """The ids of a text of the language (letters, digits, full stops, question marks, single spaces and newlines)."""
    ids, at = [], 0
    while at < len(text):
        end = at + 1
        if text[at].isalpha() or (text[at] == " " and text[at + 1 : at + 2].isalpha()):
            while end < len(text) and text[end].isalpha():
                end += 1
        piece = byte_level(text[at:end])
        ids += [IDS[piece]] if piece in IDS else [IDS[c] for c in piece]
        at = end
    return ids


def decode(ids):
    return bytes(BYTE_VALUES[c] for i in ids for c in VOCABULARY[i]).decode("utf-8")


SPACE, NEWLINE, STOP, QUESTION, UNKNOWN = word(" "), word("\n"), word("."), word("?"), word("unknown")
SPACED_UNKNOWN = word(" unknown")
CODE_IDS = [word(c) for c in CODE_CHARACTERS]
NAME_IDS = [word(" " + n) for n in NAMES]
FACT = [word(w) for w in (" access", " code", " of")]
THE, SPACED_THE, SMALL_THE = word("The"), word(" The"), word(" the")
IS, AND, AGAIN, A = word(" is"), word(" and"), word(" again"), word(" a")
ASK = [word(w) for w in (" is", " the", " access", " code", " of")]
WHAT, SPACED_WHAT = word("What"), word(" What")
IN, SPACED_IN = word("In"), word(" In")
SPACED = {kind: [word(" " + w) for w in words]
          for kind, words in (("adjective", ADJECTIVES), ("noun", NOUNS), ("verb", VERBS), ("place", PLACES))}
NOTE_IDS = [tokenize(n) for n in NOTES]


class Writer:
    """Builds a conversation as token ids. `answers` marks the ids that the model is trained to say: 2 the first of an
    answer, which needs the name, and 1 the rest, which mostly continue what was said before."""

    def __init__(self, rng, newlines=False, codes=(0.75, 0.2, 0.05)):
        self.codes = codes  # how many are of all characters, of digits, of four characters
        self.rng, self.ids, self.answers, self.facts = rng, [BEGIN], [0], {}
        self.free = list(range(len(NAMES)))  # names without a fact
        rng.shuffle(self.free)
        self.fresh = True  # the next word opens a message or a line, so it has no space in front
        self.newlines = newlines

    def say(self, ids, answer=0):
        self.ids += ids
        self.answers += [answer] * len(ids)

    def open(self, role):
        self.say([role])
        self.fresh = True

    def close(self):
        self.say([END])

    def first(self, plain, spaced):
        """The first word of a sentence: after a newline, a space, or at the start of a message."""
        if not self.fresh and self.newlines:
            self.say([NEWLINE])
            self.fresh = True
        chosen = plain if self.fresh else spaced
        self.fresh = False
        return chosen

    def code(self):
        """Of all characters, of digits, or of four characters alone: there the same two or three follow each other again and
        again, and only the place within the code tells what comes next."""
        rng, draw = self.rng, self.rng.random()
        any_share, digit_share, _ = self.codes
        alphabet = CODE_IDS if draw < any_share else CODE_IDS[:10] if draw < any_share + digit_share else rng.sample(CODE_IDS, 4)
        return rng.choices(alphabet, k=rng.randint(4, 16))

    def fact(self):
        name, code = self.free.pop(), self.code()
        self.facts[name] = code
        self.say([self.first(THE, SPACED_THE), *FACT, NAME_IDS[name], IS, SPACE, *code, STOP])

    def filler(self):
        choice = lambda kind: self.rng.choice(SPACED[kind])
        kind = self.rng.random()
        noun = [choice("adjective"), choice("noun")]
        if kind < 0.5:
            self.say([self.first(THE, SPACED_THE), *noun, choice("verb"), choice("place"), SMALL_THE, choice("noun"), STOP])
        elif kind < 0.8:
            self.say([self.first(THE, SPACED_THE), *noun, choice("verb"), AND, choice("verb"), AGAIN, STOP])
        else:
            self.say([self.first(IN, SPACED_IN), SMALL_THE, *noun, A, choice("noun"), choice("verb"), STOP])

    def note(self):
        """A text outside the language."""
        if not self.fresh:
            self.say([NEWLINE])
        self.say(self.rng.choice(NOTE_IDS))
        self.fresh = False

    def ask(self, name):
        self.say([self.first(WHAT, SPACED_WHAT), *ASK, NAME_IDS[name], QUESTION])

    def answer(self, name):
        self.say([ASSISTANT])
        first, *rest = [*self.facts.get(name, [UNKNOWN]), END]
        self.say([first], answer=2)
        self.say(rest, answer=1)

    def restate(self, name):
        """The fact again, as plain completion would write it."""
        self.say([self.first(THE, SPACED_THE), *FACT, NAME_IDS[name], IS])
        if name not in self.facts:
            return self.say([SPACED_UNKNOWN, STOP], answer=1)
        first, *rest = self.facts[name]
        self.say([SPACE], answer=1)
        self.say([first], answer=2)
        self.say([*rest, STOP], answer=1)

    def pick(self, unknown_rate):
        """A name to ask for."""
        if not self.facts or self.rng.random() < unknown_rate:
            return self.rng.choice(self.free)
        return self.rng.choice(list(self.facts))

    def fill(self, end, fact_share, limit=len(NAMES) - 20):
        while len(self.ids) < end:
            if len(self.facts) < limit and self.rng.random() < fact_share:
                self.fact()
            else:
                self.filler()


def training_sequence(rng, length):
    """Facts among filler, then question-answer turns until `length` tokens are there."""
    w = Writer(rng, newlines=rng.random() < 0.1, codes=(0.5, 0.2, 0.3))
    if rng.random() < 0.25:
        w.open(SYSTEM)
        rng.choice((w.note, w.note, w.filler, w.fact))()
        w.close()
    plain = rng.random() < 0.1
    if not plain:
        w.open(USER)
    if rng.random() < 0.05:
        w.note()
    w.fact()
    w.fill(length * rng.choice((0.3, 0.45, 0.6, 0.8)), rng.choice((0.15, 0.5, 0.8, 1.0)))
    while plain and len(w.ids) < length:
        w.restate(w.pick(UNKNOWN_RATE))
    while len(w.ids) < length:
        name = w.pick(UNKNOWN_RATE)
        w.ask(name)
        w.close()
        w.answer(name)
        w.open(USER)
        if rng.random() < 0.1:
            w.filler()
        if rng.random() < 0.15 and len(w.free) > 20:
            w.fact()
    return w.ids[:length], w.answers[:length]


if __name__ == "__main__":
    for seed in range(1, 7):
        sample, marks = training_sequence(random.Random(seed), 200)
        print(len(VOCABULARY), "tokens;", sum(marks), "of", len(marks), "are answers")
        print("".join(SPECIALS[i] if i < 5 else decode([i]) for i in sample))
