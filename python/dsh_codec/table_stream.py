"""A table: rows of logs as an Arrow stream that can be read again and again. Spec: 80."""

from __future__ import annotations

import io
import os
import warnings
from typing import TYPE_CHECKING, Any, Final

from dsh_codec.durable import OsFileSystem, replace, stage
from dsh_codec.table_rows import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from dsh_codec.find import Session

__all__ = ["SkippedSessionsWarning", "Table"]

_ROW_GROUP_ROWS: Final = 1 << 18
_ROW_GROUP_BYTES: Final = 64 << 20


class SkippedSessionsWarning(UserWarning):
    """Sessions that could not be read are not in a table; `Table.errors` lists them."""


class Table:
    """Rows of logs as a stream of Arrow record batches, read when somebody asks for them.

    Every pass reads the logs anew, in constant memory: the batch at hand, and what one log needs.

    Attributes:
        errors: The sessions of the last pass so far that could not be read and have no rows,
            each with its `error`. A pass that ends with any of them warns.
    """

    errors: list[Session]

    def __init__(
        self,
        schema: pa.Schema,
        start: Callable[[list[Session]], Iterator[pa.RecordBatch]],
        max_rows: int,
    ) -> None:
        """Take what begins a pass, which is given the list of errors to fill."""
        self.errors = []
        self._schema = schema
        self._start = start
        self._max_rows = max_rows

    def __repr__(self) -> str:
        """Return the names of the columns."""
        return f"Table({', '.join(self.columns)})"

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._schema.names)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the record batches, none of them empty.

        Raises:
            OSError: A place is not there.
            DshCodecError: A log was changed while it was read.
        """
        errors: list[Session] = []
        self.errors = errors
        yield from merged(self._start(errors), self._max_rows)
        if errors:
            first = errors[0]
            message = (
                f"sessions that could not be read and have no rows: {len(errors)}, see `errors`; "
                f"the first is {first.path}: {first.error}"
            )
            warnings.warn(message, SkippedSessionsWarning, stacklevel=2)

    def reader(self) -> pa.RecordBatchReader:
        """Return a new pass as a reader of pyarrow."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._schema, iter(self))

    def __arrow_c_schema__(self) -> object:
        """Return the schema as a PyCapsule."""
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a new pass as a PyCapsule; a schema that is requested is cast to."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str = "zstd",
        **options: Any,
    ) -> int:
        """Write a Parquet file, all of it or nothing.

        Args:
            path: The file; one that is there is replaced, once the new one is complete and on
                disk.
            compression: As for `pyarrow.parquet.ParquetWriter`.
            options: More of its options.

        Returns:
            The rows.

        Raises:
            OSError: A place is not there, or the system refuses.
            DshCodecError: A log was changed while it was read.

        Note:
            Memory: one row group, of 64 MiB or 262,144 rows. The file has mode 0600.
        """
        target = os.fspath(path)
        files = OsFileSystem()
        rows = [0]
        parts = self._parquet(rows, {"compression": compression} | options)
        replace(files, stage(files, target, parts), target)
        return rows[0]

    def _parquet(self, rows: list[int], options: dict[str, Any]) -> Iterator[bytes]:
        """Yield the bytes of a Parquet file, and count its rows."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        sink = _Sink()
        writer = ParquetWriter(sink, self._schema, **options)
        group: list[pa.RecordBatch] = []
        size = (0, 0)

        def write() -> bytes:
            if group:
                writer.write_table(pa.Table.from_batches(group, self._schema))
            return sink.take()

        for batch in self:
            group.append(batch)
            rows[0] += len(batch)
            size = size[0] + len(batch), size[1] + batch.nbytes
            if size[0] >= _ROW_GROUP_ROWS or size[1] >= _ROW_GROUP_BYTES:
                yield write()
                group.clear()
                size = (0, 0)
        yield write()
        writer.close()
        yield sink.take()


class _Sink(io.RawIOBase):
    """A file whose bytes are taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any, /) -> int:
        self._parts.append(bytes(data))
        self._position += len(self._parts[-1])
        return len(self._parts[-1])

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
