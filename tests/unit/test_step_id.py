"""Steps of other engines: what attempts share names them, and what they do not share is refused."""

from __future__ import annotations

from uuid import NAMESPACE_URL, uuid1, uuid4, uuid5

import inngest
import pytest
from inngest.experimental import mocked
from temporalio import activity
from temporalio.testing import ActivityEnvironment

from perdure.errors import InvalidSessionArgument
from perdure.session import step_id


def test_a_step_of_inngest_that_is_tried_again_keeps_its_id() -> None:
    client = mocked.Inngest(app_id="shop")
    seen: list[tuple[int, str]] = []

    @client.create_function(fn_id="turn", trigger=inngest.TriggerEvent(event="asked"), retries=3)
    def turn(ctx: inngest.ContextSync) -> None:
        def attempt(name: str) -> None:
            seen.append((ctx.attempt, step_id.from_inngest("i", name)))
            if len(seen) == 1:
                raise ConnectionResetError("the model went away")

        ctx.step.run("model", attempt, "model")
        ctx.step.run("tool", attempt, "tool")

    mocked.trigger(turn, inngest.Event(name="asked"), client)
    assert seen == [(0, "i-model"), (1, "i-model"), (1, "i-tool")]


def test_a_step_is_the_activity_of_the_invocation() -> None:
    environment = ActivityEnvironment()
    environment.info = environment.default_info()
    named = environment.run(lambda: step_id.from_temporal("i", activity.info()))
    assert named == f"i-{environment.info.activity_id}"


@pytest.mark.parametrize(
    "unstable",
    [str(uuid4()), str(uuid1()), str(uuid4()).upper(), "2", " 3 ", "", "  "],
    ids=["uuid4", "uuid1", "upper", "attempt", "padded", "empty", "blank"],
)
def test_what_is_new_in_each_attempt_is_refused(unstable: str) -> None:
    with pytest.raises(InvalidSessionArgument, match=r"attempt"):
        step_id.explicit("i", unstable)
    with pytest.raises(InvalidSessionArgument):
        step_id.from_inngest("i", unstable)
    with pytest.raises(InvalidSessionArgument):
        step_id.from_trigger_dev("i", "run_1", unstable)


def test_what_is_made_of_a_name_stays() -> None:
    named = str(uuid5(NAMESPACE_URL, "model"))
    assert step_id.explicit("i", named) == f"i-{named}"
    assert step_id.explicit("i", "model-2") == "i-model-2"


def test_a_run_of_trigger_dev_is_no_attempt() -> None:
    assert step_id.from_trigger_dev("i", "run_7", "model") == "i-run_7-model"
    with pytest.raises(InvalidSessionArgument, match=r"hand over `ctx\.run\.id`"):
        step_id.from_trigger_dev("i", "attempt_7", "model")
    with pytest.raises(InvalidSessionArgument, match="empty"):
        step_id.from_trigger_dev("i", "", "model")


def test_an_invocation_is_needed() -> None:
    with pytest.raises(InvalidSessionArgument, match="invocation"):
        step_id.explicit("", "model")
