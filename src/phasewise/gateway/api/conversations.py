"""Checks the turns of a conversation: what they hold beside text, and which tools they bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phasewise.core.errors import RejectionKind, RequestRejected

MEDIUM_AS_TEXT_BYTES = 4096
"""The most bytes that an image or a recording counts for: it becomes some hundred to a few thousand tokens,
whatever its size."""

_TEXT_PART = frozenset({"type", "text"})
_CLIENTS_TOOLS = frozenset({"function", "custom", "namespace"})
"""The types of tools that a client runs. An engine, or a server that it knows, would run the others."""


def check_media(turns: object, name: str, keys: tuple[str, ...], *, lends_rights: bool = True) -> int:
    """Reject parts with a URL, a reference into the engine's cache, or tensors. Turns have them under `keys`.

    The engine would fetch a URL from its own network, and its cache may hold another tenant's data. Where the
    gateway lends no rights, only the engine's files are closed. Checked after parsing, because an escaped
    letter could hide a name in the bytes. Returns how many bytes of the other parts do not count as text.
    """
    if not isinstance(turns, list):
        return 0
    media_bytes = 0
    for place, turn in enumerate(turns):
        for key in keys if isinstance(turn, dict) else ():
            parts = turn.get(key)
            if isinstance(parts, dict):
                parts = [parts]
            if not isinstance(parts, list):
                continue
            for index, part in enumerate(parts):
                if isinstance(part, dict) and not part.keys() <= _TEXT_PART:
                    media_bytes += _check_part(part, f"{name}[{place}].{key}[{index}]", lends_rights)
    return media_bytes


def check_items(items: object) -> None:
    """Reject what vLLM 0.32 answers with a 5xx, at /v1/responses: a turn without anything in it."""
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("content") == []:
            param = f"input[{place}].content"
            raise _bad(f"{param} is empty", param, "leave the turn out")


def check_tools(tools: object, place: str = "tools") -> None:
    """Reject tools that an engine would run, at /v1/responses."""
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            param = f"{place}[{index}]"
            if str(tool.get("type")) not in _CLIENTS_TOOLS:
                raise _bad(
                    f"{param}.type is not function, custom or namespace",
                    f"{param}.type",
                    "no engine here runs tools: send functions, and run them yourself",
                )
            check_tools(tool.get("tools"), f"{param}.tools")


def tools_in(messages: object) -> Iterator[object]:
    """The tools that messages of /v1/messages define."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and "tool" in block:
                yield block["tool"]


_INLINE = {
    True: 'send the data itself: {"type": "base64", "media_type": ..., "data": ...}',
    False: "send the data itself, as a data: URL",
}
"""How a medium is sent to Anthropic's endpoints, and to OpenAI's."""


def _check_part(part: dict[str, Any], place: str, lends_rights: bool) -> int:
    # By the fields, whatever the part's type: engines use the fields if there is no type.
    media_bytes = 0
    for name, held in part.items():
        param = f"{place}.{name[:64]}"
        if lends_rights and name == "uuid":
            raise _bad(f"{param} is closed: it names what the engine has cached, maybe for others", param)
        is_tensor = name.endswith("_embeds") or (name == "type" and str(held).endswith("_embeds"))
        if lends_rights and is_tensor:
            raise _bad(f"{param} is closed: the engine loads tensors from it", param)
        if name in {"input_audio", "source"} or name.endswith("url"):
            if not _begins_with(held, ("data:",) if lends_rights else ("data:", "http:", "https:")):
                closed = (
                    "is an address, which an engine would fetch from its own network"
                    if lends_rights
                    else "is neither an http, an https nor a data: URL"
                )
                raise _bad(f"{param} {closed}", param, _INLINE[name == "source"])
            media_bytes += _beyond_its_tokens(held)
        elif name == "content" and isinstance(held, list):
            inner = (it for it in held if isinstance(it, dict))
            media_bytes += sum(_check_part(it, f"{param}[]", lends_rights) for it in inner)
    return media_bytes


def _beyond_its_tokens(media: object) -> int:
    held = media.values() if isinstance(media, dict) else (media,)
    data_bytes = sum(len(it) for it in held if isinstance(it, str))
    return max(0, data_bytes - MEDIUM_AS_TEXT_BYTES)


def _begins_with(media: object, schemes: tuple[str, ...]) -> bool:
    url = media.get("url") if isinstance(media, dict) else media
    return url is None or (isinstance(url, str) and url[:6].lower().startswith(schemes))


def _bad(message: str, param: str, hint: str | None = None) -> RequestRejected:
    return RequestRejected(RejectionKind.BAD_REQUEST, message, param=param, hint=hint)
