"""Records as chats: the forms that people publish, as messages {"role", "content"}."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from qnnkit.data.places import refusal
from qnnkit.data.records import Record, take

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}
"""What speakers are called, in small letters -> role in chat templates."""

Message = dict[str, Any]
"""`role` and `content` (both texts), `tool_calls` where there are any, `weight` 0 where it is not learnt."""


def is_answer(message: Message) -> bool:
    """Whether a model learns to write it: what an assistant says or calls, unless its weight is 0."""
    is_empty = not message["content"].strip() and not message.get("tool_calls")
    return message["role"] == "assistant" and message.get("weight") != 0 and not is_empty


def conversation(record: Record, where: str, unused: set[str]) -> list[Message]:
    """The messages of a record; none if it is no chat.

    OpenAI's messages, ShareGPT's conversations, Alpaca (with `system` and `history`), Dolly, prompt and
    completion (as texts or messages), question and answer.

    Args:
        record: By key.
        where: Where it is, for refusals.
        unused: Gets the keys that are not used.

    Raises:
        ValueError: A message has no known speaker or no text.
    """
    record = dict(record)
    turns = take(record, "turns")
    if not isinstance(turns, list):
        turns = _answered(record, where)
    if turns and (system := take(record, "system")):
        turns = [*_said("system", system), *turns]
    messages = [_message(turn, where, unused) for turn in turns]
    unused.update(record if messages else ())
    return messages


def _answered(record: Record, where: str) -> list[Any]:
    """The turns of an instruction and its answer; none without them."""
    question, answer = take(record, "question"), take(record, "answer")
    if question is None or answer is None:
        return []
    if passage := take(record, "passage"):
        question = f"{_text(question, where)}\n\n{_text(passage, where)}".strip()
    turns = []
    for pair in take(record, "history") or []:
        if not isinstance(pair, list) or len(pair) != 2:
            raise refusal("hold pairs under 'history'", where, "Write [question, answer] for each.")
        turns += [*_said("user", pair[0]), *_said("assistant", pair[1])]
    return [*turns, *_said("user", question), *_said("assistant", answer)]


def _said(role: str, value: Any) -> list[Any]:
    """A text as a turn; a list is of turns already."""
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def _message(turn: Any, where: str, unused: set[str]) -> Message:
    fields = dict(turn) if isinstance(turn, dict) else {}
    speaker, weight, calls = (take(fields, key) for key in ("role", "weight", "tool_calls"))
    content = take(fields, "content")
    unused.update(f"{key} of messages" for key in fields)
    role = ROLES.get(str(speaker).lower())
    if role is None or weight not in (None, 0, 1) or not all(isinstance(each, dict) for each in calls or ()):
        step = f"Known roles are {', '.join(ROLES)}; a weight is 0 (not learnt) or 1, a tool call an object."
        raise refusal("hold messages as models take them", f"{where} with {turn!r:.80}", step)
    message: Message = {"role": role, "content": "" if calls and content is None else _text(content, where)}
    if calls:
        message["tool_calls"] = [_call(each) for each in calls]
    return message | ({"weight": 0} if weight == 0 else {})


def _text(content: Any, where: str) -> str:
    """The text of a message, also one that is given in parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise refusal("hold a text in every message", where, f"There is {content!r:.60}: write a text.")
    return "".join(texts)


def _call(call: Any) -> Any:
    """A tool call with its arguments by name, as templates want them; OpenAI writes them as JSON."""
    with contextlib.suppress(ValueError, TypeError, LookupError):  # else they are written as they are
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    return call
