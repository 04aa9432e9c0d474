from __future__ import annotations

import re
import tomllib
from typing import Any, Final, cast

import msgspec

from perdure.canonical import INPUT_LIMIT_BYTES, RECORD_LIMIT_BYTES
from perdure.errors import InvalidInvocation, InvalidOptions
from perdure.ids import check_identifier, is_identifier
from perdure.journal.invocation import OperationKind

_ENTRY_POINT: Final = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*").fullmatch
_ADDRESS: Final = re.compile(r"[\w.-]+:\d+|\[[\da-fA-F:.]+\]:\d+").fullmatch
_MOST: Final = 2**31 - 1


class HandlerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What performs the operations of one kind and handler id: a command or a Python function.

    `time_limit_seconds` is how long one attempt may take; None leaves that to the request.
    """

    kind: OperationKind
    id: str
    command: tuple[str, ...] = ()
    function: str = ""
    time_limit_seconds: float | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for what cannot perform anything."""
        try:
            check_identifier(self.id, "id of a handler")
        except InvalidInvocation as error:
            raise ValueError(str(error)) from error
        if bool(self.command) == bool(self.function):
            raise ValueError(f"the handler {self.id!r} has either a command or a function")
        if self.command and not all(word and "\0" not in word for word in self.command):
            raise ValueError(f"the command of {self.id!r} is a list of words, none of them empty")
        if self.function and not _ENTRY_POINT(self.function):
            raise ValueError(f"the function of {self.id!r} is written as module:function")
        if self.time_limit_seconds is not None and not 0 < self.time_limit_seconds <= _MOST:
            raise ValueError(f"the time limit of {self.id!r} is more than 0, and {_MOST} at most")


class TemporalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Temporal is, and how it is spoken to. Files are read and variables looked up by `cli`.

    An API key, or any file of a certificate, turns TLS on.
    """

    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    tls: bool = False
    server_name: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    api_key_file: str = ""
    api_key_variable: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what contradicts itself, or is no address."""
        if not _ADDRESS(self.address):
            raise ValueError(f"the address {self.address!r} is not written as host:port")
        if not is_identifier(self.namespace):
            raise ValueError(f"the namespace {self.namespace!r} is not an identifier")
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("a certificate_file needs its key_file, and the other way round")
        if self.api_key_file and self.api_key_variable:
            raise ValueError("an API key is in api_key_file or in api_key_variable")


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one sidecar bears; requests beyond are refused and never queued.

    `bodies` is how many are read and begun at once, which bounds their memory: what waits for its
    turn is not read, and what waits for its record keeps no body.
    """

    requests: int = 1_000
    bodies: int = 8
    operations: int = 16
    """How many handlers run at once; further operations wait at Temporal."""
    header_bytes: int = 16_384
    input_bytes: int = INPUT_LIMIT_BYTES
    body_seconds: float = 30.0
    start_seconds: float = 10.0
    """How long Temporal may take to say that it has an operation."""
    heartbeat_seconds: float = 30.0
    """How long a sidecar may be silent before another does its work, where a request has no say."""
    wait_seconds: float = 920.0
    """How long a request waits for its record before it is told to ask again."""
    drain_seconds: float = 10.0

    start_to_close_seconds: float = 3_600.0
    schedule_to_close_seconds: float = 86_400.0
    maximum_attempts: int = 100

    def __post_init__(self) -> None:
        """Raise `ValueError` for a limit that would let nothing through."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 < value <= _MOST:
                raise ValueError(f"{name} is more than 0, and {_MOST} at most, not {value!r}")
        if self.input_bytes > INPUT_LIMIT_BYTES:
            raise ValueError(f"input_bytes is {INPUT_LIMIT_BYTES} at most")


class SidecarConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sidecar serves, and where; the file of `perdure sidecar --config`.

    The token is in `token_file`, or in the environment under the name `token_variable`.
    """

    task_queue: str
    handlers: tuple[HandlerConfig, ...]
    listen: str = "127.0.0.1"
    port: int = 8078
    max_request_bytes: int = 2_097_152
    max_record_bytes: int = RECORD_LIMIT_BYTES
    token_file: str = ""
    token_variable: str = ""
    temporal: TemporalConfig = TemporalConfig()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        """Raise `ValueError` for what cannot be served."""
        if not is_identifier(self.task_queue):
            raise ValueError(f"the task queue {self.task_queue!r} is not an identifier")
        if not self.handlers:
            raise ValueError("there are no [[handlers]], and nothing else performs operations")
        if not 0 <= self.port < 65_536:
            raise ValueError("a port is a number from 0 to 65535")
        if self.max_request_bytes < 1 or not 0 < self.max_record_bytes <= RECORD_LIMIT_BYTES:
            raise ValueError(f"sizes are more than 0, that of records {RECORD_LIMIT_BYTES} at most")
        if self.token_file and self.token_variable:
            raise ValueError("the token is in token_file or in token_variable")
        seen: set[tuple[OperationKind, str]] = set()
        for handler in self.handlers:
            if (handler.kind, handler.id) in seen:
                raise ValueError(f"there are two {handler.kind} handlers {handler.id!r}")
            seen.add((handler.kind, handler.id))


def read_config(text: str, *, file: str) -> SidecarConfig:
    """Return what a TOML file says. Raises `InvalidOptions` with the line where that is known."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOptions(f"{file} is not TOML: {error}") from error
    _refuse_unknown(document, SidecarConfig, "", _Lines(text, file))
    try:
        # TOML has numbers of two types, and people write 30 for 30.0, which is the only leniency.
        return msgspec.convert(document, type=SidecarConfig)
    except msgspec.ValidationError as error:
        raise InvalidOptions(f"{file}: {error}") from error


class _Lines:
    """Finds where a setting stands in a file."""

    def __init__(self, text: str, file: str) -> None:
        self._lines = text.splitlines()
        self._file = file

    def place_of(self, name: str) -> str:
        quoted = rf"[\"']?{re.escape(name)}[\"']?"
        setting = re.compile(
            rf"\s*(?:\[+\s*(?:[\w-]+\s*\.\s*)*)?{quoted}\s*[=.\]]|.*[{{,]\s*{quoted}\s*="
        )
        number = next((n for n, line in enumerate(self._lines, 1) if setting.match(line)), None)
        return self._file if number is None else f"{self._file}, line {number}"


def _refuse_unknown(table: dict[str, Any], kind: type[Any], where: str, lines: _Lines) -> None:
    parts = {"temporal": TemporalConfig, "limits": Limits, "handlers": HandlerConfig}
    known = msgspec.structs.fields(kind)
    names = [field.name for field in known]
    for name, value in table.items():
        if name not in names:
            raise InvalidOptions(
                f"{lines.place_of(name)}: there is no setting {name!r}{where}; there are"
                f" {', '.join(names)}: mend its name or take it out"
            )
        if kind is SidecarConfig and name in parts:
            tables = cast("list[Any]", value if isinstance(value, list) else [value])
            for each in tables:
                if isinstance(each, dict):
                    inner = cast("dict[str, Any]", each)
                    _refuse_unknown(inner, parts[name], f" in {name}", lines)
