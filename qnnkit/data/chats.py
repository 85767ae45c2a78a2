"""Records as chats: every form that people publish, as messages {"role", "content"}."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qnnkit.data.places import refusal

TURNS = ("messages", "conversations", "conversation", "chat", "turns", "data")
ASKED = ("instruction", "prompt", "question", "query")
ANSWERED = ("output", "response", "completion", "answer", "chosen")
SYSTEM, PASSAGES = ("system", "system_prompt"), ("input", "context")
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}
"""What speakers are called, in small letters -> role in chat templates."""
USED_OF_TURN = ("role", "from", "content", "value", "weight", "tool_calls")
KNOWN = "text; messages or conversations; instruction, prompt or question with output, completion or answer"

Message = dict[str, Any]
"""`role` and `content` (both texts), `tool_calls` where there are any, `weight` where it is given."""


def is_answer(message: Message) -> bool:
    """Whether a model learns to write it: what an assistant says or calls, unless its weight is 0."""
    is_empty = not message["content"].strip() and not message.get("tool_calls")
    return message["role"] == "assistant" and message.get("weight") != 0 and not is_empty


def conversation(
    record: dict[str, Any], where: str, unused: Callable[[Iterable[str]], None]
) -> list[Message]:
    """The messages of a record; none if it is no chat.

    Alpaca (with `system` and `history`), Dolly, prompt and completion, question and answer, preferences (the
    chosen answer, with or without a prompt), OpenAI's messages, ShareGPT's conversations, and lists of texts
    by turns.

    Args:
        record: By key.
        where: Where it stands, for refusals.
        unused: Called with the keys that are not used.

    Raises:
        ValueError: A message has no known speaker or no text.
    """

    def pick(names: Sequence[str], kinds: type | tuple[type, ...]) -> str | None:
        return next((name for name in names if isinstance(record.get(name), kinds)), None)

    def said(turn: Any, role: str) -> list[Message]:
        """One turn, or several in a list."""
        if isinstance(turn, list):
            return [message for each in turn for message in said(each, role)]
        if not isinstance(turn, dict):
            return [{"role": role, "content": _text(turn, where)}]
        speaker = next((turn[key] for key in ("role", "from") if key in turn), role)
        if str(speaker).lower() not in ROLES:
            step = f"Known are {', '.join(ROLES)}: rename it."
            raise refusal("hold messages of known speakers", f"{where} with {speaker!r}", step)
        key = next((key for key in ("content", "value") if key in turn), "content")
        calls = turn.get("tool_calls") or []
        content = "" if calls and turn.get(key) is None else _text(turn.get(key), where)
        if turn.get("weight") not in (None, 0, 1):
            step = "Write 0 for a message that is not learnt, or 1."
            raise refusal("hold weights of 0 or 1", f"{where} with {turn['weight']!r}", step)
        unused(f"{key} of messages" for key in turn if key not in USED_OF_TURN)
        message: Message = {"role": ROLES[str(speaker).lower()], "content": content}
        if calls:
            message["tool_calls"] = [_call(each, where) for each in calls]
        return [message | ({"weight": turn["weight"]} if "weight" in turn else {})]

    turns, asked = pick(TURNS, list), pick(ASKED, (str, list))
    answered = pick(ANSWERED, (str, list, dict))
    used, messages = {turns, asked, answered}, []
    if turns:
        used = {turns}
        for number, turn in enumerate(record[turns]):
            messages += said(turn, ("user", "assistant")[number % 2] if isinstance(turn, str) else "")
    elif answered and (asked or (answered == "chosen" and isinstance(record[answered], list))):
        for pair in record.get("history") or []:
            if not isinstance(pair, list) or len(pair) != 2:
                step = f"There is {pair!r:.60}: write [question, answer]."
                raise refusal("hold pairs under 'history'", where, step)
            messages += [*said(pair[0], "user"), *said(pair[1], "assistant")]
        answer, question = said(record[answered], "assistant"), said(record[asked], "user") if asked else []
        if answer and answer[0]["role"] != "assistant":  # all of the chat
            question, used = [], {answered}
        elif not answer or not question:
            raise refusal("hold a message of each side", where, "One is empty: leave the record out.")
        else:
            given = [record[name] for name in PASSAGES if record.get(name) is not None]
            passages = [text for each in given for text in (each if isinstance(each, list) else [each])]
            texts = [question[-1]["content"], *(_text(each, where) for each in passages)]
            question[-1]["content"] = "\n\n".join(filter(None, texts))
            used |= {"history", *PASSAGES}
        messages += [*question, *answer]
    if messages and (system := pick(SYSTEM, str)):
        used.add(system)
        messages[:0] = said(record[system], "system") if record[system] else []
    unused(key for key in record if messages and key not in {*used, "source"})
    return messages


def _text(content: Any, where: str) -> str:
    """The text of a message, also one that is given in parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts: list[Any] = [each.get("text") if isinstance(each, dict) else each for each in parts]
    for part, text in zip(parts, texts, strict=True):
        if not isinstance(text, str):
            raise refusal("hold a text in every message", where, f"There is {part!r:.60}: write a text.")
    return "".join(texts)


def _call(call: Any, where: str) -> Any:
    """A tool call with its arguments by name, as templates want them; OpenAI writes them as JSON."""
    if not isinstance(call, dict):
        raise refusal("hold tool calls by key", where, f"There is {call!r:.60}: write an object.")
    function = call.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        with contextlib.suppress(ValueError):  # else they are written as they are
            return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    return call
