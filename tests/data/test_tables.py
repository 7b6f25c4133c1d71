"""Table rows with their fields and line numbers."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firth.data.input_files import find_sources
from firth.data.readers import ReadOptions
from firth.utils.errors import InputError


def rows(path: Path, **options: Any) -> list[tuple[int, dict[str, Any]]]:
    reading = ReadOptions(**options)
    (source,) = find_sources([path], reading)[0]
    with source.open() as raw:
        return list(source.rows(raw, reading, Counter()))


def test_rows_equal_those_of_the_csv_module(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,"x\ny"\n\n2,"he said ""no"""\n')
    with path.open(newline="") as file:
        expected = list(csv.DictReader(file))
    assert [row for _, row in rows(path)] == expected
    assert [line for line, _ in rows(path)] == [2, 5]


def test_all_columns_of_parquet(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(600)), "b": [[str(n)] for n in range(600)]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert [row for _, row in rows(tmp_path / "a.parquet")] == table.to_pylist()
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert rows(tmp_path / "b.parquet.gz")[-1] == (600, {"a": 599, "b": ["599"]})


def test_invalid_utf8_in_parquet_is_an_error(tmp_path: Path) -> None:
    bad = pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ok\xff\xfe")
    )
    pq.write_table(pa.table({"text": bad}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet is not a Parquet file that can be read"):
        rows(tmp_path / "a.parquet")


def test_line_numbers_of_plain_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\none\ntwo\n\n \nthree")
    assert rows(tmp_path / "a.txt") == [(3, {"text": "one\ntwo\n"}), (7, {"text": "three"})]
    lines = rows(tmp_path / "a.txt", documents="line")
    assert [line for line, _ in lines] == [3, 4, 7]
