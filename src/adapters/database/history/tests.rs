//! How SQLite finds a page: by an index that has its order, whatever the filter, so a page costs the same among a
//! million lines.

use sqlx::{AssertSqlSafe, Row as _};

use super::{Database, LINE_BYTES, page_statement};
use crate::{domain::RunId, ports::history::LineFilter};

const NOW: i64 = 1_800_000_000_000;

/// Each combination of the filters.
fn filters() -> impl Iterator<Item = LineFilter> {
    (0..1_u32 << 7).map(|set| {
        let has = |bit: u32| set & 1 << bit != 0;
        LineFilter {
            owner: has(0).then(|| "ann".parse().expect("an owner")),
            conversation: has(1).then(|| "c".parse().expect("an id")),
            language: has(2).then(|| "bash".parse().expect("a language")),
            ended: has(3).then(|| "failed".parse().expect("a word")),
            from: has(4).then_some(NOW - 1000),
            to: has(5).then_some(NOW + 1000),
            after: has(6).then(|| run_at(NOW)),
        }
    })
}

/// The id of a run that began at this moment.
fn run_at(unix_ms: i64) -> RunId {
    format!("run-{unix_ms:012x}7000{:016x}", 1_u64 << 63).parse().expect("a run")
}

async fn plan(database: &Database, what: &str, filter: &LineFilter) -> String {
    let (statement, values) = page_statement(what, filter, 51).expect("a statement");
    let statement = format!("EXPLAIN QUERY PLAN {statement}");
    let query = sqlx::query_with(AssertSqlSafe(statement), values);
    let rows = query.fetch_all(database.pool().expect("it is prepared")).await.expect("a plan");
    let details: Vec<String> = rows.iter().map(|row| row.try_get("detail").expect("a text")).collect();
    details.join("; ")
}

#[tokio::test]
async fn every_page_is_found_by_an_index_in_its_order() {
    let (_folder, database) = Database::in_new_folder().await;
    for (what, filter) in ["*", LINE_BYTES].iter().flat_map(|what| filters().map(move |filter| (*what, filter))) {
        let plan = plan(&database, what, &filter).await;
        let LineFilter { owner, conversation, language, ended, .. } = &filter;
        let equal = owner.is_some() || conversation.is_some() || language.is_some() || ended.is_some();
        let (bounded, after) = (filter.from.is_some() || filter.to.is_some(), filter.after.is_some());
        // All lines in their order are a scan of the index, which ends with the page.
        let how = if equal || bounded || after { "SEARCH" } else { "SCAN" };
        assert!(plan.starts_with(&format!("{how} history USING INDEX history_")), "{filter:?}: {plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{filter:?}: {plan}");
        assert_eq!(plan.contains("(begun_ms,id)<("), after, "a page begins at its cursor: {filter:?}: {plan}");
    }
    database.close().await;
}

#[tokio::test]
async fn of_two_bounds_the_earlier_one_is_used() {
    for (after, to, key) in [(NOW, NOW + 1, true), (NOW, NOW, false), (NOW + 1, NOW, false)] {
        let filter = LineFilter { after: Some(run_at(after)), to: Some(to), ..LineFilter::default() };
        let (statement, _) = page_statement("*", &filter, 1).expect("a statement");
        let bounds = (statement.contains("(begun_ms, id) <"), statement.contains("begun_ms < "));
        assert_eq!(bounds, (key, !key), "{statement}");
    }
}
