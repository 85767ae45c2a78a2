"""Files as people have them: each form is read whole, or refused in a sentence with the remedy.

The same table stands in docs/formats.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from qnnkit.data.captioned_files import listing
from qnnkit.data.captions import captions
from qnnkit.data.places import open_place
from qnnkit.data.splits import SPLITS
from qnnkit.data.text import text
from qnnkit.data.text_files import documents
from qnnkit.data.tokens import IGNORED
from tests.toys import refused

PAGE = (Path(__file__).parents[1] / "docs" / "formats.md").read_text()
NAMES = [f"{number:03d}.jpg" for number in range(30)]
CAPTIONS = {name: f"a cat, number {number} on a mat" for number, name in enumerate(NAMES)}
SIDE_OF = {name: ("train", "train", "val", "test")[number % 4] for number, name in enumerate(NAMES)}


def lines(records) -> str:
    return "\n".join(map(json.dumps, records)) + "\n"


def table(separator: str, header=("image", "caption"), rows=None) -> str:
    rows = CAPTIONS.items() if rows is None else rows
    return "".join(separator.join(f'"{each}"' for each in row) + "\n" for row in (header, *rows))


def parquet(records) -> bytes:
    import io

    import pyarrow as pa
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(list(records)), file)
    return file.getvalue()


COCO = {
    "info": {"year": 2017},
    "licenses": [{"id": 1}],
    "images": [{"id": 7 * n, "file_name": name, "height": 6} for n, name in enumerate(NAMES)],
    "annotations": [{"id": n, "image_id": 7 * n, "caption": CAPTIONS[name]} for n, name in enumerate(NAMES)],
}
KARPATHY = {
    "dataset": "coco",
    "images": [
        {"filename": name, "split": {"val": "val", "test": "test"}.get(side, ("train", "restval")[n % 4 % 2])}
        | {"sentences": [{"raw": CAPTIONS[name], "tokens": ["a"]}]}
        for n, (name, side) in enumerate(SIDE_OF.items())
    ],
}
LLAVA = [
    {
        "id": n,
        "image": name,
        "conversations": [{"from": "human", "value": "<image>\nDescribe."}, {"from": "gpt", "value": said}],
    }
    for n, (name, said) in enumerate(CAPTIONS.items())
]
SPLIT = [(name, said, SIDE_OF[name]) for name, said in CAPTIONS.items()]
BARE = [(name.removesuffix(".jpg").upper(), said) for name, said in CAPTIONS.items()]

IMAGES = {
    "Flickr8k `captions.txt`, commas without quotation marks": (
        "Kaggle",
        "captions.txt",
        "image,caption\n" + "".join(f"{n},{s}\n" for n, s in CAPTIONS.items()),
    ),
    "Flickr8k `token.txt`": (
        "University of Illinois",
        "Flickr8k.token.txt",
        "".join(f"{n}#0\t{s}\n" for n, s in CAPTIONS.items()),
    ),
    "Flickr30k `results.csv`, separated by `|`": (
        "Kaggle",
        "results.csv",
        "image_name| comment_number| comment\n" + "".join(f"{n}| 0| {s}\n" for n, s in CAPTIONS.items()),
    ),
    "table with `,`": ("any", "captions.csv", table(",")),
    "table with `;`": ("Excel in most of Europe", "captions.csv", table(";")),
    "table with tabs": ("any", "captions.tsv", table("\t")),
    "table in UTF-8 with a BOM": ("Excel", "captions.csv", b"\xef\xbb\xbf" + table(",").encode()),
    "table in UTF-16": ("Excel", "captions.csv", table("\t").encode("utf-16")),
    "table in Latin-1": (
        "older Windows",
        "captions.csv",
        table(";", rows=[(n, f"{s}, ein schöner Kater über Größe") for n, s in CAPTIONS.items()]).encode(
            "latin-1"
        ),
    ),
    "table with a column `split`": (
        "many",
        "captions.csv",
        table(",", ("filename", "title", "split"), SPLIT),
    ),
    "names that differ in case or lack their suffix": ("many", "captions.csv", table(",", rows=BARE)),
    "COCO": ("cocodataset.org", "captions_val2017.json", json.dumps(COCO)),
    "COCO with its folder `annotations/`": (
        "cocodataset.org",
        "annotations/captions_val2017.json",
        json.dumps(COCO),
    ),
    "Karpathy's splits": ("Stanford", "dataset_coco.json", json.dumps(KARPATHY)),
    "LLaVA": ("Hugging Face", "llava.json", json.dumps(LLAVA)),
    "`metadata.jsonl`": (
        "Hugging Face's imagefolder",
        "metadata.jsonl",
        lines({"file_name": n, "text": s} for n, s in CAPTIONS.items()),
    ),
    "`metadata.csv` with prompts": ("diffusers", "metadata.csv", table(",", ("file_name", "prompt"))),
    "dictionary by image": ("many", "captions.json", json.dumps(CAPTIONS)),
    "list of records with lists": (
        "many",
        "data.json",
        json.dumps([{"img": n, "captions": [s]} for n, s in CAPTIONS.items()]),
    ),
    "parquet of names and texts": (
        "Hugging Face",
        "captions.parquet",
        parquet({"path": n, "description": s} for n, s in CAPTIONS.items()),
    ),
    "a `.txt` beside each image": (
        "LoRA trainers for diffusion",
        {f"{n[:-4]}.txt": f"{s}\n" for n, s in CAPTIONS.items()},
        None,
    ),
    "table of another shape": ("", "captions.csv", "a;b\n1;2\n"),
    "line with a column too many": (
        "",
        "captions.csv",
        table(",", ("image", "caption", "by"), [(n, s, "me") for n, s in CAPTIONS.items()]) + "a,b,c,d\n",
    ),
    "split of unknown name": (
        "",
        "captions.csv",
        table(",", ("image", "caption", "split"), [(n, s, "mine") for n, s in CAPTIONS.items()]),
    ),
}
NOT_CAPTIONS = {"table of another shape", "line with a column too many", "split of unknown name"}


def write(folder: Path, name, content) -> None:
    for each, inside in (name if isinstance(name, dict) else {name: content}).items():
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_bytes(inside if isinstance(inside, bytes) else inside.encode())


@pytest.mark.parametrize("form", IMAGES)
def test_captions(tmp_path, form):
    _, name, content = IMAGES[form]
    write(tmp_path, name, content)
    (tmp_path / "val2017").mkdir()
    for number, each in enumerate(NAMES):
        folder = tmp_path / ("val2017" if "annotations/" in str(name) else "")
        Image.fromarray(np.full((6, 6), 8 * number, np.uint8)).save(folder / each)
    if form in NOT_CAPTIONS:
        with refused("root"):
            captions(tmp_path, image_size=6)
        return
    splits = captions(tmp_path, image_size=6)
    parts = {name: splits.split(name) for name in SPLITS}
    said = {
        s.rpartition("/")[2]: c
        for part in parts.values()
        for s, c in zip(part.sources, part.captions, strict=True)
    }
    wanted = {
        n: (f"{s}, ein schöner Kater über Größe" if "Latin" in form else s,) for n, s in CAPTIONS.items()
    }
    assert said == wanted
    if "split" in form:
        usual = {"val": "validation"}
        placed = {source: name for name, part in parts.items() for source in part.sources}
        assert placed == {name: usual.get(side, side) for name, side in SIDE_OF.items()}
    unused = {"COCO": "height", "COCO with its folder `annotations/`": "height", "LLaVA": "'id' (30)"}
    unused |= {"Flickr30k `results.csv`, separated by `|`": "'comment_number' (30)"}
    told = [note for note in splits.notes if "not used" in note]
    assert len(told) <= 1 and unused.get(form, "") in " ".join(told)


def turns(n: int, role: str, content: str, names=("user", "assistant")) -> list[dict]:
    return [{role: names[0], content: f"What is {n}?"}, {role: names[1], content: f"Answer {n}."}]


RECORDS = {
    "ShareGPT, JSON lines": (
        "Hugging Face",
        "a.jsonl",
        [{"id": n, "conversations": turns(n, "from", "value", ("human", "gpt"))} for n in range(60)],
    ),
    "ShareGPT, JSON": (
        "Hugging Face",
        "a.json",
        [{"conversations": turns(n, "from", "value", ("human", "gpt"))} for n in range(60)],
    ),
    "OpenAI `messages`": (
        "OpenAI",
        "a.jsonl",
        [{"messages": turns(n, "role", "content")} for n in range(60)],
    ),
    "contents as parts": (
        "OpenAI, Hugging Face",
        "a.jsonl",
        [
            {
                "messages": [
                    {"role": m["role"], "content": [{"type": "text", "text": m["content"]}]}
                    for m in turns(n, "role", "content")
                ]
            }
            for n in range(60)
        ],
    ),
    "role `model`": (
        "Gemma",
        "a.json",
        [{"messages": turns(n, "role", "content", ("user", "model"))} for n in range(60)],
    ),
    "tool calls without content": (
        "OpenAI",
        "a.jsonl",
        [
            {
                "messages": [
                    {"role": "user", "content": "Now?"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "1", "function": {"name": "clock", "arguments": "{}"}}],
                    },
                    {"role": "tool", "content": "9", "tool_call_id": "1"},
                    *turns(n, "role", "content"),
                ]
            }
            for n in range(60)
        ],
    ),
    "Alpaca with `input`": (
        "Stanford",
        "a.json",
        [
            {"instruction": "What is it?", "input": f"Passage {n}", "output": f"Answer {n}."}
            for n in range(60)
        ],
    ),
    "Dolly with `context`": (
        "Databricks",
        "a.jsonl",
        [
            {
                "instruction": "What is it?",
                "context": f"Passage {n}",
                "response": f"Answer {n}.",
                "category": "qa",
            }
            for n in range(60)
        ],
    ),
    "Alpaca with `system` and `history`": (
        "LLaMA-Factory",
        "a.json",
        [
            {
                "instruction": "And now?",
                "input": "",
                "output": f"Answer {n}.",
                "system": f"Passage {n}",
                "history": [["Before?", "Earlier."]],
            }
            for n in range(60)
        ],
    ),
    "prompt and completion": (
        "OpenAI, TRL",
        "a.jsonl",
        [{"prompt": f"What is {n}?", "completion": f"Answer {n}."} for n in range(60)],
    ),
    "prompt and completion as messages": (
        "TRL",
        "a.jsonl",
        [
            {"prompt": turns(n, "role", "content")[:1], "completion": turns(n, "role", "content")[1:]}
            for n in range(60)
        ],
    ),
    "question and answer": (
        "Hugging Face",
        "a.csv",
        table(",", ("question", "answer"), [(f"What is {n}?", f"Answer {n}.") for n in range(60)]),
    ),
    "parquet of chats": (
        "Hugging Face",
        "a.parquet",
        parquet({"messages": turns(n, "role", "content")} for n in range(60)),
    ),
    "list under `data`": (
        "many",
        "a.json",
        json.dumps({"version": 1, "data": [{"messages": turns(n, "role", "content")} for n in range(60)]}),
    ),
    "`weight` 0": (
        "OpenAI",
        "a.jsonl",
        [
            {
                "messages": [
                    {"role": "user", "content": "Hm?"},
                    {"role": "assistant", "content": "Nonsense.", "weight": 0},
                    *turns(n, "role", "content"),
                ]
            }
            for n in range(60)
        ],
    ),
    "plain text in JSON lines": ("many", "a.jsonl", [{"text": f"Answer {n}. " * 5} for n in range(60)]),
    "text in Latin-1": (
        "older Windows",
        "a.txt",
        "\n\n".join(f"Answer {n}. Schöne Grüße über das Meer und zurück." * 4 for n in range(60)).encode(
            "latin-1"
        ),
    ),
    "two long texts": (
        "any",
        {name: "\n\n".join(f"Answer {n} of {name}. " * 9 for n in range(40)) for name in ("a.txt", "b.txt")},
        None,
    ),
    "chats without an answer": (
        "",
        "a.jsonl",
        [{"messages": turns(n, "role", "content")[:1]} for n in range(60)],
    ),
    "images in a chat": (
        "",
        "a.jsonl",
        [
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
                    *turns(n, "role", "content")[1:],
                ]
            }
            for n in range(60)
        ],
    ),
    "unknown keys": ("", "a.json", [{"body": "x"}] * 9),
    "unknown role": (
        "",
        "a.jsonl",
        [{"messages": turns(n, "role", "content", ("user", "narrator"))} for n in range(60)],
    ),
}
NO_CHATS = {"chats without an answer", "images in a chat", "unknown keys", "unknown role"}


@pytest.mark.parametrize("form", RECORDS)
def test_text_and_chats(tmp_path, form):
    _, name, content = RECORDS[form]
    if isinstance(content, list):
        content = lines(content) if name.endswith("jsonl") else json.dumps(content)
    write(tmp_path, name, content)
    root = tmp_path if isinstance(name, dict) else tmp_path / name
    halves = {"validation_fraction": 0.3, "test_fraction": 0.3}
    if form in NO_CHATS:
        with refused("root"):
            text(root, sequence_length=32, vocabulary=257, **halves)
        return
    splits = text(root, sequence_length=64, vocabulary=257, **halves)
    parts = [splits.split(each) for each in SPLITS]
    whole = " ".join(splits.tokenizer.decode(part.input_ids.flatten().tolist()) for part in parts)
    learned = " ".join(
        splits.tokenizer.decode(part.labels[part.labels != IGNORED].tolist()) for part in parts
    )
    assert sum(f"Answer {n}" in learned for n in range(40)) >= 36, "but for the last of each split"
    for passed in ("Passage", "What is", "Nonsense", "Before"):
        assert passed not in learned
    if any(word in form for word in ("input", "context", "history")):
        assert sum(f"Passage {n}" in whole for n in range(60)) >= 50
    assert ("clock" in learned) == ("tool" in form) and ("Earlier" in learned) == ("history" in form)
    told = [note for note in splits.notes if "not used" in note]
    others = (
        "ShareGPT, JSON lines",
        "Dolly with `context`",
        "tool calls without content",
        "list under `data`",
    )
    assert len(told) == (form in others)


PAIR = {"a.jpg": ("one, two", "uno"), "b.jpg": ("zwei",)}
EMBEDDED = [{"image": {"bytes": name.encode(), "path": name}, "text": [*said]} for name, said in PAIR.items()]
COCO_OF = {
    name: {
        "info": {},
        "images": [{"id": 1, "file_name": name}],
        "annotations": [{"image_id": 1, "caption": name}],
    }
    for name in PAIR
}
HI, HELLO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
CALL = {"function": {"name": "add", "arguments": '{"a": 1}'}}
REFUSED = "refused"
EXACT: dict[str, tuple[str, dict[str, Any], Any, str]] = {
    "columns `caption_1`, `caption_2`": (
        "surveys",
        {"captions.csv": "image,caption_1,caption_2\na.jpg,eins,uno\n"},
        {"a.jpg": ("eins", "uno")},
        "",
    ),
    "a `.txt` with a caption in each line": (
        "CUB, Oxford flowers",
        {"a.txt": "one, two\nuno\n", "b.txt": "zwei"},
        PAIR,
        "",
    ),
    "parquet with images in it, in several parts": (
        "Hugging Face Hub",
        {f"data/part-{n}.parquet": parquet([row]) for n, row in enumerate(EMBEDDED)},
        PAIR,
        "",
    ),
    "COCO, both parts": (
        "cocodataset.org",
        {
            "annotations/captions_train2017.json": COCO_OF["a.jpg"],
            "annotations/captions_val2017.json": COCO_OF["b.jpg"],
            "annotations/instances_val2017.json": {"images": []},
        },
        {"a.jpg": ("a.jpg",), "b.jpg": ("b.jpg",)},
        "'info' (2)",
    ),
    "captions with their words": (
        "Karpathy",
        {
            "dataset.json": [
                {"filename": n, "sentences": [{"raw": t, "tokens": [t]} for t in s]} for n, s in PAIR.items()
            ]
        },
        PAIR,
        "'tokens of captions' (3)",
    ),
    "captions under `prompt`, images under `img_path`": (
        "image generation",
        {"prompts.json": {"version": 1, "rows": [{"img_path": n, "prompt": [*s]} for n, s in PAIR.items()]}},
        PAIR,
        "'version' (1)",
    ),
    "table without a header": (
        "Conceptual Captions",
        {"captions.tsv": "a.jpg\tone\nb.jpg\ttwo\n"},
        REFUSED,
        "Write one such as",
    ),
    "quotation mark inside of a quoted caption": (
        "scripts",
        {"captions.csv": 'image,caption\na.jpg,"one" two\n'},
        REFUSED,
        "quotation marks twice",
    ),
    "line with a column too few": (
        "scripts",
        {"captions.csv": "image,caption,by\na.jpg,one,me\nb.jpg,two\n"},
        REFUSED,
        "quotation marks",
    ),
    "`system_prompt` with question and response": (
        "OpenOrca",
        {"a.jsonl": [{"system_prompt": "Be brief", "question": "Hi", "response": "Hello"}], "state.json": {}},
        [("system", "Be brief"), ("user", "Hi"), ("assistant", "Hello")],
        "",
    ),
    "`chosen` and `rejected`": (
        "preferences (TRL, LLaMA-Factory)",
        {"a.json": [{"prompt": "Hi", "chosen": [HI, HELLO], "rejected": [HI]}]},
        [("user", "Hi"), ("assistant", "Hello")],
        "'rejected' (1)",
    ),
    "texts by turns": (
        "UltraChat",
        {"a.jsonl": [{"data": ["Hi", "Hello"]}]},
        [("user", "Hi"), ("assistant", "Hello")],
        "",
    ),
    "JSON lines called `.json`": (
        "Spark",
        {"a.json": '{"prompt": "Hi", "response": "Hello"}\n{"prompt": "Hi", "response": "Hello"}\n'},
        [("user", "Hi"), ("assistant", "Hello")],
        "",
    ),
    "keys of messages that are not used": (
        "OpenAI",
        {
            "a.jsonl": [
                {
                    "messages": [
                        HI,
                        {"role": "assistant", "tool_calls": [CALL]},
                        {"role": "tool", "content": "2", "tool_call_id": "1"},
                    ]
                }
            ]
        },
        [("user", "Hi"), ("assistant", ""), ("tool", "2")],
        "'tool_call_id of messages' (1)",
    ),
    "questions with unquoted commas": (
        "scripts",
        {"a.csv": "question,answer\nWhat, exactly, is it?,An owl\n"},
        REFUSED,
        "quotation marks",
    ),
    "bytes that are no text": ("wrong suffixes", {"a.txt": b"GIF8\x00\x00\x00"}, REFUSED, "save it as UTF-8"),
    "parquet that is cut short": (
        "broken downloads",
        {"a.parquet": b"PAR1..."},
        REFUSED,
        "Download it again",
    ),
}


@pytest.mark.parametrize("form", EXACT)
def test_what_is_read_exactly(tmp_path, form):
    _, files, wanted, says = EXACT[form]
    for name, content in files.items():
        if not isinstance(content, str | bytes):
            content = lines(content) if name.endswith("jsonl") else json.dumps(content)
        write(tmp_path, name, content)
    chat = not isinstance(wanted, dict) and "captions" not in "".join(files)
    if not chat and not any(name.endswith("parquet") for name in files):
        write(tmp_path, dict.fromkeys(wanted if isinstance(wanted, dict) else PAIR, b""), None)

    def read():
        if chat:
            found, notes = documents(tmp_path)
            return [(each["role"], each["content"]) for each in found[0].messages], notes
        with open_place(tmp_path) as place:
            made = listing(place)
        return {member.base: said for member, said in made.captions.items()}, made.notes

    if wanted == REFUSED:
        with refused("root") as told:
            read()
        assert says in str(told.value)
        return
    found, notes = read()
    assert found == wanted
    assert says in " ".join(notes) and ("not used" in " ".join(notes)) == bool(says)


@pytest.mark.parametrize(("name", "about"), {**IMAGES, **RECORDS, **EXACT}.items(), ids=str)
def test_the_page_names_each_form(name, about):
    source = about[0] or "-"
    bad = name in NOT_CAPTIONS | NO_CHATS or (name in EXACT and EXACT[name][2] == REFUSED)
    what = "refused" if bad else "read whole"
    assert f"| {name} | {source} | {what}" in PAGE
