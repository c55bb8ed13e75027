//! The history in the database.

mod activity;

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use sqlx::{
    Any, AnyPool, Arguments as _, AssertSqlSafe, Encode, Row, Transaction, Type,
    any::{AnyArguments, AnyRow},
};

use super::{Database, DbResult, number, parsed, parsed_if_any};
use crate::{
    domain::{
        Code, ConversationKey, Figures, InstanceId, Principal, RunId,
        clock::DAY_MS,
        text::{ms, whole},
    },
    ports::history::{
        EndWord, HistoryLine, HistoryStore, LineEnd, LineFilter, Notable, PartLine, UsageFilter, UsageLine,
    },
};

/// A line that has an end keeps it, except the one that another server gave it. Without an end in the new line nothing
/// changes: the begin of a run may be stored after its end.
const WRITE: &str = "INSERT INTO history \
    (id, owner, conversation, token, is_cell, language, image, program_sha256, source, instance, begun_ms, ended_ms, \
     ended, exit_code, signal, oom_killed, failure, sentence, wall_ms, cpu_ms, memory_peak_bytes, stdout_bytes, \
     stderr_bytes, files_changed, files, cpu_max_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, \
     $24, $25, $26) \
    ON CONFLICT (id) DO UPDATE SET ended_ms = excluded.ended_ms, ended = excluded.ended, \
     exit_code = excluded.exit_code, signal = excluded.signal, oom_killed = excluded.oom_killed, \
     failure = excluded.failure, sentence = excluded.sentence, wall_ms = excluded.wall_ms, cpu_ms = excluded.cpu_ms, \
     memory_peak_bytes = excluded.memory_peak_bytes, stdout_bytes = excluded.stdout_bytes, \
     stderr_bytes = excluded.stderr_bytes, files_changed = excluded.files_changed, files = excluded.files, \
     cpu_max_ms = excluded.cpu_max_ms \
    WHERE excluded.ended IS NOT NULL AND (history.ended IS NULL OR history.ended = 'server_lost')";

/// What a line takes: its texts of any length are measured and not read.
const LINE_BYTES: &str = "1024 + COALESCE(OCTET_LENGTH(source), 0) + COALESCE(OCTET_LENGTH(files), 0) \
    + COALESCE(OCTET_LENGTH(sentence), 0)";

const ADD_USAGE: &str = "INSERT INTO usage_days \
    (owner, day, language, runs, cells, failed, wall_ms, cpu_ms, output_bytes) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
    ON CONFLICT (owner, day, language) DO UPDATE SET runs = usage_days.runs + excluded.runs, \
     cells = usage_days.cells + excluded.cells, failed = usage_days.failed + excluded.failed, \
     wall_ms = usage_days.wall_ms + excluded.wall_ms, cpu_ms = usage_days.cpu_ms + excluded.cpu_ms, \
     output_bytes = usage_days.output_bytes + excluded.output_bytes";

#[async_trait]
impl HistoryStore for Database {
    async fn write(&self, lines: &[HistoryLine]) -> DbResult<()> {
        let mut transaction = self.pool()?.begin().await?;
        // Ordered, so that servers that write at once do not wait for each other in a circle.
        let mut usage: BTreeMap<_, UsageLine> = BTreeMap::new();
        for line in lines {
            let is_new = insert(&mut transaction, line).await?;
            if let Some(end) = line.end.as_ref().filter(|_| is_new) {
                let used = used(line, end);
                let key = (used.owner.name().to_owned(), used.day, used.language.to_string());
                usage.entry(key).and_modify(|sum| add(sum, &used)).or_insert(used);
            }
        }
        for sum in usage.values() {
            sqlx::query(ADD_USAGE)
                .bind(sum.owner.name())
                .bind(sum.day)
                .bind(sum.language.as_str())
                .bind(sum.runs)
                .bind(sum.cells)
                .bind(sum.failed)
                .bind(sum.wall_ms)
                .bind(sum.cpu_ms)
                .bind(sum.output_bytes)
                .execute(&mut *transaction)
                .await?;
        }
        Ok(transaction.commit().await?)
    }

    async fn line(&self, who: &Principal, run: RunId) -> DbResult<Option<HistoryLine>> {
        // By the owner's index and not by the id alone: no line of another owner is read, so the time tells nothing.
        let statement = "SELECT * FROM history WHERE owner = $1 AND begun_ms = $2 AND COALESCE(id, '') = $3";
        let query = sqlx::query(statement).persistent(false);
        let query = query.bind(who.name()).bind(run.unix_ms()).bind(run.to_string());
        let row = query.fetch_optional(self.pool_when_ready().await?).await?;
        row.as_ref().map(read).transpose()
    }

    async fn page(&self, filter: &LineFilter, limit: usize) -> DbResult<Vec<HistoryLine>> {
        let (statement, values) = page_statement("*", filter, limit)?;
        let query = sqlx::query_with(AssertSqlSafe(statement), values).persistent(false);
        let rows = query.fetch_all(self.pool_when_ready().await?).await?;
        rows.iter().map(read).collect()
    }

    async fn page_bytes(&self, filter: &LineFilter, limit: usize) -> DbResult<Vec<u64>> {
        let (statement, values) = page_statement(&format!("CAST({LINE_BYTES} AS BIGINT) AS bytes"), filter, limit)?;
        let rows = sqlx::query_with(AssertSqlSafe(statement), values).fetch_all(self.pool_when_ready().await?).await?;
        rows.iter().map(|row| Ok(number(row, "bytes")?.unwrap_or_default())).collect()
    }

    async fn usage(&self, filter: &UsageFilter, limit: usize) -> DbResult<Vec<UsageLine>> {
        let mut wanted = Conditions::default();
        wanted.add("owner =", filter.owner.as_ref().map(Principal::name))?;
        wanted.add("day >=", filter.from)?;
        wanted.add("day <=", filter.to)?;
        let statement =
            format!("SELECT * FROM usage_days {} ORDER BY day DESC, owner, language LIMIT {limit}", wanted.clause());
        let query = sqlx::query_with(AssertSqlSafe(statement), wanted.values).persistent(false);
        let rows = query.fetch_all(self.pool_when_ready().await?).await?;
        rows.iter().map(read_usage).collect()
    }

    async fn notable(&self, which: Notable, from: i64, limit: usize) -> DbResult<Vec<HistoryLine>> {
        activity::notable(self.pool_when_ready().await?, which, from, limit).await
    }

    async fn parts(&self, from: i64, part_ms: i64) -> DbResult<Vec<PartLine>> {
        activity::parts(self.pool_when_ready().await?, from, part_ms).await
    }

    async fn beat(&self, instance: InstanceId, beat: i64) -> DbResult<()> {
        let statement = "INSERT INTO servers (instance, beat) VALUES ($1, $2) \
            ON CONFLICT (instance) DO UPDATE SET beat = excluded.beat";
        self.execute(sqlx::query(statement).bind(instance.to_string()).bind(beat)).await.map(drop)
    }

    async fn forget_beats(&self, before: i64) -> DbResult<u64> {
        let statement = "DELETE FROM servers WHERE beat < $1 AND NOT EXISTS \
            (SELECT 1 FROM history WHERE history.ended IS NULL AND history.instance = servers.instance)";
        self.execute(sqlx::query(statement).bind(before)).await
    }

    async fn open(&self) -> DbResult<Vec<(InstanceId, Option<i64>)>> {
        let statement = "SELECT DISTINCT history.instance AS instance, servers.beat AS beat \
            FROM history LEFT JOIN servers ON servers.instance = history.instance WHERE history.ended IS NULL";
        let rows = sqlx::query(statement).fetch_all(self.pool()?).await?;
        rows.iter().map(|row| Ok((parsed(row, "instance")?, row.try_get("beat")?))).collect()
    }

    async fn close_lost(&self, instance: InstanceId, before: i64, ended: i64, sentence: &str) -> DbResult<u64> {
        let statement = "UPDATE history SET ended_ms = $1, ended = $2, failure = $3, sentence = $4 \
            WHERE ended IS NULL AND instance = $5 AND begun_ms < $6";
        let query = sqlx::query(statement)
            .bind(ended)
            .bind(EndWord::SERVER_LOST.as_str())
            .bind(Code::ServerLost.as_str())
            .bind(sentence)
            .bind(instance.to_string())
            .bind(before);
        self.execute(query).await
    }

    async fn count(&self) -> DbResult<u64> {
        let lines: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM history").fetch_one(self.pool()?).await?;
        Ok(u64::try_from(lines).unwrap_or_default())
    }

    async fn begun_after_oldest(&self, count: u64) -> DbResult<Option<i64>> {
        let statement = "SELECT begun_ms FROM history ORDER BY begun_ms LIMIT 1 OFFSET $1";
        Ok(sqlx::query_scalar(statement).bind(whole(count)).fetch_optional(self.pool()?).await?)
    }

    async fn newest_bytes(&self, before_unix_ms: i64, limit: u64) -> DbResult<Option<(i64, u64)>> {
        let statement = format!(
            "SELECT MIN(begun_ms) AS oldest, CAST(SUM(bytes) AS BIGINT) AS bytes FROM (\
             SELECT begun_ms, {LINE_BYTES} AS bytes \
             FROM history WHERE begun_ms < $1 ORDER BY begun_ms DESC LIMIT $2) AS newest"
        );
        let query = sqlx::query_as(AssertSqlSafe(statement)).bind(before_unix_ms).bind(whole(limit));
        let (oldest, bytes): (Option<i64>, Option<i64>) = query.fetch_one(self.pool()?).await?;
        Ok(oldest.zip(bytes.and_then(|bytes| u64::try_from(bytes).ok())))
    }

    async fn remove_before(&self, unix_ms: i64, limit: u64) -> DbResult<u64> {
        let statement = "DELETE FROM history WHERE id IN \
            (SELECT id FROM history WHERE begun_ms < $1 ORDER BY begun_ms LIMIT $2)";
        self.execute(sqlx::query(statement).bind(unix_ms).bind(whole(limit))).await
    }
}

impl Database {
    /// The connections, for a reader: a server that has just begun prepares its database first.
    async fn pool_when_ready(&self) -> DbResult<&AnyPool> {
        self.ready().await;
        self.pool()
    }
}

/// The statement that reads this of the lines of a page, and the values of its conditions.
fn page_statement(what: &str, filter: &LineFilter, limit: usize) -> Result<(String, AnyArguments), sqlx::Error> {
    // SQLite bounds an index from above by one condition only, so the later of two moments is left out: with the other
    // one it would read all lines between the two, for each page anew.
    let after = filter.after.filter(|run| filter.to.is_none_or(|to| run.unix_ms() < to));
    let mut wanted = Conditions::default();
    wanted.add("owner =", filter.owner.as_ref().map(Principal::name))?;
    wanted.add("conversation =", filter.conversation.as_ref().map(ToString::to_string))?;
    wanted.add("language =", filter.language.as_ref().map(ToString::to_string))?;
    wanted.add("ended =", filter.ended.map(EndWord::as_str))?;
    wanted.add("begun_ms >=", filter.from)?;
    wanted.add("begun_ms <", filter.to.filter(|_| after.is_none()))?;
    wanted.add_key(after)?;
    let clause = wanted.clause();
    let statement = format!("SELECT {what} FROM history {clause} ORDER BY begun_ms DESC, id DESC LIMIT {limit}");
    Ok((statement, wanted.values))
}

/// Stores one line; whether that changed something.
async fn insert(transaction: &mut Transaction<'_, Any>, line: &HistoryLine) -> DbResult<bool> {
    let end = line.end.as_ref();
    let figures = end.map(|end| &end.figures);
    let files = end.map(|end| serde_json::to_string(&end.files).unwrap_or_default());
    let written = sqlx::query(WRITE)
        .bind(line.run.to_string())
        .bind(line.conversation.owner.name())
        .bind(line.conversation.id.as_str())
        .bind(line.token.map(|token| token.to_string()))
        .bind(i64::from(line.is_cell))
        .bind(line.language.as_str())
        .bind(&line.image)
        .bind(&line.program_sha256)
        .bind(&line.source)
        .bind(line.instance.to_string())
        .bind(line.run.unix_ms())
        .bind(end.map(|end| end.unix_ms))
        .bind(end.map(|end| end.word.as_str()))
        .bind(end.and_then(|end| end.exit_code).map(i64::from))
        .bind(end.and_then(|end| end.signal).map(i64::from))
        .bind(end.map(|end| i64::from(end.oom_killed)))
        .bind(end.and_then(|end| end.failure).map(Code::as_str))
        .bind(end.map(|end| end.sentence.as_str()))
        .bind(figures.map(|figures| whole(ms(figures.wall))))
        .bind(figures.and_then(|figures| figures.cpu).map(|cpu| whole(ms(cpu))))
        .bind(figures.and_then(|figures| figures.memory_peak_bytes).map(whole))
        .bind(figures.map(|figures| whole(figures.stdout_bytes)))
        .bind(figures.map(|figures| whole(figures.stderr_bytes)))
        .bind(figures.map(|figures| whole(figures.files)))
        .bind(files)
        .bind(end.and_then(|end| end.cpu_max).map(|cpu| whole(ms(cpu))))
        .execute(&mut **transaction)
        .await?;
    Ok(written.rows_affected() > 0)
}

fn used(line: &HistoryLine, end: &LineEnd) -> UsageLine {
    UsageLine {
        owner: line.conversation.owner.clone(),
        day: line.run.unix_ms().div_euclid(DAY_MS),
        language: line.language.clone(),
        runs: 1,
        cells: line.is_cell.into(),
        failed: end.failure.is_some().into(),
        wall_ms: whole(ms(end.figures.wall)),
        cpu_ms: end.figures.cpu.map_or(0, |cpu| whole(ms(cpu))),
        output_bytes: whole(end.figures.stdout_bytes.saturating_add(end.figures.stderr_bytes)),
    }
}

fn add(sum: &mut UsageLine, more: &UsageLine) {
    sum.runs += more.runs;
    sum.cells += more.cells;
    sum.failed += more.failed;
    sum.wall_ms += more.wall_ms;
    sum.cpu_ms += more.cpu_ms;
    sum.output_bytes = sum.output_bytes.saturating_add(more.output_bytes);
}

/// The conditions of a statement: fixed texts, and values that are bound.
#[derive(Default)]
struct Conditions {
    parts: Vec<String>,
    values: AnyArguments,
}

impl Conditions {
    fn add<'v>(&mut self, condition: &str, value: Option<impl Encode<'v, Any> + Type<Any>>) -> Result<(), sqlx::Error> {
        if let Some(value) = value {
            self.values.add(value).map_err(sqlx::Error::Encode)?;
            self.parts.push(format!("{condition} ${}", self.values.len()));
        }
        Ok(())
    }

    /// Those before a line in the order of pages.
    fn add_key(&mut self, after: Option<RunId>) -> Result<(), sqlx::Error> {
        let Some(run) = after else { return Ok(()) };
        let n = self.values.len();
        self.parts.push(format!("(begun_ms, id) < (${}, ${})", n + 1, n + 2));
        let added = self.values.add(run.unix_ms()).and_then(|()| self.values.add(run.to_string()));
        added.map_err(sqlx::Error::Encode)
    }

    fn clause(&self) -> String {
        if self.parts.is_empty() { String::new() } else { format!("WHERE {}", self.parts.join(" AND ")) }
    }
}

fn read(row: &AnyRow) -> DbResult<HistoryLine> {
    let ended: Option<i64> = row.try_get("ended_ms")?;
    Ok(HistoryLine {
        run: parsed(row, "id")?,
        conversation: ConversationKey::new(parsed(row, "owner")?, parsed(row, "conversation")?),
        token: parsed_if_any(row, "token")?,
        is_cell: row.try_get::<i64, _>("is_cell")? != 0,
        language: parsed(row, "language")?,
        image: row.try_get("image")?,
        program_sha256: row.try_get("program_sha256")?,
        source: row.try_get("source")?,
        instance: parsed(row, "instance")?,
        end: ended.map(|unix_ms| read_end(row, unix_ms)).transpose()?,
    })
}

fn read_end(row: &AnyRow, unix_ms: i64) -> DbResult<LineEnd> {
    let failure: Option<String> = row.try_get("failure")?;
    let failure = failure.map(|word| Code::ALL.iter().find(|code| code.as_str() == word).copied());
    let (word, files) = (end_word(row)?, row.try_get::<Option<String>, _>("files")?);
    Ok(LineEnd {
        unix_ms,
        word: word.unwrap_or(EndWord::FAILED),
        exit_code: number(row, "exit_code")?,
        signal: number(row, "signal")?,
        oom_killed: number(row, "oom_killed")? == Some(1_i64),
        // A code or a word of another version of the server.
        failure: failure.map(|code| code.unwrap_or(Code::Internal)).or(word.is_none().then_some(Code::Internal)),
        sentence: row.try_get::<Option<String>, _>("sentence")?.unwrap_or_default(),
        figures: Figures {
            wall: Duration::from_millis(number(row, "wall_ms")?.unwrap_or_default()),
            cpu: number(row, "cpu_ms")?.map(Duration::from_millis),
            memory_peak_bytes: number(row, "memory_peak_bytes")?,
            stdout_bytes: number(row, "stdout_bytes")?.unwrap_or_default(),
            stderr_bytes: number(row, "stderr_bytes")?.unwrap_or_default(),
            files: number(row, "files_changed")?.unwrap_or_default(),
        },
        cpu_max: number(row, "cpu_max_ms")?.map(Duration::from_millis),
        files: files.and_then(|files| serde_json::from_str(&files).ok()).unwrap_or_default(),
    })
}

/// How a run ended; `None` for a word of another version of the server, which keeps no other line from being read.
fn end_word(row: &AnyRow) -> DbResult<Option<EndWord>> {
    Ok(row.try_get::<String, _>("ended")?.parse().ok())
}

fn read_usage(row: &AnyRow) -> DbResult<UsageLine> {
    Ok(UsageLine {
        owner: parsed(row, "owner")?,
        day: row.try_get("day")?,
        language: parsed(row, "language")?,
        runs: row.try_get("runs")?,
        cells: row.try_get("cells")?,
        failed: row.try_get("failed")?,
        wall_ms: row.try_get("wall_ms")?,
        cpu_ms: row.try_get("cpu_ms")?,
        output_bytes: row.try_get("output_bytes")?,
    })
}

#[cfg(test)]
mod tests;
