from __future__ import annotations

from typing import Any

import msgspec


class Notifications(msgspec.Struct, frozen=True, kw_only=True):
    """Which notifications a server is asked for; what is False or empty is not asked for.

    `resources` are URIs whose changes are told, and `task_ids` the tasks whose progress is.
    """

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resources: tuple[str, ...] = ()
    task_ids: tuple[str, ...] = ()

    def filter(self) -> dict[str, Any]:
        """Return the filter as the protocol spells it, in its order."""
        members = {
            "toolsListChanged": self.tools_list_changed,
            "promptsListChanged": self.prompts_list_changed,
            "resourcesListChanged": self.resources_list_changed,
            "resourceSubscriptions": list(self.resources),
            "taskIds": list(self.task_ids),
        }
        return {name: wanted for name, wanted in members.items() if wanted}
