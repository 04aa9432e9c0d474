from __future__ import annotations

from perdure.errors.root import PerdureError


class SessionError(PerdureError):
    """What people see of a run could not be read, written or found.

    `code` and `status` are what the wire has for it, and stand in the end of a run that failed.
    The name of a class says more than its code, which several may share.
    """

    code: int = 50000
    status: int = 500


class SessionBadRequest(SessionError):
    """A request to a session is malformed as a whole."""

    code = 40000
    status = 400


class InvalidSessionArgument(SessionError):
    """A call on a session, run, step or view cannot be made so, or not in this state."""

    code = 40003
    status = 400


class InputConflict(SessionError):
    """Something else was sent under this event id before; what is sent now is not."""

    code = 40003
    status = 409


class SessionCancelled(SessionError):
    """The run was cancelled before what was asked for could happen."""

    code = 40033
    status = 400


class SessionForbidden(SessionError):
    """The channel does not let this client publish."""

    code = 40160
    status = 401


class MissingSerial(SessionError):
    """The channel accepted a message and did not say under which serial."""


class StreamNotRepaired(SessionError):
    """Appends to a stream were lost, and its contents could not be written whole either."""

    code = 104000


class InvalidSessionMessage(SessionError):
    """A message of a channel is malformed; the messages around it are not touched by that."""

    code = 104001


class SubscriptionFailed(SessionError):
    """A session could not be attached to its channel."""

    code = 104001


class CancelListenerFailed(SessionError):
    """A function that was to hear of a cancel or of steering raised."""

    code = 104002


class LifecycleNotPublished(SessionError):
    """The start, resumption, suspension or end of a run could not be published."""

    code = 104003


class SessionClosed(SessionError):
    """The session, or a part of it, is closed."""

    code = 104004
    status = 400


class SendFailed(SessionError):
    """An input could not be published."""

    code = 104005


class ContinuityLost(SessionError):
    """Messages may have been missed; what is shown has to be read again."""

    code = 104006


class ChannelNotReady(SessionError):
    """The channel is not attached."""

    code = 104007
    status = 400


class StreamFailed(SessionError):
    """What an agent was streaming broke off."""

    code = 104008


class RunNotObserved(SessionError):
    """The start of a run, or the input that asks for it, was not seen in time; try again later."""

    code = 104010
    status = 504


class HistoryFailed(SessionError):
    """The messages from before could not be read."""

    code = 104011
