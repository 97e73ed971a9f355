"""Prompts of every kind of file and folder, and errors that name the row."""

import json
import os
import random
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from treeopt.errors import FormatError, TreeoptError
from treeopt.texts.prompts import (
    DEFAULT_PROMPTS,
    bench_prompts,
    load_prompts,
    paragraphs,
    profile_prompts,
    prompts_name,
    sample_prompts,
)

TEXTS = ["one", "two\nlines", "three é", "four"]


def write(path, content):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_profiles_and_benchmarks_use_different_prompts():
    prompts = load_prompts()
    assert len(prompts) == 32
    assert set(profile_prompts(prompts)).isdisjoint(bench_prompts(prompts))
    assert len(profile_prompts(prompts)) + len(bench_prompts(prompts)) == len(prompts)
    assert (profile_prompts([1, 2, 3]), bench_prompts([1, 2, 3])) == ([2, 3], [1])


def categorised(path, counts, *, interleaved):
    """Write a file with a number of prompts of each category, named by category and number."""
    rows = [
        {"category": name, "prompt": f"{name} {number}"} for name, count in counts.items() for number in range(count)
    ]
    if interleaved:
        random.Random(1).shuffle(rows)
    return write(path, lines(rows))


def per_category(texts):
    return Counter(text.split()[0] for text in texts)


def test_default_prompts_are_short_and_even_over_categories():
    rows = [json.loads(line) for line in DEFAULT_PROMPTS.read_text("utf-8").splitlines()]
    category_of = {row["prompt"]: row["category"] for row in rows}
    assert len(category_of) == len(rows) > 100
    assert len(set(category_of.values())) == 7
    texts = load_prompts(DEFAULT_PROMPTS)
    for part, share in ((bench_prompts(texts), 4), (profile_prompts(texts), 12)):
        assert set(Counter(map(category_of.__getitem__, part)).values()) == {share}
    assert max(len(text.encode()) for text in texts) < 512 * 3.5
    assert min(len(text) for text in texts) > 50


class TestCategories:
    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("most", [8, 23, 24, 100])
    def test_prompts_are_even_over_categories_in_both_parts(self, tmp_path, most, interleaved):
        path = categorised(tmp_path / "a.jsonl", {"a": 400, "b": 100, "c": 50, "d": 31}, interleaved=interleaved)
        sample = sample_prompts(path, most=most)
        assert len(set(sample.texts)) == len(sample.texts) == most
        assert list(sample.categories) == [next(iter(per_category([text]))) for text in sample.texts]
        for part in (sample.texts, bench_prompts(sample.texts), profile_prompts(sample.texts)):
            taken = per_category(part)
            assert len(taken) == min(4, len(part))
            assert max(taken.values()) - min(taken.values()) <= 1
        assert sample.available == 581

    def test_small_categories_are_taken_whole(self, tmp_path):
        path = categorised(tmp_path / "a.jsonl", {"a": 400, "b": 5, "c": 2}, interleaved=True)
        assert Counter(sample_prompts(path, most=40).categories) == {"a": 33, "b": 5, "c": 2}

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_profile_and_bench_prompts_are_disjoint(self, tmp_path, interleaved):
        counts = {"a": 90, "b": 41, "c": 3, "d": 1, **{f"e{number}": 2 for number in range(30)}}
        path = categorised(tmp_path / "a.jsonl", counts, interleaved=interleaved)
        samples = [load_prompts(path, most=most) for most in (3, 4, 17, 24, 64, 150, 4096)]
        profiled, held_out = (
            {text for sample in samples for text in part(sample)} for part in (profile_prompts, bench_prompts)
        )
        assert profiled.isdisjoint(held_out)
        assert profiled | held_out == set(samples[-1])

    def test_prompts_are_spread_over_the_whole_file_and_its_categories(self, tmp_path):
        path = categorised(tmp_path / "a.jsonl", {"a": 1000, "b": 600}, interleaved=False)
        numbers = {name: [] for name in "ab"}
        for text in load_prompts(path, most=80):
            numbers[text[0]].append(int(text[2:]))
        for name, rows in (("a", 1000), ("b", 600)):
            chosen = sorted(numbers[name])
            assert len(chosen) == 40
            gaps = [after - before for before, after in zip([0, *chosen], [*chosen, rows], strict=True)]
            assert max(gaps) <= 3 * rows / 40

    def test_prompts_without_categories_are_spread_over_the_file(self, tmp_path):
        path = write(tmp_path / "a.jsonl", lines(str(number) for number in range(1000)))
        chosen = list(map(int, load_prompts(path, most=100)))
        assert max(chosen) > 950
        assert all(number % 4 == 0 for number in bench_prompts(chosen))

    def test_categories_alternate(self, tmp_path):
        path = categorised(tmp_path / "a.jsonl", dict.fromkeys("abcde", 20), interleaved=False)
        measured = profile_prompts(load_prompts(path))
        assert all(set(per_category(measured[start : start + 5])) == set("abcde") for start in range(0, 75, 5))

    def test_rows_without_a_category_form_one(self, tmp_path):
        rows = [{"prompt": "a", "category": None}, {"prompt": "b"}, "c", {"prompt": "d", "category": " x "}]
        assert Counter(sample_prompts(write(tmp_path / "a.jsonl", lines(rows))).categories) == {"": 3, "x": 1}

    @pytest.mark.parametrize("category", [5, ["a"], "x" * 65])
    def test_invalid_category_is_refused_with_its_line(self, tmp_path, category):
        rows = [{"prompt": "a", "category": "x"}, {"prompt": "b", "category": category}, {"prompt": "c"}]
        path = write(tmp_path / "a.jsonl", lines(rows))
        with pytest.raises(FormatError, match=r"a.jsonl: line 2\.category: expected a text of at most 64 characters"):
            load_prompts(path)

    def test_control_characters_are_escaped(self, tmp_path):
        path = write(tmp_path / "a.jsonl", lines([{"prompt": "a", "category": "red \x1b[31m"}, "b", "c"]))
        assert set(sample_prompts(path).categories) == {r"red \x1b[31m", ""}

    def test_prompts_name_depends_on_all_prompts_of_the_file(self, tmp_path):
        path = categorised(tmp_path / "a.jsonl", {"a": 40, "b": 20}, interleaved=True)
        name = prompts_name(path, sample_prompts(path, most=5))
        assert name == prompts_name(path, sample_prompts(path, most=60))
        write(path, path.read_text("utf-8").replace('"b 19"', '"b 20"'))
        assert name != prompts_name(path, sample_prompts(path, most=5))


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("a.txt", "\n" + "\n\n".join(TEXTS) + "\n"),
            ("a.txt", "\r\n\r\n \r\n".join(TEXTS).replace("two\n", "two\r\n")),
            ("a.txt", b"\xef\xbb\xbf" + "\n\n\n".join(TEXTS).encode()),
            ("a.json", json.dumps(TEXTS)),
            ("A.JSON", json.dumps(TEXTS)),
            ("a.json", json.dumps([{"text": text} for text in TEXTS], indent=2)),
            ("a.json", lines({"text": text} for text in TEXTS)),
            ("a.jsonl", lines(TEXTS)),
            ("a.jsonl", "\n" + lines(TEXTS).replace("\n", "\n\n")),
            ("a.jsonl", lines({"prompt": text, "more": 1} for text in TEXTS)),
            ("a.jsonl", lines({"id": 7, "question": text, "text": None} for text in TEXTS)),
            ("a.jsonl", lines({"instruction": text, "output": "x"} for text in TEXTS)),
            ("a.jsonl", lines({"text": "an answer", "prompt": text} for text in TEXTS)),
            (
                "a.jsonl",
                lines({"messages": [{"role": "user", "content": [{"type": "text", "text": t}]}]} for t in TEXTS),
            ),
            ("a.jsonl", lines({"turns": [text, "second"], "category": "c"} for text in TEXTS)),
            ("a.jsonl", lines({"conversations": [{"from": "human", "value": text}]} for text in TEXTS)),
            (
                "a.jsonl",
                lines(
                    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": t}, {}]}
                    for t in TEXTS
                ),
            ),
        ],
    )
    def test_all_kinds_of_files_are_read(self, tmp_path, name, content):
        assert load_prompts(write(tmp_path / name, content)) == TEXTS

    def test_without_blank_lines_each_line_is_a_prompt(self, tmp_path):
        assert load_prompts(write(tmp_path / "a.txt", "one\ntwo\nthree\n")) == ["one", "two", "three"]
        assert paragraphs("a\n\nb\nc") == ["a", "b\nc"]

    def test_empty_prompts_are_skipped(self, tmp_path):
        rows = ["", {"messages": []}, "a", {"conversations": [{"from": "gpt", "value": "x"}]}, " \n", "b", "c"]
        assert load_prompts(write(tmp_path / "a.jsonl", lines(rows))) == ["a", "b", "c"]

    def test_broken_row_is_named_for_any_sample_size(self, tmp_path):
        path = write(tmp_path / "a.jsonl", lines(TEXTS) + "no JSON")
        for most in (3, 64):
            with pytest.raises(FormatError, match="line 5: expected JSON"):
                load_prompts(path, most=most)

    def test_file_that_changes_while_it_is_read_is_refused(self, tmp_path, monkeypatch):
        path = write(tmp_path / "a.jsonl", lines(TEXTS))
        contents = iter([[(path, "line 1", text) for text in TEXTS], [(path, "line 1", "one")]])
        monkeypatch.setattr("treeopt.texts.prompts._rows", lambda _: next(contents))
        with pytest.raises(FormatError, match="changed while it was read"):
            load_prompts(path)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.txt", "", "content: expected at least 3 prompts. Got 0"),
            ("a.txt", "one\ntwo", "content: expected at least 3 prompts. Got 2"),
            ("a.json", "[]", "content: expected at least 3 prompts. Got 0"),
            ("a.txt", b"abc\xff", r"content: expected UTF-8 text \(byte 3\)"),
            ("a.jsonl", b'"a"\n\xff', r"line 2: expected UTF-8 text \(byte 0\)"),
            ("a.json", "[1, 2, 3]", r"\[0\]: expected a text, or messages"),
            ("a.json", '["a", {"txt": "b"}]', r"\[1\]: expected one of the fields prompt, question"),
            ("a.json", '[{"text": 5}]', r"\[0\]\.text: expected a text"),
            ("a.json", '{"text": "a",\n', r"line 1: expected JSON"),
            ("a.json", '["a", "b"', r"content: expected JSON"),
            ("a.json", "[" * 100_000, r"content: expected JSON"),
            ("a.json", "[" + "1" * 5000 + "]", r"content: expected JSON"),
            ("a.jsonl", '{"messages": [{"role": "user", "content": [1]}]}', r"line 1\.messages: expected a text"),
            ("a.jsonl", '{"messages": [7]}', r"line 1\.messages: expected a text"),
            ("a.jsonl", r'"\ud800"', "line 1: expected a text of whole characters"),
            ("a.csv", "a,b", r"name: expected a folder, or a file that ends in \.parquet"),
        ],
    )
    def test_invalid_content_is_refused_with_its_place(self, tmp_path, name, content, message):
        with pytest.raises(FormatError, match=f"{name}: {message}"):
            load_prompts(write(tmp_path / name, content))

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_missing_files_pipes_and_large_files_are_refused(self, tmp_path, monkeypatch):
        with pytest.raises(TreeoptError, match=r"none.jsonl: no such file or folder"):
            load_prompts(tmp_path / "none.jsonl")
        os.mkfifo(tmp_path / "pipe.jsonl")
        with pytest.raises(TreeoptError, match=r"pipe.jsonl: expected a file, because prompts are read twice"):
            load_prompts(tmp_path / "pipe.jsonl")
        monkeypatch.setattr("treeopt.texts.prompts.MAX_BYTES", 10)
        with pytest.raises(TreeoptError, match="larger than 10 bytes"):
            load_prompts(write(tmp_path / "a.txt", "a\nb\nc\n" * 9))
        with pytest.raises(FormatError, match="line 1: expected JSON"):
            load_prompts(write(tmp_path / "a.jsonl", lines(["a" * 20] * 3)))

    def test_mutated_files_are_read_or_refused(self, tmp_path):
        rng = random.Random(0)
        good = [
            ("a.txt", "\n\n".join(TEXTS).encode()),
            ("a.json", json.dumps([{"text": text} for text in TEXTS]).encode()),
            ("a.jsonl", lines({"messages": [{"role": "user", "content": text}]} for text in TEXTS).encode()),
        ]
        refused = 0
        for _ in range(200):
            name, content = rng.choice(good)
            broken = bytearray(content)
            for _ in range(rng.randrange(1, 6)):
                start = rng.randrange(len(broken))
                broken[start : start + rng.randrange(3)] = rng.choice(
                    [bytes([rng.randrange(256)]), b"null", b"[", b'"', b"{}", b"\\ud801", b"\n"]
                )
            try:
                prompts = load_prompts(write(tmp_path / name, bytes(broken)))
            except FormatError as error:
                refused += 1
                assert str(tmp_path / name) in str(error)  # noqa: PT017
            else:
                assert all(isinstance(prompt, str) and prompt.strip() for prompt in prompts)
        assert refused > 30


class FakeParquet:
    """A fake of pyarrow's reader: rows as JSON lines, two in a batch."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self._rows = [json.loads(line) for line in file]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def iter_batches(self, batch_size):  # noqa: ARG002
        for first in range(0, len(self._rows), 2):
            yield SimpleNamespace(to_pylist=lambda first=first: self._rows[first : first + 2])


class TestFolders:
    @pytest.fixture
    def saved(self, tmp_path):
        write(tmp_path / "state.json", '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
        write(tmp_path / "dataset_info.json", "{}")
        return tmp_path

    def test_files_of_one_kind_are_read_in_the_order_of_their_names(self, tmp_path):
        write(tmp_path / "data" / "b.jsonl", lines(TEXTS[2:]))
        write(tmp_path / "data" / "a.jsonl", lines(TEXTS[:2]))
        write(tmp_path / "README.txt", "not a prompt")
        write(tmp_path / ".cache" / "c.jsonl", "not JSON")
        write(tmp_path / "dataset_infos.json", "{}")
        assert load_prompts(tmp_path) == TEXTS

    def test_folder_without_prompts_is_refused(self, tmp_path):
        write(tmp_path / "README.md", "text")
        with pytest.raises(TreeoptError, match=r"no prompts. Expected files that end in \.parquet"):
            load_prompts(tmp_path)

    def test_parquet(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", SimpleNamespace(ParquetFile=FakeParquet))
        write(tmp_path / "data" / "train.parquet", lines({"prompt": text} for text in TEXTS))
        assert load_prompts(tmp_path) == load_prompts(tmp_path / "data" / "train.parquet") == TEXTS
        with pytest.raises(FormatError, match="content: expected parquet"):
            load_prompts(write(tmp_path / "a.parquet", "x"))

    def test_saved_dataset_or_its_first_split(self, saved, monkeypatch):
        write(saved / "splits" / "dataset_dict.json", '{"splits": ["train", "test"]}')
        write(saved / "splits" / "train" / "state.json", "{}")
        rows = {str(folder): [{"question": text} for text in TEXTS] for folder in (saved, saved / "splits" / "train")}
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_from_disk=rows.__getitem__))
        assert load_prompts(saved) == load_prompts(saved / "splits") == TEXTS
        rows.clear()
        with pytest.raises(FormatError, match="dataset: cannot be read"):
            load_prompts(saved)

    @pytest.mark.parametrize("content", ["", "{}", '{"splits": []}', '{"splits": [5]}', '{"splits": ["../x"]}', "[]"])
    def test_invalid_splits_are_refused(self, tmp_path, content):
        write(tmp_path / "dataset_dict.json", content)
        with pytest.raises(FormatError, match=r"dataset_dict.json: "):
            load_prompts(tmp_path)

    def test_missing_packages_are_named(self, saved, monkeypatch):
        for name in ("datasets", "pyarrow", "pyarrow.parquet"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(TreeoptError, match=r"read by datasets or pyarrow. Install one"):
            load_prompts(saved)
        with pytest.raises(TreeoptError, match=r"read by pyarrow. Install it, or write the prompts as .jsonl"):
            load_prompts(write(saved / "a.parquet", "x"))

    def test_saved_dataset_is_read_with_pyarrow(self, tmp_path, monkeypatch):
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is no dependency")
        monkeypatch.setitem(sys.modules, "datasets", None)
        table = arrow.table({"question": TEXTS})
        with arrow.ipc.new_stream(str(tmp_path / "data.arrow"), table.schema) as file:
            file.write_table(table)
        write(tmp_path / "state.json", '{"_data_files": [{"filename": "data.arrow"}]}')
        assert load_prompts(tmp_path) == TEXTS
        write(tmp_path / "data.arrow", "x")
        with pytest.raises(FormatError, match="content: expected an arrow stream"):
            load_prompts(tmp_path)

    def test_parquet_is_read_with_pyarrow(self, tmp_path):
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is no dependency")
        arrow = sys.modules["pyarrow"]
        parquet.write_table(arrow.table({"turns": [[text, "x"] for text in TEXTS]}), tmp_path / "a.parquet")
        assert load_prompts(tmp_path) == TEXTS
        with pytest.raises(FormatError, match="content: expected parquet"):
            load_prompts(write(tmp_path / "b.parquet", "x"))


@pytest.mark.parametrize("name", ["input", "context"])
def test_what_an_instruction_is_about_follows_it(tmp_path, name):
    (tmp_path / "a.jsonl").write_text(lines({"instruction": "Summarize", name: f"text {n}"} for n in range(3)))
    assert load_prompts(tmp_path / "a.jsonl") == [f"Summarize\n\ntext {n}" for n in range(3)]
