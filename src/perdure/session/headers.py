"""Names on the wire of sessions: messages, headers and their values.

Two tiers of headers: those of the transport say to which run, step and stream a message belongs,
those of the codec what its data are. All values are strings.
"""

from __future__ import annotations

from typing import Final

AI_INPUT: Final = "ai-input"
AI_OUTPUT: Final = "ai-output"
AI_CANCEL: Final = "ai-cancel"
AI_RUN_START: Final = "ai-run-start"
AI_RUN_RESUME: Final = "ai-run-resume"
AI_RUN_SUSPEND: Final = "ai-run-suspend"
AI_RUN_END: Final = "ai-run-end"
AI_STEP_START: Final = "ai-step-start"
AI_STEP_END: Final = "ai-step-end"

RUN_LIFECYCLE: Final = frozenset({AI_RUN_START, AI_RUN_RESUME, AI_RUN_SUSPEND, AI_RUN_END})
STEP_LIFECYCLE: Final = frozenset({AI_STEP_START, AI_STEP_END})

ROLE: Final = "role"
CODEC_MESSAGE_ID: Final = "codec-message-id"
EVENT_ID: Final = "event-id"
RUN_ID: Final = "run-id"
RUN_CLIENT_ID: Final = "run-client-id"
INVOCATION_ID: Final = "invocation-id"
INPUT_CLIENT_ID: Final = "input-client-id"
INPUT_CODEC_MESSAGE_ID: Final = "input-codec-message-id"
PARENT: Final = "parent"
FORK_OF: Final = "fork-of"
MSG_REGENERATE: Final = "msg-regenerate"
SUPERSEDES: Final = "supersedes"
STEP_ID: Final = "step-id"
STEP_CLIENT_ID: Final = "step-client-id"
STEP_START_SERIAL: Final = "step-start-serial"
STEP_REASON: Final = "step-reason"
RUN_REASON: Final = "run-reason"
ERROR_CODE: Final = "error-code"
ERROR_MESSAGE: Final = "error-message"
STEER_CODEC_MESSAGE_IDS: Final = "steer-codec-message-ids"
STREAM: Final = "stream"
STREAM_ID: Final = "stream-id"
STATUS: Final = "status"
DISCRETE: Final = "discrete"

KIND: Final = "kind"
PART_TYPE: Final = "partType"

TRUE: Final = "true"
FALSE: Final = "false"
STREAMING: Final = "streaming"
COMPLETE: Final = "complete"
CANCELLED: Final = "cancelled"
