"""Values of rows as Arrow record batches. Spec: 80 §3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

__all__ = ["make_schema", "merged", "row_batches", "sound"]

T = TypeVar("T")

BATCH_BYTES: Final = 16 << 20
"""Bytes of content at which a batch ends, whatever its rows."""


def make_schema(types: Mapping[str, str]) -> pa.Schema:
    """Return a schema.

    Args:
        types: For each column one of the names below.

    Raises:
        ImportError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        message = "tables need pyarrow: pip install 'dsh-codec[arrow]'"
        raise ImportError(message) from error
    known = {
        "int": pa.int64(),
        "int32": pa.int32(),
        "float": pa.float64(),
        "flag": pa.bool_(),
        "moment": pa.timestamp("ms", "UTC"),
        "string": pa.string(),
        "word": pa.dictionary(pa.int32(), pa.string()),
        "code": pa.dictionary(pa.int8(), pa.string()),
        "text": pa.large_string(),
        "bytes": pa.large_binary(),
        "ints": pa.list_(pa.int64()),
        "tools": pa.list_(pa.struct([("call_id", pa.string()), ("ms", pa.int64())])),
    }
    return pa.schema([(name, known[kind]) for name, kind in types.items()])


def row_batches(
    items: Iterable[T],
    schema: pa.Schema,
    makers: Mapping[str, Callable[[T], Any]],
    max_rows: int,
    bytes_of: Callable[[T], int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of items.

    Args:
        items: One for each row.
        schema: Columns that are wanted, with names of `makers`.
        makers: For each column what makes its value from an item.
        max_rows: Rows of a batch, at most.
        bytes_of: Tells how much content an item has; None if it has none to speak of.
    """
    part: list[T] = []
    part_bytes = 0
    for item in items:
        part.append(item)
        part_bytes += 0 if bytes_of is None else bytes_of(item)
        if len(part) >= max_rows or part_bytes >= BATCH_BYTES:
            yield _batch(part, schema, makers)
            part, part_bytes = [], 0
    if part:
        yield _batch(part, schema, makers)


def _batch(
    items: list[T], schema: pa.Schema, makers: Mapping[str, Callable[[T], Any]]
) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = []
    for field in schema:
        values = [*map(makers[field.name], items)]
        try:
            array = pa.array(values, field.type)
        except UnicodeEncodeError:
            array = pa.array([sound(value) for value in values], field.type)
        arrays.append(array)
    return pa.record_batch(arrays, schema=schema)


def sound(value: Any) -> Any:
    """Return a value with U+FFFD in the place of lone surrogates, which Arrow cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [sound(item) for item in value]
    if isinstance(value, dict):
        return {key: sound(item) for key, item in value.items()}
    return value


def merged(
    batches: Iterable[pa.RecordBatch], max_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in fewer ones: those of many small logs become one batch."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = content = 0
    for batch in batches:
        if waiting and (rows + len(batch) > max_rows or content >= BATCH_BYTES):
            yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
            waiting, rows, content = [], 0, 0
        waiting.append(batch)
        rows += len(batch)
        content += batch.nbytes
    if waiting:
        yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
