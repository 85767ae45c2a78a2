"""Real forms of files with captions, chats and text: each is read whole, or refused with its remedy.

`docs/formats.md` has the same table: a row here is a row there.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pytest
from pyarrow import ipc, parquet

from qnnkit.data.captioned_files import listing
from qnnkit.data.places import open_place
from qnnkit.data.text_files import documents
from tests.toys import refused

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
REFUSED = "refused"
CAPTIONS = {"a.jpg": ("one, two", "uno"), "b.jpg": ("zwei",), "c.jpg": ("drei",)}
PAIRS = [(image, text) for image, texts in CAPTIONS.items() for text in texts]
SIDES = {"a.jpg": "train", "b.jpg": "validation", "c.jpg": "test"}
CHAT = [("user", "Hi"), ("assistant", "Hello")]
IN_TWO = [
    ("system", "Be brief"),
    ("user", "Hi"),
    ("assistant", "Hello"),
    ("user", "1+1?"),
    ("assistant", "2"),
]


class Form(NamedTuple):
    """What people have, where from, and what comes of it."""

    kind: str  # captions, chats or text
    source: str
    files: dict[str, Any]  # name -> text, bytes, or what is written as JSON (a list as lines, for .jsonl)
    wanted: Any  # captions by image, messages, or texts; or REFUSED
    says: str = ""  # a part of the notes, or of the refusal's next step
    sides: dict[str, str] | None = None


def table(mark: str, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("image", "caption")) -> str:
    """As spreadsheets write it: quoted where a text has the separator in it."""
    cells = [[f'"{each}"' if mark in each else each for each in row] for row in [header, *rows]]
    return "\n".join(mark.join(row) for row in cells) + "\n"


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer := io.BytesIO())
    return buffer.getvalue()


def as_arrow(rows: list[dict[str, Any]]) -> bytes:
    data = pyarrow.Table.from_pylist(rows)
    with ipc.new_stream(buffer := io.BytesIO(), data.schema) as stream:
        stream.write_table(data)
    return buffer.getvalue()


def shared(key: str, names: str = "image") -> list[dict[str, Any]]:
    return [{names: image, key: list(texts)} for image, texts in CAPTIONS.items()]


def coco(images: dict[str, Any]) -> dict[str, Any]:
    return {
        "info": {},
        "licenses": [],
        "images": [{"id": i, "file_name": name, "width": 4} for i, name in enumerate(images)],
        "annotations": [
            {"id": 9, "image_id": i, "caption": text} for i, x in enumerate(images.values()) for text in x
        ],
    }


KARPATHY = [
    {
        "filename": name,
        "split": {"validation": "val", "train": "restval"}.get(SIDES[name], SIDES[name]),
        "sentences": [{"raw": text, "tokens": text.split()} for text in texts],
        "imgid": 0,
    }
    for name, texts in CAPTIONS.items()
]
LLAVA = [
    {
        "id": "1",
        "image": f"coco/train2017/{image}",
        "conversations": [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": text}],
    }
    for image, text in PAIRS
]
EMBEDDED = [{"image": {"bytes": name.encode(), "path": name}, "text": x[0]} for name, x in CAPTIONS.items()]
FIRST = {name: texts[:1] for name, texts in CAPTIONS.items()}
SPLIT_ROWS = [(image, text, {"validation": "val"}.get(SIDES[image], SIDES[image])) for image, text in PAIRS]
OPENAI = [{"role": role, "content": text} for role, text in IN_TWO]
SHAREGPT = [{"from": {"user": "human", "assistant": "gpt"}[role], "value": text} for role, text in CHAT]
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLS = [
    OPENAI[1],
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "2"},
    {"role": "assistant", "content": "It is 2"},
]
PARTS = [{"role": "developer", "content": [{"type": "text", "text": "Be brief"}]}, *OPENAI[1:]]
ASK = [{"role": "user", "content": "Hi"}]
ANSWER = [{"role": "assistant", "content": "Hello"}]
LONG = "\n\n".join(f"Speaker {i}:\n{'word ' * 150}".strip() for i in range(6))

FORMS = {
    "captions.csv with `,`": Form("captions", "spreadsheets", {"captions.csv": table(",", PAIRS)}, CAPTIONS),
    "captions.csv with `;`": Form(
        "captions", "Excel in Europe", {"captions.csv": table(";", PAIRS)}, CAPTIONS
    ),
    "captions.tsv": Form("captions", "Conceptual Captions", {"captions.tsv": table("\t", PAIRS)}, CAPTIONS),
    "captions.csv in UTF-16": Form(
        "captions", "Excel, Unicode text", {"captions.csv": table("\t", PAIRS).encode("utf-16")}, CAPTIONS
    ),
    "captions.csv with a byte order mark": Form(
        "captions", "Excel, CSV UTF-8", {"captions.csv": table(",", PAIRS).encode("utf-8-sig")}, CAPTIONS
    ),
    "captions.csv in Latin-1": Form(
        "captions",
        "old Windows programs",
        {
            "captions.csv": table(",", [("a.jpg", "ein Mädchen läuft über die Straße und ruft laut")]).encode(
                "latin-1"
            )
        },
        {"a.jpg": ("ein Mädchen läuft über die Straße und ruft laut",)},
        "read as cp1252",
    ),
    "captions.txt, commas unquoted": Form(
        "captions",
        "Flickr8k on Kaggle",
        {"captions.txt": "image,caption\na.jpg,one, two\na.jpg,uno\nb.jpg,zwei\nc.jpg,drei\n"},
        CAPTIONS,
    ),
    "results.csv with `| `": Form(
        "captions",
        "Flickr30k on Kaggle",
        {
            "results.csv": "image_name| comment_number| comment\n"
            + "".join(f"{a}| 0| {b}\n" for a, b in PAIRS)
        },
        CAPTIONS,
        "not used: comment_number",
    ),
    "Flickr8k.token.txt": Form(
        "captions",
        "Flickr8k, Flickr30k",
        {"Flickr8k.token.txt": "".join(f"{a}#{i}\t{b}\n" for i, (a, b) in enumerate(PAIRS))},
        CAPTIONS,
    ),
    "metadata.csv with a `split` column": Form(
        "captions",
        "Kaggle",
        {"metadata.csv": table(",", SPLIT_ROWS, ("file_name", "text", "split"))},
        CAPTIONS,
        sides=SIDES,
    ),
    "metadata.jsonl": Form(
        "captions",
        "Hugging Face, imagefolder",
        {"metadata.jsonl": [{"file_name": a, "text": b} for a, b in PAIRS]},
        CAPTIONS,
    ),
    "captions.json, image to captions": Form("captions", "scripts", {"captions.json": CAPTIONS}, CAPTIONS),
    "any JSON with images and prompts": Form(
        "captions", "sets for image generation", {"prompts.json": shared("prompt", "img_path")}, CAPTIONS
    ),
    "titles and ids without a suffix, in other letters": Form(
        "captions",
        "shops, museums",
        {"items.csv": table(",", [(a[0].upper(), b) for a, b in PAIRS], ("Image", "Title"))},
        CAPTIONS,
    ),
    "numbered columns caption_1, caption_2": Form(
        "captions",
        "surveys",
        {"captions.csv": "image,caption_1,caption_2\na.jpg,eins,uno\n"},
        {"a.jpg": ("eins", "uno")},
    ),
    "captions_train2017.json and captions_val2017.json": Form(
        "captions",
        "COCO",
        {
            "annotations/captions_train2017.json": coco({"a.jpg": ["a"]}),
            "annotations/captions_val2017.json": coco({"b.jpg": ["b"], "c.jpg": ["c"]}),
            "annotations/instances_val2017.json": {"images": []},
        },
        {"a.jpg": ("a",), "b.jpg": ("b",), "c.jpg": ("c",)},
        "not used: info, licenses, id, width",
        {"a.jpg": "train", "b.jpg": "validation", "c.jpg": "validation"},
    ),
    "dataset_flickr8k.json": Form(
        "captions",
        "Karpathy's splits",
        {"dataset_flickr8k.json": {"images": KARPATHY, "dataset": "flickr8k"}},
        CAPTIONS,
        "not used: dataset, imgid",
        SIDES,
    ),
    "llava_instruct.json": Form(
        "captions", "LLaVA", {"llava_instruct.json": LLAVA}, CAPTIONS, "not used: id"
    ),
    "a .txt beside each image": Form(
        "captions",
        "Stable Diffusion, webdataset",
        {f"{name[0]}.txt": "\n".join(texts) for name, texts in CAPTIONS.items()},
        CAPTIONS,
    ),
    "parquet with images inside": Form(
        "captions",
        "Hugging Face Hub",
        {"data/train-00000-of-00001.parquet": as_parquet(EMBEDDED)},
        FIRST,
        sides=dict.fromkeys(FIRST, "train"),
    ),
    "a table without a header": Form(
        "captions",
        "Conceptual Captions' lists",
        {"captions.tsv": "a.jpg\tone\nb.jpg\ttwo\n"},
        REFUSED,
        "Write one",
    ),
    "three columns, commas unquoted": Form(
        "captions",
        "scripts",
        {"captions.csv": "image,caption,by\na.jpg,one, two,me\n"},
        REFUSED,
        "quotation marks",
    ),
    "a caption with a loose quotation mark": Form(
        "captions", "scripts", {"captions.csv": 'image,caption\na.jpg,"one" two\n'}, REFUSED, "twice"
    ),
    "a `split` of no known name": Form(
        "captions",
        "cross-validation",
        {"metadata.csv": "file_name,text,split\na.jpg,one,fold3\n"},
        REFUSED,
        "rename it",
    ),
    "instruction, input, output": Form(
        "chats",
        "Alpaca (.json)",
        {"a.json": [{"instruction": "Add", "input": "1+1", "output": "2", "text": "..."}]},
        [("user", "Add\n\n1+1"), ("assistant", "2")],
        "not used: text",
    ),
    "with system and history": Form(
        "chats",
        "LLaMA-Factory, alpaca",
        {
            "a.json": [
                {
                    "instruction": "1+1?",
                    "input": "",
                    "output": "2",
                    "system": "Be brief",
                    "history": [["Hi", "Hello"]],
                }
            ]
        },
        IN_TWO,
    ),
    "instruction, context, response": Form(
        "chats",
        "Dolly",
        {"a.jsonl": [{"instruction": "Who?", "context": "Ann came.", "response": "Ann", "category": "qa"}]},
        [("user", "Who?\n\nAnn came."), ("assistant", "Ann")],
        "not used: category",
    ),
    "prompt, completion": Form(
        "chats", "OpenAI, trl", {"a.jsonl": [{"prompt": "Hi", "completion": "Hello"}]}, CHAT
    ),
    "prompt, completion as messages": Form(
        "chats", "trl", {"a.jsonl": [{"prompt": ASK, "completion": ANSWER}]}, CHAT
    ),
    "chosen, rejected": Form(
        "chats",
        "preferences (trl, LLaMA-Factory)",
        {"a.json": [{"prompt": "Hi", "chosen": [*ASK, *ANSWER], "rejected": []}]},
        CHAT,
        "not used: prompt, rejected",
    ),
    "question, answer": Form(
        "chats", "GSM8K (parquet)", {"a.parquet": as_parquet([{"question": "Hi", "answer": "Hello"}])}, CHAT
    ),
    "system_prompt, question, response": Form(
        "chats",
        "OpenOrca (arrow)",
        {
            "data-00000-of-00001.arrow": as_arrow(
                [{"system_prompt": "", "question": "Hi", "response": "Hello"}]
            ),
            "state.json": {},
        },
        CHAT,
    ),
    "messages": Form("chats", "OpenAI", {"a.jsonl": [{"messages": OPENAI}]}, IN_TWO),
    "messages in parts, developer": Form("chats", "OpenAI", {"a.jsonl": [{"messages": PARTS}]}, IN_TWO),
    "tool calls with empty content": Form(
        "chats",
        "OpenAI",
        {"a.jsonl": [{"messages": CALLS, "tools": []}]},
        [("user", "Hi"), ("assistant", ""), ("tool", "2"), ("assistant", "It is 2")],
        "tool_call_id of messages, tools",
    ),
    "conversations": Form(
        "chats",
        "ShareGPT",
        {"a.json": {"data": [{"id": "1", "conversations": SHAREGPT}]}},
        CHAT,
        "not used: id",
    ),
    "texts by turns": Form("chats", "UltraChat", {"a.jsonl": [{"data": ["Hi", "Hello"]}]}, CHAT),
    "JSON lines called .json": Form(
        "chats", "databricks, Spark", {"a.json": '{"prompt": "Hi", "response": "Hello"}\n' * 2}, CHAT
    ),
    "a table of chats": Form("chats", "spreadsheets", {"a.csv": "question;answer\nHi;Hello\n"}, CHAT),
    "chats without an answer": Form(
        "chats", "prompts alone", {"a.jsonl": [{"messages": ASK}]}, REFUSED, "call the one who"
    ),
    "weight 0 on every answer": Form(
        "chats",
        "OpenAI",
        {"a.jsonl": [{"messages": [*ASK, {**ANSWER[0], "weight": 0}]}]},
        REFUSED,
        "call the one who",
    ),
    "an image in a message": Form(
        "chats",
        "OpenAI, vision",
        {"a.jsonl": [{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}]},
        REFUSED,
        "write a text",
    ),
    "a speaker of no known name": Form(
        "chats",
        "plays",
        {"a.jsonl": [{"conversations": [{"from": "Ann", "value": "Hi"}]}]},
        REFUSED,
        "rename it",
    ),
    "keys of no known name": Form(
        "chats", "other tasks", {"a.jsonl": [{"body": "Hi"}]}, REFUSED, "rename those"
    ),
    "text": Form(
        "text",
        "the Pile, C4",
        {"a.jsonl": [{"text": "One"}, {"text": "Two", "meta": 1}]},
        ["One", "Two"],
        "not used: meta",
    ),
    "a column of texts": Form(
        "text", "Kaggle", {"a.csv": 'id,text\n1,"One, two"\n2,Three\n'}, ["One, two", "Three"], "not used: id"
    ),
    "a folder of short texts": Form(
        "text", "essays, reviews", {"a.txt": "One\n\nTwo", "b.md": "Three"}, ["One\n\nTwo", "Three"]
    ),
    "a long text": Form("text", "Project Gutenberg", {"a.txt": LONG}, LONG),
    "a text in UTF-16": Form("text", "Windows' Notepad", {"a.txt": "Grüße".encode("utf-16")}, ["Grüße"]),
    "a damaged parquet": Form(
        "text", "a download cut short", {"a.parquet": b"PAR1..."}, REFUSED, "Download it again"
    ),
    "bytes that are no text": Form(
        "text", "a wrong suffix", {"a.txt": b"GIF8\x00\x00\x00"}, REFUSED, "UTF-8"
    ),
}


@pytest.fixture(params=FORMS)
def form(request, tmp_path) -> tuple[Form, Path]:
    """A form of the table, and the folder that holds its files."""
    form: Form = FORMS[request.param]
    for name, content in form.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if name.endswith(".jsonl"):
            content = "\n".join(map(json.dumps, content))
        elif not isinstance(content, str | bytes):
            content = json.dumps(content)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return form, tmp_path


def read(form: Form, folder: Path) -> tuple[Any, list[str], Any]:
    """What comes of a folder, the notes on it, and the sides of images."""
    if form.kind == "captions":
        with open_place(folder) as place:
            made = listing(place)
        return {member.base: texts for member, texts in made.captions.items()}, list(made.notes), made.sides
    found, notes = documents(folder)
    if form.kind == "chats":
        return [(each["role"], each["content"]) for each in found[0].messages], notes, None
    texts = [document.text for document in found]
    return ("\n\n".join(texts) if isinstance(form.wanted, str) else texts), notes, None


def test_a_form_is_read_whole_or_refused_with_its_remedy(form):
    form, folder = form
    if form.kind == "captions" and not any(name.endswith(".parquet") for name in form.files):
        for name in form.wanted if form.wanted != REFUSED else CAPTIONS:
            (folder / name).write_bytes(b"")
    if form.wanted == REFUSED:
        with refused("root") as told:
            read(form, folder)
        assert form.says in str(told.value)
        return
    found, notes, sides = read(form, folder)
    assert found == form.wanted
    if form.says:
        assert form.says in " ".join(notes)
    else:
        assert not any("not used" in note or "read as" in note for note in notes), notes
    if form.kind == "captions":
        assert dict(zip(found, sides, strict=True)) == (form.sides or dict.fromkeys(found, "any"))


def row(name: str, form: Form) -> str:
    """A form's row in the page."""
    what = "refused: its error names the remedy" if form.wanted == REFUSED else "read"
    what += f"; {form.says.replace('not used:', 'a note names')}" * (
        form.wanted != REFUSED and bool(form.says)
    )
    what += "; its splits are used" * (form.sides is not None)
    return f"| {form.kind} | {name} | {form.source} | {what} |"


def test_the_page_has_the_same_table():
    rows = [
        line for line in PAGE.read_text().splitlines() if line.startswith(("| captions", "| chats", "| text"))
    ]
    assert rows == [row(name, form) for name, form in FORMS.items()]
