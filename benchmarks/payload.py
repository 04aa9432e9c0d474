from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

PAYLOAD_BYTES: Final = 200

_TEXT: Final = """
the of and to a in is that it for was on with as be by at this had not are but from or have an
they which one you were all her she there would their we him been has when who will no more if out
so said what up its about into than them can only other time new some could these two may first
then do any like my now over such our man even most made after also did many before must through
years where much your way well down should because each just those people how too little state
good very make world still own see men work long here get both between life being under never day
same another know while last might us great old year off come since against go came right used
take three however important rather different several although possible something together
question service weather customer delivery invoice account request answer result measure
temperature forecast address shipment refund balance document paragraph section evidence
agreement quarter revenue proposal engineer schedule deadline resource approach conclusion
"""
_WORDS: Final = _TEXT.split()
_WEIGHTS: Final = [1 / (rank + 3) for rank in range(len(_WORDS))]


def text(size: int, seed: int = 0) -> str:
    """Return so many characters of ASCII prose, the same for a seed; it packs as English does."""
    prose = _prose()
    if size >= len(prose):
        return (prose * (1 + size // len(prose)))[:size]
    start = seed * 7919 % (len(prose) - size)
    return prose[start : start + size]


@lru_cache(maxsize=1)
def _prose(words: int = 60_000) -> str:
    chance = random.Random(20)
    sentences: list[str] = []
    left = chance.choices(_WORDS, _WEIGHTS, k=words)
    while left:
        length = chance.randint(4, 22)
        sentence, left = left[:length], left[length:]
        number = f" {chance.randint(1, 9999)}" if chance.random() < 0.2 else ""
        sentences.append(" ".join(sentence).capitalize() + number + chance.choice(".....?!"))
    return " ".join(sentences)
