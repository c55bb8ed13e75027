// Owns the view of a Parquet file: its first rows as a table. Loaded when one is opened.
import "../kit.js";
import { parquetMetadataAsync, parquetReadObjects, parquetSchema } from "hyparquet";
import { table } from "./table.js";
import { plural } from "../text.js";

const ROWS_MAX = 1000;

/** A table of the file's first rows. */
export async function tableOf(file) {
  const metadata = await parquetMetadataAsync(file);
  const columns = parquetSchema(metadata).children.map(({ element }) => element.name);
  const objects = await parquetReadObjects({ file, metadata, rowStart: 0, rowEnd: ROWS_MAX });
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
