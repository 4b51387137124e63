"""Parquet files of a table, written and read by Spark on its executors.

Each write has a folder of its own below the table's, `w=<unique>/<partition>=<value>/…`, so two
writes never share Spark's scratch folder, and what a write has made is listed without looking at
the rest. Spark's Parquet reader takes `w` for one more partition column, which `read_files` drops.
Where Java has no connector for the lake's store, Python does the same in the tasks, with the store
that the log is written through.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from angarium.lake.delta_log import DataFile, Storage, filesystem_of, is_local, unwritable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
# Long texts make the table's log large and help nobody to skip a file.
STATS_TEXT_MAX = 64
# A row group is kept in memory while it is written.
ROW_GROUP_ROWS = 262_144
FOOTERS_AT_ONCE = 8
# Almost every value occurs once: a dictionary of them would be begun and thrown away.
UNIQUE = ("subject", "sequence")
OPTIONS = {
    "compression": "zstd",
    **{f"parquet.enable.dictionary#{name}": "false" for name in UNIQUE},
    # Readers go by the log.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_WRITTEN = "path string, size_bytes bigint, rows bigint, partition_values string, stats string"


def java_knows(spark: SparkSession, path: str) -> bool:
    """Whether Spark's own reader and writer can reach the path."""
    if is_local(path):
        return True
    try:
        java: Any = spark._jvm
        configuration = spark._jsc.hadoopConfiguration()
        java.org.apache.hadoop.fs.FileSystem.getFileSystemClass(path.split(":")[0], configuration)
    except Exception:  # Java's own, or none to be asked, as in Spark Connect
        return False
    return True


def write_files(
    frame: DataFrame,
    path: str,
    partition_by: Sequence[str],
    *,
    storage: Storage | None = None,
    statistics: Sequence[str] | None = None,
) -> list[DataFile]:
    """The frame's rows as files in the table's folder; no part of the table until a commit."""
    if not java_knows(frame.sparkSession, path):
        return _write_by_python(frame, path, partition_by, storage, statistics)
    folder = f"w={uuid.uuid4().hex}"
    _write(frame, f"{path}/{folder}", partition_by)
    filesystem, root = filesystem_of(path, storage)
    base = f"{root}/" if root else ""
    return _described(filesystem, base, _listed(filesystem, f"{base}{folder}", base), statistics)


def write_apart(
    frame: DataFrame, targets: Mapping[str, tuple[str, Sequence[str], Sequence[str]]]
) -> dict[str, list[DataFile]]:
    """Rows of several tables in one folder, written by one job; their column `table` says whose.

    `targets` are the tables' paths, partition columns and all columns. Spark writes below the first
    table's folder, where a vacuum finds what a process that died has left; then files are moved.
    """
    folder = f"w={uuid.uuid4().hex}"
    partitions = list(dict.fromkeys(name for _, by, _ in targets.values() for name in by))
    first = next(iter(targets.values()))[0]
    _write(frame, f"{first}/{folder}", ("table", *partitions))
    filesystem, root = filesystem_of(first, None)
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in targets}
    for path, size_bytes in _listed(filesystem, f"{root}/{folder}", f"{root}/"):
        *parts, name = path.split("/")
        folders = {part.partition("=")[0]: part for part in parts}
        table = folders["table"].partition("=")[2]
        _, place = filesystem_of(targets[table][0], None)
        moved = "/".join([folder, *(folders[each] for each in targets[table][1])])
        filesystem.create_dir(f"{place}/{moved}")
        filesystem.move(f"{root}/{path}", f"{place}/{moved}/{name}")
        found[table].append((f"{moved}/{name}", size_bytes))
    return {
        name: _described(filesystem, f"{filesystem_of(path, None)[1]}/", found[name], columns)
        for name, (path, _, columns) in targets.items()
    }


def _write(frame: DataFrame, path: str, partition_by: Sequence[str]) -> None:
    writer = frame.write.options(**OPTIONS)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.parquet(java_path(path))


def _listed(filesystem: pafs.FileSystem, folder: str, base: str) -> list[tuple[str, int]]:
    """Path below `base` and size of each file that a write has left in its folder."""
    return [
        (each.path.removeprefix(base), each.size)
        for each in filesystem.get_file_info(pafs.FileSelector(folder, recursive=True))
        if each.type == pafs.FileType.File and not each.base_name.startswith((".", "_"))
    ]


def _described(
    filesystem: pafs.FileSystem,
    base: str,
    paths: Sequence[tuple[str, int]],
    statistics: Sequence[str] | None,
) -> list[DataFile]:
    """What the files' footers say of them; files without rows are deleted."""

    def about(file: tuple[str, int]) -> DataFile:
        with filesystem.open_input_file(f"{base}{file[0]}") as source:
            return data_file(*file, pq.read_metadata(source), statistics)

    if len(paths) > 1:
        with ThreadPoolExecutor(FOOTERS_AT_ONCE) as threads:
            found = list(threads.map(about, sorted(paths)))
    else:
        found = [about(each) for each in paths]
    for each in found:
        if each.rows == 0:  # Spark writes one for an empty frame
            filesystem.delete_file(f"{base}{each.path}")
    return [each for each in found if each.rows]


def read_files(
    spark: SparkSession,
    path: str,
    files: Sequence[DataFile],
    schema: StructType,
    partition_by: Sequence[str],
    *,
    storage: Storage | None = None,
    place: bool = False,
) -> DataFrame:
    """The rows of files in the table's folder; `place` is one more column, the file's address."""
    from pyspark.sql import functions as f

    if not files:
        none = spark.createDataFrame([], schema)
        return none.withColumn("place", f.lit("")) if place else none
    if not java_knows(spark, path):
        return _read_by_python(spark, path, files, schema, storage, place=place)
    columns = [f.col(f"`{name}`") for name in schema.names]
    if place:
        columns.append(f.url_decode("_metadata.file_path").alias("place"))
    root = java_path(path)
    frames = []
    ours = [each for each in files if each.path.startswith("w=")]
    if ours:
        reader = spark.read.schema(schema).option("basePath", root)
        rows = reader.parquet(*(f"{root}/{each.path}" for each in ours))
        frames.append(rows.select(*columns))
    # Somebody else wrote these, and their folders need not say what their partition is.
    foreign: dict[tuple[str | None, ...], list[str]] = {}
    for each in files:
        if not each.path.startswith("w="):
            values = tuple(each.partition_values.get(name) for name in partition_by)
            foreign.setdefault(values, []).append(f"{root}/{each.path}")
    for values, paths in foreign.items():
        named = dict(zip(partition_by, values, strict=True))
        frames.append(_foreign(spark, paths, schema, named).select(*columns))
    return reduce(lambda left, right: left.unionByName(right), frames)


def _foreign(
    spark: SparkSession, paths: Sequence[str], schema: StructType, values: Mapping[str, str | None]
) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    stored = StructType([each for each in schema.fields if each.name not in values])
    rows = spark.read.schema(stored).option("recursiveFileLookup", "true").parquet(*paths)
    for name, value in values.items():
        rows = rows.withColumn(name, f.lit(value).cast(schema[name].dataType))
    return rows


def java_path(path: str) -> str:
    return path if "://" in path else f"file://{path}"


def data_file(
    path: str, size_bytes: int, about: pq.FileMetaData, statistics: Sequence[str] | None
) -> DataFile:
    return DataFile(
        path, size_bytes, about.num_rows, values_in(path), statistics_of(about, statistics)
    )


def values_in(path: str) -> dict[str, str | None]:
    """The partition values that a path below the table's names."""
    values: dict[str, str | None] = {}
    for folder in path.split("/")[1:-1]:
        name, _, value = folder.partition("=")
        values[unquote(name)] = unquote(value) if value not in ("", NO_PARTITION) else None
    return values


# Without a connector in Java


def _write_by_python(
    frame: DataFrame,
    path: str,
    partition_by: Sequence[str],
    storage: Storage | None,
    statistics: Sequence[str] | None,
) -> list[DataFile]:
    by, options = tuple(partition_by), dict(storage) if storage else None
    chosen = None if statistics is None else tuple(statistics)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from angarium.lake.parquet import rows_of, write_batches

        return rows_of(write_batches(batches, path, by, options, chosen))

    return [
        DataFile(row.path, row.size_bytes, row.rows, json.loads(row.partition_values), row.stats)
        for row in frame.mapInArrow(write, _WRITTEN).collect()
    ]


def _read_by_python(
    spark: SparkSession,
    path: str,
    files: Sequence[DataFile],
    schema: StructType,
    storage: Storage | None,
    *,
    place: bool,
) -> DataFrame:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructType

    if place:
        schema = StructType(schema.fields).add("place", StringType())
    arrow, options = to_arrow_schema(schema, timezone="UTC"), dict(storage) if storage else None
    given = [(each.path, json.dumps(dict(each.partition_values))) for each in files]
    names = spark.createDataFrame(given, "path string, partition_values string")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from angarium.lake.parquet import read_batches

        for batch in batches:
            for row in batch.to_pylist():
                values = json.loads(row["partition_values"]) | {"place": row["path"]}
                yield from read_batches(path, row["path"], values, arrow, options)

    tasks = min(len(files), 4 * spark.sparkContext.defaultParallelism)
    return names.repartition(tasks).mapInArrow(read, schema)


def read_batches(
    path: str,
    file: str,
    values: Mapping[str, str | None],
    schema: pa.Schema,
    storage: Storage | None = None,
) -> Iterator[pa.RecordBatch]:
    """One file's rows with its partition values, as the table's columns."""
    filesystem, root = filesystem_of(path, storage)
    stored = pa.schema([each for each in schema if each.name not in values])
    place = f"{root}/{file}" if root else file
    dataset = ds.dataset([place], schema=stored, filesystem=filesystem, format="parquet")
    for batch in dataset.to_batches():
        columns = [
            pa.repeat(pa.scalar(values[each.name], pa.string()).cast(each.type), batch.num_rows)
            if each.name in values
            else batch.column(each.name)
            for each in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def write_batches(
    batches: Iterator[pa.RecordBatch],
    path: str,
    partition_by: Sequence[str] = (),
    storage: Storage | None = None,
    statistics: Sequence[str] | None = None,
) -> list[DataFile]:
    """Record batches as files in the table's folder; files of a call that fails are left over."""
    first = next(batches, None)
    if first is None:
        return []
    filesystem, root = filesystem_of(path, storage)
    folder, found = f"w={uuid.uuid4().hex}", list[DataFile]()

    def seen(file: Any) -> None:
        below = file.path[file.path.index(folder) :]
        found.append(data_file(below, file.size, file.metadata, statistics))

    keys = pa.schema([first.schema.field(name) for name in partition_by])
    layout = ds.ParquetFileFormat()
    try:
        ds.write_dataset(
            _all(first, batches),
            f"{root}/{folder}" if root else folder,
            schema=first.schema,
            filesystem=filesystem,
            format=layout,
            file_options=layout.make_write_options(compression="zstd", coerce_timestamps="us"),
            basename_template="part-{i}.parquet",
            partitioning=ds.partitioning(keys, flavor="hive") if partition_by else None,
            max_rows_per_group=ROW_GROUP_ROWS,
            existing_data_behavior="overwrite_or_ignore",
            file_visitor=seen,
        )
    except OSError as error:
        raise unwritable(path, error) from error
    return [each for each in found if each.rows]


def _all(first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def rows_of(files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict(
        {
            "path": pa.array([each.path for each in files], pa.string()),
            "size_bytes": pa.array([each.size_bytes for each in files], pa.int64()),
            "rows": pa.array([each.rows for each in files], pa.int64()),
            "partition_values": pa.array(
                [json.dumps(dict(each.partition_values)) for each in files], pa.string()
            ),
            "stats": pa.array([each.stats for each in files], pa.string()),
        }
    )


# What lets a reader skip a file


def statistics_of(about: pq.FileMetaData, columns: Sequence[str] | None = None) -> str:
    """Row count, and of each plain column (of `columns`, if named) its range and its nulls."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()  # without a range in some row group
    uncounted: set[str] = set()  # without anything
    for group in range(about.num_row_groups):
        for index in range(about.num_columns):
            column = about.row_group(group).column(index)
            name, found = column.path_in_schema, column.statistics
            if "." in name or (columns is not None and name not in columns):
                continue
            if found is None or found.null_count is None:
                uncounted.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.null_count == about.row_group(group).num_rows:
                continue
            least, most = _plain(found.min), _plain(found.max)  # None where there is none
            if least is None or most is None:
                unknown.add(name)
                continue
            low[name] = min(low.get(name, least), least)
            high[name] = max(high.get(name, most), most)
    for name in unknown | uncounted:
        low.pop(name, None)
        high.pop(name, None)
    for name in uncounted:
        nulls.pop(name, None)
    return json.dumps(
        {"numRecords": about.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls},
        separators=(",", ":"),
    )


def _plain(value: object) -> Any:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value if value == value else None
    if isinstance(value, str):
        return value if len(value) <= STATS_TEXT_MAX else None
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return None
