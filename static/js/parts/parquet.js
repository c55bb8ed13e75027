// Owns the view of a Parquet file: its first rows as a table. Loaded when one is opened.
import "../kit.js";
import { decompress } from "fzstd";
import { parquetMetadataAsync, parquetReadObjects, parquetSchema } from "hyparquet";
import { table } from "./table.js";
import { plural } from "../text.js";

const ROWS_MAX = 1000;
/** Beside what hyparquet reads by itself: Polars writes ZSTD where nothing else is asked for. */
const compressors = { ZSTD: (bytes, length) => decompress(bytes, new Uint8Array(length)) };
const COMPRESSIONS = ["UNCOMPRESSED", "SNAPPY", ...Object.keys(compressors)];

/** A table of the file's first rows. */
export async function tableOf(file) {
  const metadata = await parquetMetadataAsync(file);
  const used = metadata.row_groups.flatMap(({ columns }) => columns.map((column) => column.meta_data?.codec));
  const other = used.find((codec) => codec && !COMPRESSIONS.includes(codec));
  if (other)
    throw new Error(`It is compressed by ${other}. The page reads Snappy and Zstandard; programs read others too.`);
  const columns = parquetSchema(metadata).children.map(({ element }) => element.name);
  const objects = await parquetReadObjects({ file, metadata, compressors, rowStart: 0, rowEnd: ROWS_MAX });
  const rows = objects.map((object) => columns.map((name) => textOf(object[name])));
  const total = Number(metadata.num_rows);
  return table(columns, rows, total > rows.length ? `The first ${rows.length} of ${plural(total, "row")}.` : "");
}

function textOf(value) {
  if (value === null || value === undefined) return "";
  if (value instanceof Date) return value.toISOString();
  if (typeof value === "object")
    return JSON.stringify(value, (_, inner) => (typeof inner === "bigint" ? String(inner) : inner));
  return String(value);
}
