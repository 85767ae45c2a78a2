"""Files as users have them: each form is read completely, or raises an error that names the remedy.

docs/formats.md has the same table. test_captions and test_text cover what the kit makes of the files.
"""

import gzip
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from qnnkit.data.captions import listing
from qnnkit.data.places import open_place
from qnnkit.data.text import documents
from tests.toys import refused, write

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
CAT, OWL, KATER = "a cat, on a mat", "an owl", "ein schöner Kater über Größe"
SAID = {"a.jpg": (CAT,), "b.jpg": (OWL,)}
PAIR = {"a.jpg": ("one, two", "uno"), "b.jpg": ("zwei",)}
ROWS = [(name, text) for name, [text] in SAID.items()]


def table(mark: str, *header: str, rows=ROWS, quote: str = '"') -> str:
    rows = [header or ("image", "caption"), *rows]
    return "".join(mark.join(f"{quote}{each}{quote}" for each in row) + "\n" for row in rows)


def records(*keys: str, lists: bool = False, **more) -> list[dict[str, Any]]:
    """One record per image of SAID, or of PAIR with lists of captions."""
    said = {name: [*texts] for name, texts in PAIR.items()} if lists else dict(ROWS)
    return [{keys[0]: name, keys[1]: texts, **more} for name, texts in said.items()]


def parquet(rows) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


def arrow(writer) -> bytes:
    file, rows = io.BytesIO(), pa.Table.from_pylist([{"text": "One."}])
    with writer(file, rows.schema) as opened:
        opened.write_table(rows)
    return file.getvalue()


def coco(*names: str) -> dict[str, Any]:
    numbers = {name: 7 + ord(name[0]) for name in names}
    images = [{"id": number, "file_name": name, "height": 6} for name, number in numbers.items()]
    texts = [
        {"id": i, "image_id": str(numbers[name]), "caption": SAID[name][0]} for i, name in enumerate(names)
    ]
    return {"info": {"year": 2017}, "images": images, "annotations": texts}


def sentences(name: str, split: dict[str, str]) -> dict[str, Any]:
    return {"filename": name, "sentences": [{"raw": each, "tokens": [each]} for each in PAIR[name]], **split}


EMBEDDED = [{"image": {"bytes": name.encode(), "path": name}, "text": [*said]} for name, said in PAIR.items()]
ASKED = {"from": "human", "value": "<image>\nDescribe."}
LLAVA = [{"id": n, "image": n, "conversations": [ASKED, {"from": "gpt", "value": s}]} for n, s in ROWS]
KARPATHY = [sentences("a.jpg", {"split": "restval"}), sentences("b.jpg", {"split": "val"})]
OF_TRAIN, OF_DEV = ([row] for row in records("file_name", "text"))
SPLIT = {"train/metadata.jsonl": OF_TRAIN, "dev/metadata.jsonl": OF_DEV}
BARE = [(name.removesuffix(".jpg").upper(), text) for name, text in ROWS]
THREE = ("image", "caption", "by")
REFUSED = "refused"

# form -> files, captions by image, words of the note (on unused files) or of the error
IMAGES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "Flickr8k `captions.txt`, commas without quotation marks": ({"captions.txt": table(",", quote="")},
        SAID, ""),
    "Flickr30k `results.csv`, separated by `|`": (
        {"results.csv": table("|", "image_name", " comment_number", " comment", quote="",
                              rows=[(n, "0", t) for n, t in ROWS])}, SAID, "comment_number"),
    "table with `,`": ({"captions.csv": table(",")}, SAID, ""),
    "table with `;`": ({"captions.csv": table(";")}, SAID, ""),
    "table with tabs": ({"captions.tsv": table("\t")}, SAID, ""),
    "table in UTF-8 with a BOM": ({"captions.csv": b"\xef\xbb\xbf" + table(",").encode()}, SAID, ""),
    "table in UTF-16": ({"captions.csv": table("\t").encode("utf-16")}, SAID, "captions.csv (utf_16)"),
    "table in Latin-1": ({"captions.csv": table(";", rows=[(n, KATER) for n in SAID]).encode("latin-1")},
        dict.fromkeys(SAID, (KATER,)), "captions.csv (cp1252)"),
    "table with a column `split`": ({"captions.csv": table(",", "filename", "title", "split",
        rows=[(*ROWS[0], "train"), (*ROWS[1], "TEST")])}, SAID, ""),
    "names that differ in case or lack their suffix": ({"captions.csv": table(",", rows=BARE)}, SAID, ""),
    "COCO, both parts": ({"annotations/captions_train2017.json": coco("a.jpg"),
        "annotations/captions_val2017.json": coco("b.jpg"),
        "annotations/instances_val2017.json": {"images": []}}, SAID, "height, id, image_id, info"),
    "Karpathy's splits": ({"dataset_coco.json": {"dataset": "coco", "images": KARPATHY}}, PAIR, "dataset"),
    "LLaVA": ({"llava.json": LLAVA}, SAID, "id"),
    "`metadata.jsonl`": ({"metadata.jsonl": records("file_name", "text")}, SAID, ""),
    "dictionary by image": ({"captions.json": {n: [text, float("nan")] for n, text in ROWS}}, SAID, ""),
    "captions under `prompt`, images under `img_path`": ({"prompts.json": {"version": 1,
        "rows": records("img_path", "prompt", lists=True)}}, PAIR, "version"),
    "parquet of names and texts": ({"captions.parquet": parquet(records("path", "description"))}, SAID, ""),
    "parquet with images in it, in several parts": ({f"data/part-{n}.parquet": parquet([row])
        for n, row in enumerate(EMBEDDED)}, PAIR, ""),
    "a `.txt` or `.caption` next to each image, a caption in each line": ({"a.txt": "one, two\nuno\n",
        "b.caption": "zwei", "read.md": ""}, PAIR, ""),
    "columns `caption_1`, `caption_2`": (
        {"captions.csv": table(",", "image", "caption_1", "caption_2",
                               rows=[(name, each[0], each[-1]) for name, each in PAIR.items()])}, PAIR, ""),
    "columns without a name at the end": ({"captions.csv": table(",", "image", "caption", "", "",
        rows=[(*row, "", "") for row in ROWS])}, SAID, "one without a name"),
    "captions under an unknown name": ({"captions.csv": table(",", "image", "Words")}, REFUSED,
        "columns Words"),
    "table without a header": ({"captions.tsv": "a.jpg\tone\nb.jpg\ttwo\n"}, REFUSED, "Write [{"),
    "line with a column too many": ({"captions.csv": table(",", *THREE, rows=[("a.jpg", CAT,
        "me")]) + "a,b,c,d\n"}, REFUSED, "quotation marks"),
    "line with a column too few": ({"captions.csv": table(",", *THREE, rows=[("a.jpg", CAT, "me"), ("b.jpg",
        OWL)])}, REFUSED, "line 3"),
    "quotation mark inside of a quoted caption": ({"captions.csv": 'image,caption\na.jpg,"one" two\n'},
        REFUSED, "double each"),
    "COCO with one `id` for two images": ({"captions_x.json": coco("a.jpg",
        "a.jpg") | {"images": [{"id": 104, "file_name": name} for name in SAID]}}, REFUSED,
        "an `id` of its own"),
    "Flickr8k `token.txt`": ({"Flickr8k.token.txt": f"a.jpg#0\t{CAT}\nb.jpg#0\t{OWL}\n"}, REFUSED,
        "Write [{"),
    "`metadata.jsonl` in a folder of each side": (SPLIT, {"train/a.jpg": (CAT,), "dev/b.jpg": (OWL,)}, ""),
    "`metadata.jsonl` around folders of sides": ({"metadata.jsonl": [{"file_name": "train/a.jpg",
        "text": CAT}, {"file_name": "val/b.jpg", "text": OWL}]}, {"train/a.jpg": (CAT,), "val/b.jpg": (OWL,)},
        ""),
    "a file for all next to those of sides": ({f"captions_{side}.json": [{"image": name, "caption": text}]
        for side, (name, text) in zip(("train", "val"), ROWS, strict=True)}
        | {"captions_x.json": [{"image": n, "caption": "more"} for n in SAID]},
        {"a.jpg": (CAT, "more"), "b.jpg": (OWL, "more")}, ""),
    "images in a folder `images`": ({"captions.csv": table(",")}, {f"images/{n}": s for n, s in SAID.items()},
        ""),
    "paths from another folder": ({"texts/captions.csv": table(",", rows=[("./cat/1.jpg", CAT),
        ("../x/dog/1.jpg", OWL)])}, {"cat/1.jpg": (CAT,), "x/dog/1.jpg": (OWL,)}, ""),
    "numbers as names": ({"captions.json": [{"image": n, "caption": OWL} for n in (1, 2)]},
        {"1.jpg": (OWL,), "2.jpg": (OWL,)}, ""),
    "a list in a table that is no JSON": ({"captions.csv": table(",", rows=[("a.jpg", "['one' 'two']")])},
        REFUSED, "no list of JSON"),
    "images in other folders": ({"captions.csv": table(",")}, {f"x/{n}/{n}": s for n, s in SAID.items()}, ""),
    "`sep=;` in the first line": ({"captions.csv": "sep=;\n" + table(";", quote="")}, SAID, ""),
    "records without an image": ({"llava.json": [{"id": 1, "conversations": [ASKED]}, *LLAVA]}, SAID,
        "conversations, id"),
    "parquet with bytes of images": ({"a.parquet": parquet([{"image": name.encode(), "text": [*said]}
        for name, said in PAIR.items()])}, {f"a.parquet, record {n}": said
        for n, said in enumerate(PAIR.values(), start=1)}, ""),
    "split of unknown name": ({"captions.csv": table(",", "image", "caption", "split",
        rows=[(*row, "mine") for row in ROWS])}, SAID, "split 'mine'"),
}  # fmt: skip
SIDES = {"table with a column `split`": ("train", "test")}
SIDES |= dict.fromkeys(("Karpathy's splits", "COCO, both parts"), ("train", "validation"))
SIDES |= {form: ("train", "validation") for form in IMAGES if "side" in form or "a file for all" in form}


def check_notes(notes, says: str) -> None:
    lines = [note for note in notes if "not used" in note or "Not UTF-8" in note]
    assert len(lines) == bool(says) and says in " ".join(lines)


@pytest.mark.parametrize("form", IMAGES)
def test_captions(tmp_path, form):
    files, wanted, says = IMAGES[form]
    names = {} if "images in it" in form or "bytes of" in form else SAID if wanted == REFUSED else wanted
    write(tmp_path, files | dict.fromkeys(names, ""))
    if wanted == REFUSED:
        with refused("root", says=says):
            listing(open_place(tmp_path))
        return
    images, captions, _, notes, _ = listing(open_place(tmp_path))
    assert captions == wanted
    sides = {f"{member.base} {member.name}": side for side, _, member in images}
    assert tuple(sides[name] for name in sorted(sides)) == SIDES.get(form, ("any", "any"))
    check_notes(notes, says)


HI, HELLO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
CHAT = [("user", "Hi"), ("assistant", "Hello")]
PASSAGE = [("user", "Hi\n\nA passage"), ("assistant", "Hello")]
GREETING = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": "{}"}}]}
RESULT = {"role": "tool", "content": "2", "tool_call_id": "1"}
CALLED = [("user", "Hi"), ("assistant", ""), ("tool", "2")]
BRIEF = ("system", "Be brief")


def parts(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"content": [{"type": "text", "text": message["content"]}]}


# the same for a.jsonl: lists -> the messages of the first record, or the text of all documents
RECORDS: dict[str, tuple[Any, Any, str]] = {
    "ShareGPT, JSON lines": ([{"id": 1, "conversations": GREETING}] * 2, CHAT, "id"),
    "ShareGPT, JSON": ({"a.json": [{"conversations": GREETING}]}, CHAT, ""),
    "OpenAI `messages`": ([{"messages": [HI, HELLO]}], CHAT, ""),
    "contents as parts": ([{"messages": [parts(HI), parts(HELLO)]}], CHAT, ""),
    "`contents` of parts": ([{"systemInstruction": {"parts": [{"text": "Be brief"}]}, "contents": [{"role":
        role, "parts": [{"text": text}]} for role, text in CHAT]}], [BRIEF, *CHAT], ""),
    "role `model`": ([{"messages": [HI, HELLO | {"role": "model"}]}], CHAT, ""),
    "tool calls without content": ([{"messages": [HI, CALL | {"content": None}, RESULT]}], CALLED,
        "tool_call_id"),
    "Alpaca with `input`": ([{"instruction": "Hi", "input": "A passage", "output": "Hello"}], PASSAGE, ""),
    "`function_call` without content": ([{"messages": [HI, {"role": "assistant", "content": None,
        "function_call": CALL["tool_calls"][0]["function"]}, RESULT]}], CALLED, "tool_call_id"),
    "Dolly with `context`": ([{"instruction": "Hi", "context": "A passage", "response": "Hello",
        "category": "qa"}], PASSAGE, "category"),
    "Alpaca with `system` and `history`": ([{"instruction": "Hi", "input": "", "output": "Hello",
        "system": "Be brief", "history": [["Before?", "Earlier."]]}], [BRIEF, ("user", "Before?"),
        ("assistant", "Earlier."), *CHAT], ""),
    "`system_prompt` with question and response": ({"a.jsonl": [{"system_prompt": "Be brief",
        "question": "Hi", "response": "Hello"}], "state.json": {}}, [BRIEF, *CHAT], ""),
    "prompt and completion": ([{"prompt": "Hi", "completion": "Hello"}], CHAT, ""),
    "prompt and completion as messages": ([{"prompt": [HI], "completion": [HELLO]}], CHAT, ""),
    "question and answer": ({"a.csv": "question,answer\nHi,Hello\n"}, CHAT, ""),
    "input and output": ([{"input": "Hi", "output": "Hello"}], CHAT, ""),
    "folders of `save_to_disk`": ({"dataset_dict.json": {"splits": ["train"]}, "train/state.json": {},
        "train/data-00000-of-00001.arrow": arrow(pa.ipc.new_stream)}, "One.", ""),
    "arrow as a file of its own": ({"a.arrow": arrow(pa.ipc.new_file)}, "One.", ""),
    "`.jsonl.gz`, `.csv.gz` and `.txt.gz`": ({"a.jsonl.gz": gzip.compress(b'{"text": "One."}'),
        "b.csv.gz": gzip.compress(b"text\nTwo."), "c.txt.gz": gzip.compress(b"3")}, "One.\n\nTwo.\n\n3", ""),
    "`label` false": ([{"prompt": "Hi", "completion": "Hello", "label": True}, {"prompt": "Hi",
        "completion": "Go away", "label": False}], CHAT, ""),
    "`label` in a table": ({"a.csv": "prompt,completion,label\nHi,Hello,True\nHi,Go away,False\n"}, CHAT, ""),
    "README and LICENSE next to records": ({"a.jsonl": [{"text": "One."}], "README.md": "A card.",
        "x/licence.txt": "MIT"}, "One.", ""),
    "plain text under `content` in JSON lines": ([{"content": "One."}], "One.", ""),
    "keys that are null": ({"a.jsonl": '{"text": "One.", "messages": null}'}, "One.", ""),
    "a text of more than 131,072 letters in a table": ({"a.csv": f'text\n"{"a, " * 50_000}end"\n'},
        "a, " * 50_000 + "end", ""),
    "keys that differ in case alone": ([{"text": "One.", "Text": "Two."}], "One.", "Text"),
    "`train` and `test` in names": ({"train.jsonl": [{"text": "One."}], "test/a.jsonl": [{"text": "Two."}]},
        "Two.\n\nOne.", "drawn from all files: test/a.jsonl"),
    "parquet of chats": ({"a.parquet": parquet([{"messages": [HI | {"from": None}, HELLO]}])}, CHAT, ""),
    "list under `data`": ({"a.json": {"version": 1, "data": [{"messages": [HI, HELLO]}]}}, CHAT, "version"),
    "JSON lines called `.json`": ({"a.json": '{"prompt": "Hi", "response": "Hello"}\n' * 2}, CHAT, ""),
    "`weight` 0": ([{"messages": [HI, HELLO | {"weight": 0}, HI, HELLO]}], CHAT * 2, ""),
    "`train` or `loss` false": ([{"messages": [HI, HELLO | {"train": False}, HI, HELLO | {"loss": True}]}],
        CHAT * 2, ""),
    "plain text in JSON lines": ([{"text": "One."}, {"text": "Two."}], "One.\n\nTwo.", ""),
    "text in Latin-1": ({"a.txt": f"{KATER}\n\n{OWL}".encode("latin-1")}, f"{KATER}\n\n{OWL}",
        "a.txt (cp1252)"),
    "text that is cut in a character": ({"a.txt": f"{KATER}\n\n{OWL}".encode() + b"\xc3"},
        f"{KATER}\n\n{OWL}\ufffd", "a.txt (utf-8-sig)"),
    "chats without an answer": ([{"messages": [HI]}], REFUSED, "Left out chats without an answer"),
    "a key twice in a record": ({"a.jsonl": '{"text": "One.", "text": "Two."}'}, REFUSED,
        "'text' occurs twice"),
    "`weight` of a half": ([{"messages": [HI, HELLO | {"weight": 0.5}]}], REFUSED, "or 1"),
    "images in a chat": ([{"messages": [HI | {"content": [{"type": "image_url", "image_url": "x"}]}, HELLO]}],
        REFUSED, "write a text"),
    "unknown keys": ([{"body": "x"}] * 9, REFUSED, "'body': rename"),
    "texts by turns": ([{"turns": ["Hi", "Hello"]}], REFUSED, "Known roles are"),
    "`chosen` and `rejected`": ([{"prompt": "Hi", "chosen": [HI, HELLO]}], REFUSED, "'chosen': rename"),
    "tool calls that are no list": ([{"messages": [HI, HELLO | {"tool_calls": 5}]}], REFUSED, "an object"),
    "messages that are no list": ([{"messages": 5}], REFUSED, "Known roles"),
    "half of a character": ({"a.jsonl": r'{"text": "\ud83d"}'}, REFUSED, "record 1 holds half"),
    "unknown role": ([{"messages": [HI, HELLO | {"role": "narrator"}]}], REFUSED, "Known roles"),
    "questions with unquoted commas": ({"a.csv": "question,answer\nWhat, exactly, is it?,An owl\n"},
        REFUSED, "quotation marks"),
    "bytes that are no text": ({"a.txt": b"GIF8\x00\x00\x00"}, REFUSED, "save it as UTF-8"),
    "parquet that is cut short": ({"a.parquet": b"PAR1..."}, REFUSED, "download it again"),
}  # fmt: skip


@pytest.mark.parametrize("form", RECORDS)
def test_text_and_chats(tmp_path, form):
    files, wanted, says = RECORDS[form]
    write(tmp_path, {"a.jsonl": files} if isinstance(files, list) else files)
    if wanted == REFUSED:
        with refused("root", says=says):
            documents(tmp_path)
        return
    texts, notes = documents(tmp_path)
    if isinstance(wanted, str):
        assert "\n\n".join(each.text.strip() for each in texts) == wanted
    else:
        assert [(each["role"], each["content"]) for each in texts[0].messages] == wanted
    check_notes(notes, says)


@pytest.mark.parametrize(("form", "row"), [*IMAGES.items(), *RECORDS.items()])
def test_the_page_lists_each_form(form, row):
    what = "refused" if row[1] == REFUSED else "read whole"
    assert re.search(rf"(?m)^\| {re.escape(form)} \| .+ \| {what}", PAGE)
