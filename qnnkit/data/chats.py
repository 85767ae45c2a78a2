"""Chats and instructions, in the forms that people publish them, as messages with a role and a content."""

from __future__ import annotations

import json
from typing import Any

from qnnkit.data.places import refusal

Message = dict[str, Any]
"""`role` and `content` of what was said; `weight` 0 on an answer that is not trained on."""
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "bot", "ai", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython"), "tool"),
}
TURNS = ("messages", "conversations", "conversation")
"""Keys of a list of messages."""
ASKED = ("instruction", "prompt", "question", "query")
ANSWERED = ("output", "response", "completion", "answer")
BESIDE = ("input", "context")
"""Keys of what an instruction is about, a passage or a number."""
KNOWN = f'"text"; {" or ".join(TURNS)}; one of {", ".join(ASKED)} with one of {", ".join(ANSWERED)}'


def messages(where: str, record: dict[str, Any]) -> tuple[tuple[Message, ...], set[str]]:
    """The messages of a record and the keys that they were read from; () of a record that is no chat.

    Read are OpenAI's `messages` (contents as text or as parts, tool calls, `weight`), ShareGPT's
    `conversations`, and instructions with their answers (Alpaca, Dolly, LLaMA-Factory: with `input` or
    `context`, `system`, and `history` as the turns before).

    Raises:
        ValueError: A message has no role that is known, or no text.
    """
    turns = next((key for key in TURNS if isinstance(record.get(key), list)), None)
    asked, answered = (next((key for key in keys if key in record), None) for keys in (ASKED, ANSWERED))
    if turns is None and not (asked and answered):
        return (), set()
    made: list[Message] = []
    used = {"system"} & record.keys()
    if system := _content(where, "system", record.get("system")):
        made.append({"role": "system", "content": system})
    if turns is not None:
        made += [_message(where, each) for each in record[turns]]
        return tuple(made), used | {turns}
    assert asked and answered
    for pair in record.get("history") or ():
        if not isinstance(pair, list) or len(pair) != 2:
            raise refusal(
                "hold pairs of a question and an answer under 'history'", where, f"There is {pair!r}."
            )
        made += [
            _message(where, {"role": role, "content": each})
            for role, each in zip(("user", "assistant"), pair, strict=True)
        ]
    for role, key in (("user", asked), ("assistant", answered)):
        if isinstance(record[key], list):
            made += [_message(where, each) for each in record[key]]
            continue
        beside = [name for name in BESIDE if record.get(name) and role == "user"]
        parts = [_content(where, name, record[name]) for name in (key, *beside)]
        if role == "assistant" and not parts[0]:
            raise refusal(f"hold a text under {key!r}", where, f"There is {record[key]!r}: write an answer.")
        made.append({"role": role, "content": "\n\n".join(filter(None, parts))})
    return tuple(made), used | {asked, answered, *({"history", *BESIDE} & record.keys())}


def _message(where: str, given: Any) -> Message:
    """A message by role and content, or by `from` and `value`."""
    if not isinstance(given, dict):
        raise refusal("hold messages with a role and a content", where, f"There is {given!r}.")
    role, content = (
        given.get(name, given.get(other)) for name, other in (("role", "from"), ("content", "value"))
    )
    if role not in ROLES:
        raise refusal(f"have roles of {', '.join(ROLES)}", where, f"There is {role!r}: rename it.")
    calls = given.get("tool_calls") or ([given["function_call"]] if given.get("function_call") else [])
    called = "\n".join(json.dumps(call.get("function", call), ensure_ascii=False) for call in calls)
    written = _content(where, f"content of {role}", "" if calls and content is None else content)
    made: Message = {"role": ROLES[role], "content": "\n".join(filter(None, (written, called)))}
    weight = given.get("weight", 1)
    if weight not in (0, 1):
        raise refusal(
            "have a weight of 0 or 1", where, f"There is {weight!r}: leave the message out, or write 1."
        )
    return made | ({"weight": 0} if weight == 0 else {})


def _content(where: str, name: str, value: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list):
        others = [
            part for part in value if not (isinstance(part, dict) and isinstance(part.get("text"), str))
        ]
        if others:
            step = f"There is {str(others[0])[:60]}: leave such parts out; texts are read alone."
            raise refusal(f"hold parts of text in the {name}", where, step)
        return "\n".join(part["text"] for part in value)
    if value is None and name in ("system", *BESIDE):
        return ""
    if not isinstance(value, str):
        raise refusal(f"hold a text in the {name}", where, f"There is {value!r}: write a text.")
    return value
