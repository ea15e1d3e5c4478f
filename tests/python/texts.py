"""Texts that tokenizers get wrong, the same on every run."""

import random

SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
                           0x2028, 0x2029, 0x202F, 0x205F, 0x3000)]
# Look like white space, and are none: file separators, zero-width characters, the byte-order mark.
ALMOST_SPACES = [chr(c) for c in (0, 0x1C, 0x1D, 0x1E, 0x1F, 0x180E, 0x200B, 0x200C, 0x200D,
                                  0x2060, 0xFEFF)]

TORTURE = [
    "", " ", "  ", "\n", "\r\n", "\t\t x", "a", " a", "  a", "a ", "a  ", "a \n b", "\n\n\n", "   \n",
    "it's I'll you've they're I'm he'd can't 'S 'LL ''s 're've '", "x's's", " 's", "'", "' t", "'\u017f",
    "don\u2019t", "HELLO'S", "1'd 2'm", "a1b2 3c", "1234567890", " 12,345.67e-8", "\u00bd\u00b2\u2460\u2167",
    "\u0661\u0662\u0663 \u0967\u0968 \uff11\uff12", "\u4e00\u4e8c\u4e09 \u3007 \u5341",
    "hello<|endoftext|>world", "<|endoftext|>", " <|endoftext|> ", "<|endoftext|><|endoftext|>",
    "<|endoftext|", "<<|endoftext|>>", "< |endoftext|>", "x <|endoftext|>\n\n  y",
    "\U0001F600\U0001F600 \U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466", "\U0001F1E9\U0001F1EA", "\U0001F44D\U0001F3FD",
    "\u263a\ufe0f \u2764\ufe0f", "#\ufe0f\u20e3", "\u00e9 e\u0301 e\u0301\u0301\u0301", "Z\u0351\u036b\u0343\u036a a\u0306l",
    "\u0915\u094d\u0937 \u0939\u093f\u0928\u094d\u0926\u0940", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\u1112\u1161\u11ab \ud55c\uad6d\uc5b4",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3001\u3068\u3066\u3082\u9577\u3044\u3002", "\u4e2d\u6587\u3000\u5168\u89d2\u7a7a\u683c",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u0645\u0631\u062d\u0628\u0627 \u200f\u202e\u0628\u0627\u0644\u0639\u0627\u0644\u0645\u202c", "\u0644\u0627\u064e",
    "\U00010330\U00010331 \U0001D400\U0001D7CE \U00020000\U0002A6DF \U00031350", "\U000E0001\U000E0041 \U0010FFFF \ufffd \uffff",
    "\ufb01 \u01c5 \u0130 \u00df \u00aa\u00ba \u02b0", "a_b-c.d/e\\f", "!!!???... --- ===", " !a !1 ! ",
    "\x00\x01\x02 \x7f\x80\x9f \xad", "def f(x):\n    return x  # y\n\n\n", "https://x.org/?a=1&b=%20#z",
    "a" * 1000, " " * 1000, "\n" * 999 + "x", "ab" * 3000, "\U0001F600" * 300, "1" * 500, "=" * 2000,
    "the " * 300, "\u00e9" * 700, "word" * 50 + " " + "word" * 50,
    *SPACES, *(s + s for s in SPACES), *("a" + s + "b" for s in SPACES),
    *("a" + s + " b" for s in SPACES), *("a " + s + "b" for s in SPACES),
    *("a" + s + "b" for s in ALMOST_SPACES), *(" " + s + " " for s in ALMOST_SPACES),
]

ENGLISH = [
    "The quick brown fox jumps over the lazy dog, and then there's another one that they've seen.",
    "It was the best of times, it was the worst of times; we're all going the other way in 1859.",
    "When the model has been trained, the weights are written to a file that others can read.",
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz ", "etaoin shrdlu\n", "ab ", "a1 '!s\n", "'strevmld ",
    "".join(SPACES) + "ab1!", "".join(ALMOST_SPACES) + " a", "0123456789.,- ",
    "\u00e9\u00e8\u00fc\u00f1\u0301\u0308 aeiou", "\u4e00\u4e8c\u4e09\u306e\u3042\u30a2\u3000 ", "\u0645\u0631\u062d\u0628\u0627\u064e\u200f ", "\U0001F600\U0001F468\u200d\U0001F469\ufe0f\U0001F3FD ",
    "<|endoftext|> ", "".join(chr(c) for c in range(0x250)),
]


def random_code_point(generator):
    while True:
        code_point = generator.choice((generator.randrange(0x800), generator.randrange(0x10000),
                                       generator.randrange(0x110000)))
        if not 0xD800 <= code_point < 0xE000:
            return chr(code_point)


def random_text(generator):
    length = generator.choice((3, 10, 40, 200))
    alphabet = generator.choice(ALPHABETS + [None])
    if alphabet is None:
        return "".join(random_code_point(generator) for _ in range(length))
    text = "".join(generator.choice(alphabet) for _ in range(length))
    if generator.random() < 0.1:
        at = generator.randrange(len(text) + 1)
        text = text[:at] + "<|endoftext|>" + text[at:]
    return text


def random_texts(count, seed=1):
    generator = random.Random(seed)
    return [random_text(generator) for _ in range(count)]


def random_bytes(count, seed=2):
    """Bytes of which many are no UTF-8: text with damage, and noise."""
    generator = random.Random(seed)
    for _ in range(count):
        data = bytearray(random_text(generator).encode())
        for _ in range(generator.randrange(1, 5)):
            at = generator.randrange(len(data) + 1)
            data[at : at + generator.randrange(3)] = generator.randbytes(generator.randrange(4))
        yield bytes(data)
