//! What operators look for in the history: counts over time, and runs that are slow or failed.

use std::fmt::Write as _;

use sqlx::{AnyPool, AssertSqlSafe, Row, any::AnyRow};

use super::{DbResult, end_word, number, read};
use crate::ports::history::{EndWord, HistoryLine, Notable, PartLine, TOOK_MS};

/// A line with the beginning of its program: in a list of a few hundred lines, whole ones could be too long.
const COLUMNS: &str = "id, owner, conversation, token, is_cell, language, image, program_sha256, instance, begun_ms, \
    ended_ms, ended, exit_code, signal, oom_killed, failure, sentence, wall_ms, cpu_ms, cpu_max_ms, \
    memory_peak_bytes, stdout_bytes, stderr_bytes, files_changed, files, SUBSTR(source, 1, 4096) AS source";

/// Lines that are sorted for one answer.
const FEW: i64 = 2000;

pub(super) async fn notable(pool: &AnyPool, which: Notable, from: i64, limit: usize) -> DbResult<Vec<HistoryLine>> {
    let (wanted, order) = match which {
        // Of few lines all are read and sorted: `+` keeps both databases from the index by duration. Of many, that
        // index finds the slowest before it has been read far.
        Notable::Slowest if are_few(pool, from).await? => {
            ("ended <> 'server_lost'", "+(ended_ms - begun_ms) DESC, id DESC")
        }
        Notable::Slowest => ("ended <> 'server_lost'", "ended_ms - begun_ms DESC, id DESC"),
        Notable::Failing => {
            ("ended <> 'cancelled' AND (ended <> 'exited' OR exit_code <> 0)", "begun_ms DESC, id DESC")
        }
    };
    let statement = format!(
        "SELECT {COLUMNS} FROM history \
         WHERE begun_ms >= $1 AND ended IS NOT NULL AND {wanted} ORDER BY {order} LIMIT {limit}"
    );
    let rows = sqlx::query(AssertSqlSafe(statement)).bind(from).fetch_all(pool).await?;
    rows.iter().map(read).collect()
}

/// Whether fewer than [`FEW`] lines began at this moment or later.
async fn are_few(pool: &AnyPool, from: i64) -> DbResult<bool> {
    let statement =
        format!("SELECT COUNT(*) AS lines FROM (SELECT 1 FROM history WHERE begun_ms >= $1 LIMIT {FEW}) AS since");
    let row = sqlx::query(AssertSqlSafe(statement)).bind(from).fetch_one(pool).await?;
    Ok(row.try_get::<i64, _>("lines")? < FEW)
}

/// The rows are bounded by the parts of time, the words and the classes.
pub(super) async fn parts(pool: &AnyPool, from: i64, part_ms: i64) -> DbResult<Vec<PartLine>> {
    let mut class = String::from("CASE");
    for (number, bound) in TOOK_MS.iter().enumerate() {
        write!(class, " WHEN ended_ms - begun_ms <= {bound} THEN {number}").unwrap_or_default();
    }
    let statement = format!(
        "SELECT begun_ms / {part_ms} AS part, ended, CAST({class} ELSE {} END AS BIGINT) AS class, \
         COUNT(*) AS runs FROM history WHERE begun_ms >= $1 AND ended IS NOT NULL GROUP BY 1, 2, 3",
        TOOK_MS.len()
    );
    let rows = sqlx::query(AssertSqlSafe(statement)).bind(from).fetch_all(pool).await?;
    rows.iter().map(part).collect()
}

fn part(row: &AnyRow) -> DbResult<PartLine> {
    Ok(PartLine {
        part: row.try_get("part")?,
        ended: end_word(row)?.unwrap_or(EndWord::FAILED),
        class: number(row, "class")?.unwrap_or_default(),
        runs: number(row, "runs")?.unwrap_or_default(),
    })
}
