from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretBytes, SecretStr

from perdure import Context, OperationFailed, operation
from perdure.codec import Codec
from perdure.errors import InvalidOptions, InvalidPayload, NotInRun
from perdure.secrets import Secret, SecretRef
from tests.harness import Pause, app_on, finish, interrupt, run

TOKEN = "hunter2-5f1e"


class Login(BaseModel):
    name: str
    password: Any


@dataclasses.dataclass
class Request:
    headers: dict[str, Any]


SECRETS: dict[str, tuple[Any, str]] = {
    "pydantic": (
        SecretStr(TOKEN),
        r" is a pydantic\.types\.SecretStr, and secrets are never stored",
    ),
    "bytes": ([SecretBytes(TOKEN.encode())], r"\[0\] is a pydantic\.types\.SecretBytes"),
    "marked": ({"key": Secret(TOKEN)}, r"\.key is a perdure\.secrets\.Secret, and"),
    "model": ((Login(name="ada", password=SecretStr(TOKEN)),), r"\[0\]\.password is a pydantic"),
    "header": ({"headers": {"Authorization": TOKEN}}, r"\.headers\.Authorization carries a cred"),
    "field": (Request({"x-api-key": TOKEN}), r"\.headers\['x-api-key'\] carries a credential"),
    "cookies": (
        {"extra_headers": {"SET-COOKIE": ["a", TOKEN]}},
        r"\.extra_headers\['SET-COOKIE'\] carries",
    ),
    "raw": ({"headers": {b"cookie": TOKEN.encode()}}, r"\.headers\[b'cookie'\] carries"),
    "bearer": (
        [{"authorization": f"Bearer {TOKEN}"}],
        r"\[0\]\.authorization carries a credential",
    ),
    "basic": ({"Proxy-Authorization": f"basic {TOKEN}"}, r"\['Proxy-Authorization'\] carries"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_refused_with_their_path(name: str) -> None:
    value, complaint = SECRETS[name]
    with pytest.raises(InvalidPayload, match=f"^what{complaint}") as caught:
        Codec([Login, Request]).encode(value, what="what")
    assert TOKEN not in str(caught.value)
    assert "SecretRef('name') of perdure.secrets" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        {"cookie": "chocolate", "authorization": "pending", "api-key": 7},
        {"headers": {"authorization": None, "cookie": "", "accept": "Bearer x"}},
        {"text": 'authorization": Bearer x', "description": "Basic cookie recipe"},
        {"headers": {"authorization": SecretRef("stripe")}},
    ],
)
def test_what_only_looks_like_one_is_stored(value: Any) -> None:
    codec = Codec([SecretRef])
    assert codec.decode(codec.encode(value)) == value


def test_no_secret_reaches_the_database(tmp_path: Path) -> None:
    """T47."""
    used: list[str] = []
    stored: dict[str, bytes] = {}
    pause = Pause()

    @operation(read_only=True)
    async def fetch(headers: dict[str, Any], other: Any = None) -> dict[str, Any]:
        value = headers["Authorization"]
        assert isinstance(value, SecretRef)
        used.append(value.resolve())
        return {"sent": value}

    @operation(read_only=True)
    def from_a_thread(reference: SecretRef) -> int:
        used.append(reference.resolve())
        return len(used)

    @operation(read_only=True)
    async def leaky() -> dict[str, Any]:
        return {"headers": {"set-cookie": TOKEN}}

    @operation(read_only=True)
    async def look_into_files() -> None:
        stored.update(
            {
                f"open {file.name}": file.read_bytes()
                for file in tmp_path.glob("runs.db*")
                if file.is_file()
            }
        )

    async def refused(context: Context, value: Any) -> None:
        with pytest.raises(InvalidPayload, match=r"fetch: arguments\.(args|kwargs)"):
            await context.call(fetch, value, other=value)

    app = app_on(tmp_path, secrets={"stripe": TOKEN}.__getitem__, types=[Login, Request])

    @app.run(version=1)
    async def work(context: Context, reference: SecretRef) -> Any:
        for value, _ in SECRETS.values():
            await refused(context, value)
        with pytest.raises(
            OperationFailed, match=r"result\.headers\['set-cookie'\] carries a cred"
        ):
            await context.call(leaky)
        said = await context.call(fetch, {"Authorization": reference})
        await context.call(from_a_thread, reference)
        await context.call(look_into_files)
        await pause()
        return (said, reference.resolve() == TOKEN)

    async def main() -> Any:
        async with app.connect():
            with pytest.raises(InvalidPayload, match=r"input\.name is a perdure\.secrets\.Secret"):
                await app.start(work, {"name": Secret(TOKEN)})  # type: ignore[arg-type]
        await interrupt(app, pause, work, SecretRef("stripe"))
        return await finish(app)

    assert run(main()) == ({"sent": SecretRef("stripe")}, True)
    assert used == [TOKEN, TOKEN]
    stored |= {file.name: file.read_bytes() for file in tmp_path.glob("runs.db*") if file.is_file()}
    assert "open runs.db-wal" in stored
    assert b'"name":"stripe"' in b"".join(stored.values())
    assert [name for name, data in stored.items() if TOKEN.encode() in data] == []


def test_a_reference_needs_a_run_and_somebody_who_knows_the_secret(tmp_path: Path) -> None:
    with pytest.raises(NotInRun, match="the secret 'stripe' is resolved by the App of a run"):
        SecretRef("stripe").resolve()
    app = app_on(tmp_path)

    @app.run(version=1)
    async def work(context: Context) -> str:
        with pytest.raises(InvalidOptions, match=r"nobody resolves the secret 'stripe'.*secrets="):
            SecretRef("stripe").resolve()
        return repr(Secret(TOKEN)) + str(Secret(TOKEN))

    async def main() -> str:
        async with app:
            return await (await app.start(work)).result()

    assert run(main()) == "Secret('***')" * 2
