from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from perdure.annotations import names_around, written
from perdure.context import Context
from perdure.engine.queues import DeclaredQueues
from perdure.engine.timetable import Timetable
from perdure.errors import InvalidFunction, InvalidInvocation, InvalidPayload, UnknownFunction
from perdure.functions import declaration_of, handler_id_of
from perdure.ids import check_identifier

Function = Callable[..., Coroutine[Any, Any, Any]]


class Nothing(enum.Enum):
    """What stands for an input that was not given."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING


class RunFunction(msgspec.Struct, frozen=True):
    """A registered run function: what is called again from its start after a crash.

    One that `is_turn` answers what was said in a session, and takes the `Turn` for an input.
    """

    name: str
    version: int
    function: Function
    takes_input: bool
    default: Any = NOTHING
    is_turn: bool = False

    def input_of(self, value: Any) -> Any:
        """Return the input of a run of this function, by default its parameter's default.

        Raises `InvalidPayload`.
        """
        if self.is_turn and not _is_asked(value):
            raise InvalidPayload(
                f"{self.name} answers what was said in a session: start it with `start_turn`"
            )
        if self.takes_input and value is NOTHING:
            value = self.default
        if self.takes_input and value is NOTHING:
            raise InvalidPayload(f"{self.name} takes an input: pass it, None if that is it")
        if not self.takes_input and value is not NOTHING and value is not None:
            raise InvalidPayload(
                f"{self.name} takes (context) and no input: declare it as {self.name}(context,"
                " input), or start it without"
            )
        return None if value is NOTHING else value

    def call(self, context: Context, value: Any) -> Coroutine[Any, Any, Any]:
        """Call the function with a run's context and, if it takes one, its input."""
        if self.is_turn:
            return self._answer(context, value["session"], value["event_id"])
        return self.function(context, value) if self.takes_input else self.function(context)

    async def _answer(self, context: Context, session: str, event_id: str) -> Any:
        from perdure.turn import Turn  # few runs are turns, and it loads the sessions

        turn = Turn(context, session, event_id)
        value = await self.function(context, turn)
        await turn.answer(value)
        return value


class Registry:
    """The run functions of an App, by name and version, its schedules and its queues."""

    def __init__(self) -> None:
        self.timetable = Timetable()
        self.queues = DeclaredQueues()
        self._functions: dict[tuple[str, int], RunFunction] = {}
        self._effects: list[Callable[..., Any]] = []

    def add(
        self, function: Function, name: str | None, version: int, *, is_turn: bool = False
    ) -> RunFunction:
        """Register a run function, or with `is_turn` one that answers what is said in sessions.

        Raises `InvalidFunction` when it is not `async def f(context)` or
        `async def f(context, input)`, when the version is not a positive whole number, or when
        the name and version are taken.
        """
        name = name or str(getattr(function, "__name__", ""))
        try:
            check_identifier(name, "run function name")
        except InvalidInvocation as error:
            raise InvalidFunction(f"{error}; pass name='…'") from error
        if type(version) is not int or version < 1:
            raise InvalidFunction(
                f"the version of {name!r} is a whole number from 1, not {version!r}"
            )
        if (name, version) in self._functions:
            raise InvalidFunction(
                f"{name}@{version} is registered already; raise its version, or give it a name"
            )
        takes, default = _input_taken(function, name)
        if is_turn and not takes:
            raise InvalidFunction(f"{name!r} answers what was said: it takes (context, turn)")
        registered = RunFunction(name, version, function, takes, default, is_turn)
        self._functions[name, version] = registered
        return registered

    def find(self, name: str, version: int | None = None) -> RunFunction:
        """Return a run function; without a version, its newest one.

        Raises `UnknownFunction`, naming those that exist.
        """
        versions = [key[1] for key in self._functions if key[0] == name]
        newest = max(versions, default=0)
        found = self._functions.get((name, newest if version is None else version))
        if found is None:
            known = ", ".join(f"{key[0]}@{key[1]}" for key in sorted(self._functions)) or "none"
            wanted = name if version is None else f"{name}@{version}"
            raise UnknownFunction(f"no run function {wanted!r} is registered; there is: {known}")
        return found

    def of(self, function: Function) -> RunFunction:
        """Return the newest registration of a function object.

        Raises `UnknownFunction` for one that was not registered.
        """
        found = [entry for entry in self._functions.values() if entry.function is function]
        if not found:
            name = getattr(function, "__name__", repr(function))
            raise UnknownFunction(f"{name} is not a run function; put @app.run(version=1) on it")
        return max(found, key=lambda entry: entry.version)

    @property
    def has_turns(self) -> bool:
        """Whether any function answers what is said in sessions."""
        return any(entry.is_turn for entry in self._functions.values())

    def turn(self, name: str | None = None) -> RunFunction:
        """Return the newest function that answers what is said in sessions: of a name, or the one.

        Raises `UnknownFunction` where there is none, or it has to be named.
        """
        names = sorted({entry.name for entry in self._functions.values() if entry.is_turn})
        if name is None and len(names) == 1:
            return self.find(names[0])
        if name not in names:
            known = ", ".join(names) or "none: put @app.turn(version=1) on one"
            wanted = "a function has to be named" if name is None else f"there is no {name!r}"
            raise UnknownFunction(
                f"{wanted} that answers what is said in sessions; there is {known}"
            )
        return self.find(name)

    def know(self, effect: Callable[..., Any]) -> None:
        """Remember a function whose effects are not to be looked for where the runs are written."""
        self._effects.append(effect)

    def performed_as(self, handler_id: str) -> Callable[..., Any] | None:
        """Return the function of a handler id, or None where nobody knows, or two claim to be.

        It is one of those that were made known, or that stand beside a run function in its module.
        """
        around = [names_around(written(entry.function)) for entry in self._functions.values()]
        beside = (value for names in around for value in names.values())
        found = {
            id(function): function
            for function in (*self._effects, *filter(inspect.isfunction, beside))
            if _handler_of(function) == handler_id
        }
        return next(iter(found.values())) if len(found) == 1 else None

    def served(self) -> Sequence[tuple[str, int]]:
        """Return the names and versions that this process can run."""
        return sorted(self._functions)


def _is_asked(value: object) -> bool:
    match value:
        case {"session": str(session), "event_id": str(event_id)}:
            return bool(session and event_id)
        case _:
            return False


def _handler_of(function: Callable[..., Any]) -> str | None:
    try:
        declared = declaration_of(function)
        return handler_id_of(function, None, 1) if declared is None else declared.handler_id
    except InvalidFunction:
        return None


def _input_taken(function: Function, name: str) -> tuple[bool, Any]:
    """Return whether a function takes an input, and the default of it or NOTHING."""
    if not inspect.iscoroutinefunction(function):
        raise InvalidFunction(f"run function {name!r} must be declared with async def")
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise InvalidFunction(
                f"run function {name!r} needs {parameter.name!r}, which nobody passes: it takes"
                " (context) or (context, input)"
            )
    needed = [
        parameter
        for parameter in parameters
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    if len(needed) not in {1, 2}:
        raise InvalidFunction(
            f"run function {name!r} takes (context) or (context, input), not {len(needed)}"
            " parameters; put several values into one input object"
        )
    if len(needed) == 1 or needed[1].default is inspect.Parameter.empty:
        return len(needed) == 2, NOTHING
    return True, needed[1].default
