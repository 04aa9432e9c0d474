from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from perdure.canonical import Place, decode, path_of, step_of
from perdure.codec.besides import Beside
from perdure.codec.known import Lookup
from perdure.codec.mark import MARK
from perdure.codec.reader import Reader
from perdure.codec.writer import Writer, encode_tree
from perdure.errors import InvalidPayload


def write(value: object, what: str, lookup: Lookup) -> bytes:
    """Return a value as bytes from which `read` gives back the same.

    They are read at once, so that no class loses anything unnoticed. Raises `InvalidPayload`.
    """
    place: Place = (None, what)
    try:
        writer, rewriter = Writer(lookup), Writer(lookup)
        tree = writer.write(value, place)
        data = encode_tree(tree)
        twin = Reader(lookup).read(decode(data, what=what), place)
        again = rewriter.write(twin, place)
        if encode_tree(again) == data:
            _check_besides(writer.besides, rewriter.besides, lookup)
            return data
    except RecursionError:
        raise InvalidPayload(
            f"{what} is nested more deeply than the recursion limit allows: flatten it"
        ) from None
    raise InvalidPayload(_difference(tree, again, place))


def read(tree: Any, what: str, lookup: Lookup) -> Any:
    """Return the value that was written as a tree of JSON values; raises `InvalidPayload`."""
    try:
        return Reader(lookup).read(tree, (None, what))
    except RecursionError as error:
        raise InvalidPayload(f"{what} cannot be decoded: {error}") from error


def _check_besides(before: Sequence[Beside], after: Sequence[Beside], lookup: Lookup) -> None:
    """Refuse what an instance has beside its fields, unless its class makes it again."""
    if not before:
        return
    made: dict[tuple[bytes, str], list[Any]] = {}
    for beside in after:
        made.setdefault((encode_tree(beside.tree), beside.name), []).append(beside.value)
    for beside in before:
        # Equal instances stand in the same order in both, unless they are in a set.
        twins = made.get((encode_tree(beside.tree), beside.name))
        if not twins or not _alike(beside.value, twins.pop(0), lookup):
            raise InvalidPayload(
                f"{path_of(beside.place)}.{beside.name} is no field of {beside.owner.__qualname__},"
                " and does not come back as it is: make it a field, or leave it out"
            )


def _alike(one: Any, other: Any, lookup: Lookup) -> bool:
    """Tell whether two attributes hold the same; of what is no data, the class is compared."""
    if one is other:
        return True
    try:
        trees = [Writer(lookup).write(value, (None, "")) for value in (one, other)]
    except InvalidPayload:
        return type(one) is type(other)
    return encode_tree(trees[0]) == encode_tree(trees[1])


def _difference(tree: Any, again: Any, place: Place) -> str:
    """Say which part of a value its class does not give back."""
    before, after = _members(tree), _members(again)
    if before.keys() == after.keys():
        for key, item in before.items():
            if item != after[key]:
                step = "" if MARK in before else step_of(key)
                return _difference(item, after[key], (place, step))
    return (
        f"{path_of(place)} does not come back as it is: the class that holds it changes it when it"
        " is made; store what it is made of"
    )


def _members(tree: Any) -> dict[Any, Any]:
    if isinstance(tree, list):
        return dict(enumerate(cast("list[Any]", tree)))
    return cast("dict[Any, Any]", tree) if isinstance(tree, dict) else {}
