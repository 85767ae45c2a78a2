"""Text as blocks of tokens: nothing is lost or in two splits, and only answers are predicted."""

from pathlib import Path

import pytest
import torch

from qnnkit.data import tokenizers
from qnnkit.data.text import documents, text
from qnnkit.data.tokens import IGNORED
from tests.toys import real, refused, write

SPEAKERS = ("ROMEO", "JULIET", "NURSE")
SPLITS = ("train", "validation", "test")
SMALL = {"sequence_length": 16, "vocabulary": 257}
HALVES = {"validation_fraction": 0.3, "test_fraction": 0.3}


def play(n: int = 120) -> str:
    """Speeches of 100 to 300 characters, each of which contains its number."""
    lines = "Good morrow to my lord and lady, \n" * 8
    return "\n\n".join(f"{SPEAKERS[i % 3]}:\nSpeech {i:03d}. {lines[: 80 + 20 * (i % 10)]}" for i in range(n))


@pytest.fixture
def shakespeare(tmp_path) -> Path:
    return write(tmp_path, {"play.txt": play()}) / "play.txt"


def written(splits, name: str) -> str:
    return splits.tokenizer.decode(splits.split(name).input_ids.flatten().tolist())


# --- documents ---------------------------------------------------------------------------------------------


def test_a_single_file_is_split_at_blank_lines_and_loses_no_speech(shakespeare):
    texts, notes = documents(shakespeare)
    assert "\n\n".join(document.text for document in texts) == play() and notes == []
    sizes = [len(document.text) for document in texts]
    assert max(sizes) <= 2000 and sum(sizes) / len(sizes) > 1000, "a document holds several speeches"
    assert all(document.text.startswith(SPEAKERS) for document in texts)
    assert texts[1].name == f"play.txt, paragraph {texts[0].text.count(chr(10) * 2) + 2}"


def test_a_text_without_blank_lines_is_split_at_line_ends(tmp_path):
    path = tmp_path / "long.txt"
    for content in ("\n".join(str(i) * (1 + i % 7) for i in range(1000)), "x" * 10_000):
        path.write_text(content)
        texts = [document.text for document in documents(path)[0]]
        assert ("\n" if "\n" in content else "").join(texts) == content and max(map(len, texts)) <= 2000
    path.write_bytes("\ufeffOne\r\n\r\nTwo".encode())  # line ends and byte order mark of Windows
    assert documents(path)[0][0].text == "One\n\nTwo"


def test_a_file_is_a_document_placed_by_its_path_and_a_record_by_its_source(tmp_path):
    chapters = {f"austen/{i}.txt": f"Chapter {i}\n\n" + "Emma Woodhouse. " * 9 for i in range(12)}
    texts, notes = documents(write(tmp_path, chapters | {"empty.md": " \n"}))
    assert [document.name for document in texts] == [*chapters]
    assert notes == ["Left out empty documents: empty.md."]
    names = [each.name for each in documents(tmp_path, "/1")[0] if each.text]
    assert names == [f"austen/{i}.txt" for i in (1, 10, 11)]
    records = [{"text": f"Number {i}", "source": "ab"[i % 2]} for i in range(6)]
    texts, notes = documents(write(tmp_path / "x", {"a.jsonl": records}), "a")
    assert [document.text for document in texts] == ["Number 0", "", "Number 2", "", "Number 4", ""]
    assert notes == ["part='a' keeps 3 of 6 documents or speeches."]


@pytest.mark.parametrize("part", ["ROMEO|JULIET", "^NURSE$"])
def test_a_part_and_its_complement_share_no_speech_and_cover_all(shakespeare, part):
    def speeches(part):
        texts = documents(shakespeare, part)[0]
        return [speech for document in texts if document.text for speech in document.text.split("\n\n")]

    chosen, others = speeches(part), speeches(f"!{part}")
    assert {each.partition(":")[0] for each in chosen} == {*part.strip("^$").split("|")}
    assert {each.partition(":")[0] for each in others} == {*SPEAKERS} - {*part.strip("^$").split("|")}
    assert sorted(chosen + others) == sorted(play().split("\n\n"))


def test_the_test_split_of_a_part_is_in_the_test_split_of_the_whole(shakespeare):
    """So a base model trained on the whole has not seen it."""
    seed = {"split_seed": 3, "validation_fraction": 0.2, "test_fraction": 0.2}
    full, nurse = (text(shakespeare, **SMALL, **seed, part=part) for part in (None, "NURSE"))
    for name in SPLITS:
        said = written(nurse, name).replace(tokenizers.END, "\n\n").strip().split("\n\n")
        assert len(said) > 2 and all(speech in written(full, name) for speech in said[:-1])


# --- blocks ------------------------------------------------------------------------------------------------


def test_only_the_last_block_of_a_split_is_lost_and_blocks_name_their_start(shakespeare):
    """Each byte is a token, and so is the end of each document."""
    splits = text(shakespeare, **SMALL, validation_fraction=0.2, test_fraction=0.2)
    texts, n_tokens, n_full = documents(shakespeare)[0], 0, 0
    for name in SPLITS:
        part, joined = splits.split(name), written(splits, name).replace(tokenizers.END, "\0")
        assert torch.equal(part.labels, part.input_ids) and part.n_predicted == 15 * len(part)
        n_tokens += part.input_ids.numel()
        for document in texts:
            if (begin := joined.find(f"{document.text}\0")) >= 0:
                rows = range(-(-begin // 16), (begin + len(document.text)) // 16 + 1)
                assert {part.sources[row] for row in rows if row < len(part)} == {document.name}
                n_full += 1
    lost = sum(len(document.text) + 1 for document in texts) - n_tokens
    assert splits.notes[-1].startswith(f"Left out {lost} tokens: ends of splits, ")
    assert 0 < lost <= 45 and n_full >= len(texts) - 3, "all except the last of each split"


def where(splits, marks: list[str]) -> dict[str, str]:
    """Mark -> the split that contains it."""
    texts = {name: written(splits, name) for name in SPLITS}
    return {mark: name for mark in marks for name in SPLITS if mark in texts[name]}


def test_adding_or_removing_a_speech_moves_only_nearby_documents(tmp_path):
    marks, gone = [f"Number {i:02d}." for i in range(60)], 31
    words = [f"{mark} " + "So shaken as we are, so wan. " * (5 + i % 7) for i, mark in enumerate(marks)]

    def sides(chosen):
        (tmp_path / "a.txt").write_text("\n\n".join(chosen))
        return where(text(tmp_path, **SMALL | {"sequence_length": 2}, **HALVES), marks)

    before, after = sides(words), sides(words[:gone] + words[gone + 1 :])
    moved = [row for row, mark in enumerate(marks) if row != gone and before[mark] != after[mark]]
    assert len(before) == 60 and len(after) == 59 and len(moved) <= 12
    assert all(abs(row - gone) < 25 for row in moved)


def test_another_file_moves_no_document(tmp_path):
    """Long texts are split the same alone and together, whatever speeches they share."""
    marks, greetings = [f"Speech {i:03d}." for i in range(30, 120)], "Greetings to Kate and Jill.\n\n" * 150
    before = text(write(tmp_path, {"b.txt": play()}), **SMALL, **HALVES)
    after = text(write(tmp_path, {"a.txt": greetings + play()[:5000]}), **SMALL, **HALVES)
    assert where(after, marks) == where(before, marks)


def test_equal_records_are_in_the_same_split(tmp_path):
    records = [{"text": f"Number {i % 20:02d}. It is a number."} for i in range(60)]
    splits = text(write(tmp_path, {"a.jsonl": records}), **SMALL | {"sequence_length": 2}, **HALVES)
    counts = [written(splits, name).count(f"Number {i:02d}.") for i in range(20) for name in SPLITS]
    assert sorted(counts) == [0] * 40 + [3] * 20


# --- tokenizers --------------------------------------------------------------------------------------------


def test_the_tokenizer_is_trained_on_training_documents_only(tmp_path):
    """A word of a single document gets its own tokens only if that document is trained on."""
    files = {f"{letter}.txt": (letter * 7 + f"qx{letter} ") * 40 for letter in "abcdefghij"}
    splits = text(write(tmp_path, files), sequence_length=8, vocabulary=400)
    known, sources = " ".join(splits.tokenizer.get_vocab()), {*splits.train.sources}
    assert all((name in sources) == (f"qx{name[0]}" in known) for name in files)


# --- chats and instructions --------------------------------------------------------------------------------

HI = {"role": "user", "content": "hi"}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}]}
MARKED = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}END{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""A chat template; the value of END ends a message."""


def chats(silent: str = "-") -> list[dict]:
    """Forty chats of six turns; an answer that begins with `silent` has weight 0."""
    roles, records = ("system", *("user", "assistant") * 2, "user"), []
    for i in range(40):
        said = ("Be short.", f"What is {i} and {i}?", f"It is {2 * i}.", "Sure?", "Yes.", "Thanks.")
        each = zip(roles, said, strict=True)
        turns = [{"role": role, "content": x, "weight": int(not x.startswith(silent))} for role, x in each]
        records.append({"messages": turns})
    return records


def saved(folder: Path, template: str | None = None) -> Path:
    """A transformers tokenizer saved in a folder."""
    made = tokenizers.trained([play()], 300)
    made.chat_template = template
    made.save_pretrained(folder)
    return folder


SILENT = {"messages": [HI]}
LINES = MARKED.replace("END", "{{ eos_token }}\n")
LONG = [{"prompt": f"{i} why? " * 40, "completion": "So."} for i in range(90)]
TOOLS = [{"messages": [HI, CALL, {"role": "tool", "content": str(i)}]} for i in range(40)]
CHATS = {
    "answers": (
        [*chats(), SILENT], None,
        ("User: What is ", "System: Be short", f"Assistant: Yes.{tokenizers.END}System: Be short."),
        (" It is ", f" Yes.{tokenizers.END}"), ("What", "Sure", "User", "Be short", "Thanks"),
        "Left out chats without an answer: a.jsonl, record 41."),
    "the last of weight 0": (chats("Yes."), None, (), ("It is",), ("Yes",), "no chat template"),
    "an empty answer": (
        [*chats(), {"prompt": "Why?", "completion": " "}], None, (), ("It is",), ("Why",),
        "Left out chats without an answer: a.jsonl, record 41."),
    "the first of weight 0": (chats("It is"), None, ("It is",), ("Yes",), ("It is",), ""),
    "tool calls": (TOOLS, None, (), ('"arguments": {"a": 1}',), ("hi",), ""),
    "a custom template": (
        chats(), MARKED.replace("END", "</s>"), ("<user>Sure?</s><assistant>Yes.</s>",), ("Yes.</s>",),
        ("<user>",), ""),
    "a line after the end of an answer": (
        chats(), LINES, (f"<assistant>Yes.{tokenizers.END}\n<system>",), (f"Yes.{tokenizers.END}\n",),
        ("<user>", tokenizers.END * 2), ""),
    "long questions": (LONG, None, (), ("So.",), ("why",), "blocks with nothing to predict"),
}  # fmt: skip


@pytest.mark.parametrize("form", CHATS)
def test_only_the_answers_of_a_chat_are_predicted(tmp_path, form):
    records, template, wholly, learned, not_learned, says = CHATS[form]
    options = {"vocabulary": 257} if template is None else {"tokenizer": saved(tmp_path / "own", template)}
    splits = text(write(tmp_path / "x", {"a.jsonl": records}), sequence_length=64, **options)
    part = splits.train
    predicted = splits.tokenizer.decode(part.labels[part.labels != IGNORED].tolist())
    assert all(each in written(splits, "train") for each in wholly)
    assert (part.labels[:, 1:] != IGNORED).any(dim=1).all()
    assert all(each in predicted for each in learned) and not any(each in predicted for each in not_learned)
    assert any(says in note for note in splits.notes)
    assert template is not None or splits.tokenizer.chat_template == tokenizers.PLAIN_CHAT


# --- bad input ---------------------------------------------------------------------------------------------


RECORDS = {
    '{"text": "cut sho': "line 11",
    '["a list"]': "record 10",
    '{"text": 3}': "record 10",
    '{"prompt": "x", "completion": null}': "record 10",
    '{"prompt": "x", "completion": "y", "history": ["z"]}': "record 10",
    '{"messages": [{"role": "assistant", "tool_calls": ["x"]}]}': "record 10",
    '{"messages": [{"role": "user"}]}': "record 10",
}


@pytest.mark.parametrize("record", RECORDS)
def test_the_error_names_the_bad_record(tmp_path, record):
    good = '{"text": "fine"}'
    with refused("root", says=RECORDS[record]) as caught:
        documents(write(tmp_path, {"a.jsonl": "\n".join([*[good] * 9, "", record, good])}))
    assert "a.jsonl" in str(caught.value)


WRONG = [
    ("part", {"part": "HAMLET"}),
    ("part", {"part": "("}),
    ("sequence_length", {"sequence_length": 0}),
    ("vocabulary", {"vocabulary": 256}),
    ("root", {"sequence_length": 1}),
    ("root", {"sequence_length": 9999}),
    ("tokenizer", {"tokenizer": "."}),
]


@pytest.mark.parametrize(("argument", "options"), WRONG)
def test_options_that_raise_an_error(shakespeare, monkeypatch, argument, options):
    monkeypatch.chdir(shakespeare.parent)
    with refused(argument):
        text(shakespeare, **SMALL | options)


def test_a_loaded_tokenizer_is_not_trained(shakespeare, tmp_path):
    again = text(shakespeare, **SMALL, tokenizer=saved(tmp_path / "fits"))
    assert again.vocabulary == 300 and not any("was trained" in note for note in again.notes)
    assert any(note.startswith("Ignored vocabulary=257") for note in again.notes)


SAID = "{% for m in messages %}{{ m['content'] }};{% endfor %}"
TEMPLATES = {
    "refuses": ("{{ raise_exception('System messages are not taken') }}", "are not taken", chats()),
    "rewrites": ("{{ messages | length }}" + SAID, "or changes earlier messages", chats()),
    "drops calls": (SAID, "tool calls", TOOLS),
}


@pytest.mark.parametrize(("template", "says", "records"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_that_fails_rewrites_or_drops_calls(tmp_path, template, says, records):
    tokenizer = saved(tmp_path / "own", template)
    with refused("tokenizer", says=says):
        text(write(tmp_path / "x", {"a.jsonl": records}), **SMALL, tokenizer=tokenizer)


# --- real data ---------------------------------------------------------------------------------------------


@pytest.mark.data
def test_tinyshakespeare():
    splits = text(real("text", "tinyshakespeare.txt"), sequence_length=128, vocabulary=1024)
    sizes = {name: splits.split(name).input_ids.numel() for name in SPLITS}
    assert splits.vocabulary == 1024 and 1_115_394 / sum(sizes.values()) > 2.3, "characters per token"
    assert sizes["validation"] / sum(sizes.values()) == pytest.approx(0.1, abs=0.01)
