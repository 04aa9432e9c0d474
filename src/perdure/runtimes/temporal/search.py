from __future__ import annotations

from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError

from perdure.engine.dispatch import WaitingRun
from perdure.observe import log

FUNCTION: Final = SearchAttributeKey.for_keyword("PerdureFunction")
SESSION: Final = SearchAttributeKey.for_keyword("PerdureSession")
STATE: Final = SearchAttributeKey.for_keyword("PerdureState")

_ALL: Final = (FUNCTION, SESSION, STATE)
_VALUE_BYTES: Final = 255


def attributes_of(run: WaitingRun) -> TypedSearchAttributes:
    """Return what a run is found by: its function and version, and its session if it has one."""
    pairs: list[SearchAttributePair[str]] = [
        SearchAttributePair(FUNCTION, f"{run.function}@{run.version}")
    ]
    if run.session is not None and len(run.session.encode()) <= _VALUE_BYTES:
        pairs.append(SearchAttributePair(SESSION, run.session))
    return TypedSearchAttributes(pairs)


async def make_searchable(client: Client) -> bool:
    """See to it that a namespace has the search attributes of runs; return whether it has them."""
    missing = [key.name for key in _ALL]
    try:
        known = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
        kind = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
        there = known.custom_attributes
        strange = [name for name in missing if there.get(name, kind) != kind]
        if strange:
            log.warning(
                "runs cannot be searched for in the namespace %s: its search attributes %s are of"
                " another type than Keyword",
                client.namespace,
                ", ".join(strange),
            )
            return False
        missing = [name for name in missing if name not in there]
        if missing:
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace=client.namespace, search_attributes=dict.fromkeys(missing, kind)
                )
            )
    except RPCError as error:
        adding = " ".join(f"--name {name} --type Keyword" for name in missing)
        log.warning(
            "runs cannot be searched for in the namespace %s: %s; whoever may add search attributes"
            " does it with: temporal operator search-attribute create --namespace %s %s",
            client.namespace,
            error,
            client.namespace,
            adding,
        )
        return False
    return True
