"""Who may call an engine that takes mTLS only: whoever's certificate bears the right name.

That an authority which the engine trusts has signed the certificate is checked by the transport
before; it signs those of others, too.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
import structlog

log = structlog.get_logger(__name__)

_NAMES: Final = "x509_subject_alternative_name"

_Context = grpc.aio.ServicerContext[Any, Any]
_Call = Callable[[Any, _Context], Any]


class CallersCheck(grpc.aio.ServerInterceptor):
    """Refuses every call, of whatever service, by a certificate without the name.

    Args:
        name: the DNS name or URI among the certificate's subject alternative names.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See grpc.aio.ServerInterceptor."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = "stream" if handler.request_streaming else "unary"
        kind += "_stream" if handler.response_streaming else "_unary"
        return handler._replace(**{kind: self._checked(getattr(handler, kind))})

    def _checked(self, call: _Call) -> _Call:
        async def single(request: Any, context: _Context) -> Any:
            await self._check(context)
            return await call(request, context)

        async def several(request: Any, context: _Context) -> AsyncIterator[Any]:
            await self._check(context)
            async with aclosing(call(request, context)) as answers:
                async for answer in answers:
                    yield answer

        return several if inspect.isasyncgenfunction(call) else single

    async def _check(self, context: _Context) -> None:
        names = [n.decode("utf-8", "replace") for n in context.auth_context().get(_NAMES, ())]
        if self._name not in names:
            log.warning("caller_refused", peer=context.peer(), names=names, wanted=self._name)
            borne = ", ".join(names) or "no name"
            text = f"the caller's certificate bears {borne}, not {self._name}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
