from __future__ import annotations

import asyncio
import itertools
import random
from typing import Final

from perdure.fence import Fence
from perdure.testing.storage.expecting import expect
from perdure.testing.storage.scene import Process, Scene

_DOCUMENTS: Final[dict[str, tuple[bytes, tuple[int, ...]]]] = {
    "plain": (b'{"a":1}', ()),
    "one-cut": (b"0123456789", (4,)),
    "cut-at-the-end": (b"0123456789", (3, 10)),
    "empty-parts": (b"0123456789", (0, 5)),
    "compressible": (b"a" * 5000, (1000, 3000)),
    "binary": (bytes(range(256)) * 8, (256, 300, 1500)),
}


async def an_input_comes_back_byte_for_byte(scene: Scene) -> None:
    """Cut or not, and also where it goes on from another one."""
    process, other = await scene.process(), await scene.process()
    fence = await process.start()
    for name, (document, cuts) in _DOCUMENTS.items():
        longer = document + b"more"
        await process.append(fence, f"{name}.whole", 1, document=document)
        await process.append(fence, f"{name}.cut", 1, document=document, cuts=cuts)
        more = (*cuts, len(document))
        await process.append(fence, f"{name}.cut", 2, document=longer, cuts=more)
        for step, sequence, wanted in (
            ("whole", 1, document),
            ("cut", 1, document),
            ("cut", 2, longer),
        ):
            found = await other.store.read_input("run-1", f"{name}.{step}", sequence)
            expect(found, wanted, f"the input {name}.{step}/{sequence}")


async def a_conversation_that_grows_comes_back_at_every_length(scene: Scene) -> None:
    """By one message or by many at a time, in several runs that begin alike."""
    process = await scene.process()
    dice = random.Random(7)  # noqa: S311 - it draws cases
    messages = [dice.randbytes(500) for _ in range(24)]
    ends = [*itertools.accumulate(map(len, messages))]
    for number, steps in enumerate([range(1, 25), (1, 24), (12, 19, 24), (24,)]):
        fence = await process.start(f"run-{number}")
        for step in steps:
            document = b"".join(messages[:step])
            cuts = tuple(ends[:step])
            await process.append(fence, "model", step, document=document + b"end", cuts=cuts)
        for step in steps:
            found = await process.store.read_input(fence.run_id, "model", step)
            expect(found, b"".join(messages[:step]) + b"end", "a conversation of some length")


async def equal_parts_behind_other_beginnings_are_told_apart(scene: Scene) -> None:
    """What is shared is a beginning and never a part by itself."""
    process = await scene.process()
    fence = await process.start()
    documents = [b"first, then the same", b"other, then the same"]
    for number, document in enumerate(documents):
        await process.append(fence, "model", number, document=document, cuts=(6, 20))
    for number, document in enumerate(documents):
        found = await process.store.read_input("run-1", "model", number)
        expect(found, document, "an input with another beginning")


async def processes_that_write_the_same_pieces_at_once_all_succeed(scene: Scene) -> None:
    """In whatever order they come to them."""
    processes = [await scene.process() for _ in range(3)]
    talks = [[b"%d-%d, " % (talk, part) * 20 for part in range(12)] for talk in range(4)]

    async def write(process: Process, number: int) -> Fence:
        fence = await process.start(f"run-{number}")
        dice = random.Random(number)  # noqa: S311 - it draws cases
        order = dice.sample(range(4), 4)
        whole = [b"".join(talks[talk]) for talk in order]
        cuts = [(*itertools.accumulate(map(len, talks[talk])),) for talk in order]
        records = (
            process.append(fence, f"talk-{talk}", 1, document=document, cuts=ends)
            for talk, document, ends in zip(order, whole, cuts, strict=True)
        )
        await asyncio.gather(*records)
        return fence

    fences = await asyncio.gather(
        *(
            write(process, 9 * number + n)
            for number, process in enumerate(processes)
            for n in (0, 1)
        )
    )
    for fence in fences:
        for talk in range(4):
            found = await processes[0].store.read_input(fence.run_id, f"talk-{talk}", 1)
            expect(found, b"".join(talks[talk]), "an input that several wrote at once")
