"""The file and the command line of a sidecar."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli import main
from perdure.errors import InvalidOptions
from perdure.journal import OperationKind
from perdure.sidecar.config import read_config
from perdure.sidecar.service import Credentials, authorization

HANDLER = '[[handlers]]\nkind = "tool_call"\nid = "tools"\ncommand = ["./tools", "--once"]\n'
GOOD = f'task_queue = "agents"\n{HANDLER}'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIDECAR_TOKEN", raising=False)


def test_a_file_of_few_lines_is_enough() -> None:
    config = read_config(GOOD, file="worker.toml")
    assert (config.listen, config.port, config.max_request_bytes) == ("127.0.0.1", 8078, 2_097_152)
    assert (config.temporal.address, config.temporal.namespace) == ("127.0.0.1:7233", "default")
    (handler,) = config.handlers
    assert (handler.kind, handler.id) == (OperationKind.TOOL_CALL, "tools")
    assert handler.command == ("./tools", "--once")


def test_whole_numbers_are_durations_as_well() -> None:
    text = f"{GOOD}time_limit_seconds = 30\n[limits]\nwait_seconds = 5\n"
    config = read_config(text, file="worker.toml")
    assert (config.handlers[0].time_limit_seconds, config.limits.wait_seconds) == (30.0, 5.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"\nqueue = 1\n{GOOD}",
            "worker.toml, line 2: there is no setting 'queue'; there are task",
        ),
        (f"{GOOD}comand = 1\n", "line 6: there is no setting 'comand' in handlers"),
        (f"{GOOD}[temporal]\nadress = 1\n", "line 7: there is no setting 'adress' in temporal"),
        (f"limits = {{ x = 1 }}\n{GOOD}", "line 1: there is no setting 'x' in limits"),
        ("task_queue = ", "is not TOML"),
        ('task_queue = "a"\ntask_queue = "b"', "is not TOML"),
        ('task_queue = "agents"', "handlers"),
        ('task_queue = "agents"\nhandlers = []', "nothing else performs"),
        ("task_queue = 1", "task_queue"),
        (GOOD.replace("agents", "a/b"), "not an identifier"),
        (GOOD.replace("tool_call", "tool"), "kind"),
        (f"{GOOD}function = 'a:b'\n", "either a command or a function"),
        (GOOD.replace('["./tools", "--once"]', "[]"), "either a command or a function"),
        (GOOD.replace("--once", ""), "none of them empty"),
        (GOOD.replace('command = ["./tools", "--once"]', "function = 'a.b'"), "module:function"),
        (f"{GOOD}time_limit_seconds = 0\n", "time limit"),
        (f"{GOOD}{HANDLER}", "two tool_call handlers 'tools'"),
        (f"port = 70000\n{GOOD}", "port"),
        (f"port = true\n{GOOD}", "port"),
        (f"max_record_bytes = 8388609\n{GOOD}", "8388608 at most"),
        (f"{GOOD}[limits]\nbodies = 0\n", "bodies is more than 0"),
        (f"{GOOD}[limits]\ninput_bytes = 2097153\n", "2097152 at most"),
        (f"{GOOD}[temporal]\ncertificate_file = 'c'\n", "key_file"),
        (f"{GOOD}[limits]\ndrain_seconds = inf\n", "drain_seconds is more than 0, and 2147483647"),
        (f"{GOOD}[limits]\nwait_seconds = nan\n", "at most, not nan"),
        (f"{GOOD}[limits]\noperations = 1000000000000\n", "operations is more than 0, and"),
        (f"{GOOD}time_limit_seconds = inf\n", "time limit"),
        (f"{GOOD}[temporal]\nnamespace = 'a/b'\n", "namespace"),
        (f"{GOOD}[temporal]\naddress = ''\n", "host:port"),
        (f"{GOOD}[temporal]\naddress = 'localhost'\n", "host:port"),
        (f"{GOOD}[temporal]\naddress = 'http://temporal:7233'\n", "host:port"),
        (f"token_file = 'a'\ntoken_variable = 'B'\n{GOOD}", "token_file or in token_variable"),
    ],
    ids=str,
)
def test_what_a_file_may_not_say_is_named(text: str, says: str) -> None:
    with pytest.raises(InvalidOptions) as raised:
        read_config(text, file="worker.toml")
    assert "worker.toml" in str(raised.value)
    assert says in str(raised.value)


def test_the_header_of_a_token_has_its_scheme_once_and_secrets_are_not_shown() -> None:
    assert authorization("Bearer s3cret") == authorization("s3cret") == "Bearer s3cret"
    assert authorization(None) is None
    assert "s3cret" not in repr(Credentials(token="s3cret"))


@pytest.mark.parametrize(
    ("settings", "words", "says"),
    [
        ("", [], "which token"),
        ("token_file = 'none'\n", [], "none cannot be read"),
        ("token_file = 'empty'\n", [], "the token in empty is one line"),
        ("token_file = 'lines'\n", [], "the token in lines is one line"),
        ("token_variable = 'SIDECAR_TOKEN'\n", [], "the variable SIDECAR_TOKEN is one line"),
        ("listen = '0.0.0.0'\n", ["--insecure-no-auth"], "this machine alone"),
        ("token_file = 'token'\n", ["--insecure-no-auth"], "or use the token"),
    ],
    ids=["none", "no file", "empty", "lines", "variable", "open", "both"],
)
def test_a_sidecar_without_a_good_token_does_not_start(
    settings: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").touch()
    Path("lines").write_text("one-secret\nanother-secret")
    Path("token").write_text("s3cret-token")
    Path("worker.toml").write_text(settings + GOOD)
    assert main(["sidecar", "--config", "worker.toml", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "-secret" not in error
    assert "s3cret" not in error


def test_what_is_wrong_is_said_before_anything_is_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["sidecar", "--config", "worker.toml", "--insecure-no-auth"]
    assert main(words) == 2
    assert "worker.toml cannot be read" in capsys.readouterr().err
    Path("worker.toml").write_bytes(b'task_queue = "\xff"')
    assert main(words) == 2
    assert "worker.toml is not UTF-8" in capsys.readouterr().err
    Path("worker.toml").write_text(
        GOOD.replace('command = ["./tools", "--once"]', "function = 'no_such_module:f'")
    )
    assert main(words) == 2
    assert "no module 'no_such_module'" in capsys.readouterr().err
    Path("worker.toml").write_text(f"{GOOD}[temporal]\naddress = '127.0.0.1:1'\n")
    assert main(words) == 2
    assert "Temporal at 127.0.0.1:1 does not answer" in capsys.readouterr().err
