"""Makes an Excel report of a table: a summary by group with a chart, and the data. Prints the summary."""

import argparse
import sys
from pathlib import Path

import pandas as pd

ROWS_MAX = 1_000_000
WIDTH_MAX = 40


def read(path, sheet):
    if path.suffix.lower() in (".xlsx", ".xlsm"):
        return pd.read_excel(path, sheet_name=sheet or 0)
    return pd.read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",")


def summarize(table, group, value, how, top):
    table = table.assign(**{group: table[group].astype(object).where(table[group].notna(), "(none)").map(str)})
    summary = table.groupby(group, sort=False)[value].agg(how).sort_values(ascending=False)
    if top and len(summary) > top and how in ("sum", "count"):
        rest = summary.iloc[top:].sum()
        summary = pd.concat([summary.iloc[:top], pd.Series({"Other": rest})])
    return summary


def widths(sheet, table):
    for at, name in enumerate(table.columns):
        longest = table[name].head(1000).map(lambda value: len(str(value))).max() if len(table) else 0
        sheet.set_column(at, at, min(max(int(longest), len(str(name))) + 3, WIDTH_MAX))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--group", required=True)
    parser.add_argument("--value", required=True)
    parser.add_argument("--how", choices=["sum", "mean", "count", "min", "max"], default="sum")
    parser.add_argument("--chart", choices=["bar", "column", "line", "pie", "none"], default="column")
    parser.add_argument("--top", type=int)
    parser.add_argument("--title")
    parser.add_argument("--sheet")
    given = parser.parse_args()
    table = read(given.file, given.sheet)
    for column in (given.group, given.value):
        if column not in table.columns:
            sys.exit(f"there is no column {column!r}; there are: {', '.join(map(str, table.columns))}")
    if given.how != "count" and not pd.api.types.is_numeric_dtype(table[given.value]):
        sys.exit(f"the column {given.value!r} is not numeric: clean it first, or use --how count")
    if len(table) > ROWS_MAX:
        sys.exit(f"a sheet holds {ROWS_MAX} rows and the table has {len(table)}: filter or aggregate it first")
    summary = summarize(table, given.group, given.value, given.how, given.top)
    title = given.title or f"{given.how} of {given.value} by {given.group}"
    options = {"strings_to_formulas": False, "strings_to_urls": False, "nan_inf_to_errors": True}
    with pd.ExcelWriter(given.out, engine="xlsxwriter", engine_kwargs={"options": options}) as writer:
        book = writer.book
        head = book.add_format({"bold": True, "bg_color": "#DCE6F1", "bottom": 1})
        number = book.add_format({"num_format": "#,##0.##"})
        total = book.add_format({"bold": True, "top": 1, "num_format": "#,##0.##"})
        sheet = book.add_worksheet("Summary")
        sheet.write_string("A1", title, book.add_format({"bold": True, "font_size": 14}))
        sheet.write_string("A3", given.group, head)
        sheet.write_string("B3", f"{given.how} of {given.value}", head)
        for at, (name, value) in enumerate(summary.items()):
            sheet.write_string(3 + at, 0, str(name))
            sheet.write_number(3 + at, 1, float(value), number)
        last = 3 + len(summary)
        if given.how in ("sum", "count") and len(summary):
            sheet.write_string(last, 0, "Total", total)
            sheet.write_formula(last, 1, f"=SUM(B4:B{last})", total, float(summary.sum()))
        sheet.set_column(0, 1, 24)
        sheet.freeze_panes(3, 0)
        if given.chart != "none" and len(summary):
            chart = book.add_chart({"type": given.chart})
            chart.add_series({
                "name": title,
                "categories": ["Summary", 3, 0, last - 1, 0],
                "values": ["Summary", 3, 1, last - 1, 1],
            })
            chart.set_title({"name": title})
            if given.chart != "pie":
                chart.set_legend({"none": True})
            sheet.insert_chart("D3", chart, {"x_scale": 1.3, "y_scale": 1.3})
        table.to_excel(writer, sheet_name="Data", index=False)
        data = writer.sheets["Data"]
        data.freeze_panes(1, 0)
        data.autofilter(0, 0, len(table), max(len(table.columns) - 1, 0))
        widths(data, table)
    print(f"{title}\n{summary.to_string()}\n{len(table)} rows in {given.out.name}")


if __name__ == "__main__":
    main()
