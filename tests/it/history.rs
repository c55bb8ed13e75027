//! The history on each kind of database: what is stored, what is found again, and what happens while the database
//! fails.

pub mod failing;
mod recorder;
mod slowest;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        error::Code,
        id::{InstanceId, RunId},
        outcome::Figures,
        owner::{ConversationKey, Principal},
    },
    ports::history::{
        EndWord, HistoryLine, HistoryStore, KeyRecord, KeyStore, LineEnd, LineFilter, Notable, UsageFilter,
    },
};
use tempfile::TempDir;

use self::{
    recorder::{
        lines_of_a_killed_writer_are_whole, old_lines_are_removed, the_oldest_lines_are_removed_for_their_size,
    },
    slowest::{
        lines_are_counted_and_the_oldest_passed_over, lists_of_long_lines_are_bounded, old_beats_are_forgotten,
        slowest_runs_agree_with_a_model, the_newest_are_measured,
    },
};
use crate::support::{dice::Dice, postgres::Postgres, scale::how_many};

/// 2026-11-22, in unix milliseconds.
const BEGAN: i64 = 20_779 * 24 * 3600 * 1000;
const DAY_MS: i64 = 24 * 3600 * 1000;

/// A database of a test's own.
struct Base {
    database: Database,
    url: String,
    /// Ends with the test.
    _kept: (Option<Postgres>, TempDir),
}

impl Base {
    async fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite://{}/state.db", folder.path().display());
        Self::at(url, None, folder).await
    }

    async fn postgres() -> Self {
        let cluster = Postgres::start().await;
        Self::at(cluster.url(), Some(cluster), tempfile::tempdir().expect("a folder")).await
    }

    async fn at(url: String, cluster: Option<Postgres>, folder: TempDir) -> Self {
        let database = Database::connect(&url).expect("an address");
        database.prepare().await.expect("tables");
        Self { database, url, _kept: (cluster, folder) }
    }
}

macro_rules! on_both {
    ($($name:ident)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Base::sqlite().await).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Base::postgres().await).await;
            })+
        }
    };
}

on_both! {
    pages_and_filters_agree_with_a_model
    usage_adds_up_and_outlives_the_lines
    an_end_is_kept_once
    keys_are_kept_for_a_day
    lines_of_a_killed_writer_are_whole
    old_lines_are_removed
    the_oldest_lines_are_removed_for_their_size
    a_page_of_many_lines_is_found
    slowest_runs_agree_with_a_model
    lines_are_counted_and_the_oldest_passed_over
    the_newest_are_measured
    lists_of_long_lines_are_bounded
    old_beats_are_forgotten
    an_end_of_another_version_keeps_no_line_from_being_read
}

fn key(owner: &str, conversation: &str) -> ConversationKey {
    ConversationKey::new(owner.parse().expect("an owner"), conversation.parse().expect("an id"))
}

/// The id of a run that began at this moment.
fn run_at(unix_ms: i64, dice: &mut Dice) -> RunId {
    let (a, b) = (dice.below(1 << 16), dice.below(1 << 62));
    format!("run-{unix_ms:012x}7{:03x}{:016x}", a & 0xfff, b | 1 << 63).parse().expect("a run")
}

fn ended(word: &str, unix_ms: i64) -> LineEnd {
    LineEnd {
        unix_ms,
        word: word.parse().expect("a word"),
        exit_code: (word == "exited").then_some(0),
        signal: None,
        oom_killed: false,
        failure: (word == "failed").then_some(Code::EngineLost),
        sentence: "The program ran to its end (exit status 0).".to_owned(),
        figures: Figures {
            wall: Duration::from_millis(70),
            cpu: Some(Duration::from_millis(50)),
            memory_peak_bytes: None,
            stdout_bytes: 3,
            stderr_bytes: 4,
            files: 1,
        },
        cpu_max: (word == "timed_out").then_some(Duration::from_millis(90)),
        files: vec!["a\u{e4}.txt".to_owned()],
    }
}

fn line(run: RunId, conversation: ConversationKey, end: Option<LineEnd>) -> HistoryLine {
    HistoryLine {
        run,
        conversation,
        token: None,
        is_cell: false,
        language: "python".parse().expect("a language"),
        image: "sha256:abc".to_owned(),
        program_sha256: "00".repeat(32),
        source: None,
        instance: InstanceId::new(),
        end,
    }
}

/// Random lines in few milliseconds, so that many began in the same one.
pub fn random_lines(count: usize, dice: &mut Dice) -> Vec<HistoryLine> {
    let words = ["exited", "timed_out", "failed", "server_lost"];
    let mut one = || {
        let pick =
            |dice: &mut Dice, of: &[&str]| of[usize::try_from(dice.below(of.len() as u64)).expect("small")].to_owned();
        let begun = BEGAN + i64::try_from(dice.below(40)).expect("small") * DAY_MS / 10;
        let conversation = key(&pick(dice, &["default", "ann", "bob"]), &pick(dice, &["c", "d"]));
        let end = (dice.below(5) > 0).then(|| ended(&pick(dice, &words), begun + 70));
        let language = pick(dice, &["python", "bash"]).parse().expect("a language");
        HistoryLine { language, is_cell: dice.below(3) == 0, ..line(run_at(begun, dice), conversation, end) }
    };
    (0..count).map(|_| one()).collect()
}

fn matches(line: &HistoryLine, filter: &LineFilter) -> bool {
    let begun = line.run.unix_ms();
    filter.owner.as_ref().is_none_or(|owner| *owner == line.conversation.owner)
        && filter.conversation.as_ref().is_none_or(|id| *id == line.conversation.id)
        && filter.language.as_ref().is_none_or(|language| *language == line.language)
        && filter.ended.is_none_or(|word| line.end.as_ref().is_some_and(|end| end.word == word))
        && filter.from.is_none_or(|from| begun >= from)
        && filter.to.is_none_or(|to| begun < to)
}

async fn pages_and_filters_agree_with_a_model(base: Base) {
    let mut dice = Dice::new(14);
    let mut lines = random_lines(400, &mut dice);
    for batch in lines.chunks(64) {
        base.database.write(batch).await.expect("stored");
    }
    lines.sort_by_key(|line| std::cmp::Reverse((line.run.unix_ms(), line.run.to_string())));
    for round in 0..how_many(60, 2000) {
        let some = |dice: &mut Dice| dice.below(3) == 0;
        let moment = |dice: &mut Dice| BEGAN + i64::try_from(dice.below(41)).expect("small") * DAY_MS / 10;
        let mut filter = LineFilter {
            owner: some(&mut dice).then(|| "ann".parse().expect("an owner")),
            conversation: some(&mut dice).then(|| "d".parse().expect("an id")),
            language: some(&mut dice).then(|| "bash".parse().expect("a language")),
            ended: some(&mut dice).then(|| "timed_out".parse().expect("a word")),
            from: some(&mut dice).then(|| moment(&mut dice)),
            to: some(&mut dice).then(|| moment(&mut dice)),
            after: None,
        };
        let limit = 1 + usize::try_from(dice.below(90)).expect("small");
        let expected: Vec<_> = lines.iter().filter(|line| matches(line, &filter)).cloned().collect();
        let mut found = Vec::new();
        loop {
            let page = base.database.page(&filter, limit).await.expect("a page");
            assert!(page.len() <= limit);
            filter.after = page.last().map(|line| line.run);
            let is_last = page.len() < limit;
            found.extend(page);
            if is_last {
                break;
            }
        }
        assert!(found == expected, "round {round}: {filter:?}: {} and not {}", found.len(), expected.len());
    }
    // An owner's run is its own.
    let of_ann = lines.iter().find(|line| line.conversation.owner.name() == "ann").expect("one");
    for (who, is_there) in [("ann", true), ("bob", false), ("default", false)] {
        let who: Principal = who.parse().expect("an owner");
        assert_eq!(base.database.line(&who, of_ann.run).await.expect("an answer").is_some(), is_there);
    }
}

async fn usage_adds_up_and_outlives_the_lines(base: Base) {
    let mut dice = Dice::new(3);
    let mut lines = random_lines(300, &mut dice);
    for end in lines.iter_mut().filter_map(|line| line.end.as_mut()).filter(|end| end.word == EndWord::SERVER_LOST) {
        end.word = EndWord::FAILED;
    }
    let mut expected = BTreeMap::new();
    for line in lines.iter().filter(|line| line.end.is_some()) {
        let owner = line.conversation.owner.name().to_owned();
        let sum = expected.entry((line.run.unix_ms() / DAY_MS, owner, line.language.to_string())).or_insert([0; 5]);
        let of_it = [1, line.is_cell.into(), 70, 50, 7];
        sum.iter_mut().zip(of_it).for_each(|(sum, more)| *sum += more);
    }
    // Beginnings before, with and after their ends; everything twice, as after a lost answer.
    let begins: Vec<_> = lines.iter().map(|line| HistoryLine { end: None, ..line.clone() }).collect();
    for batch in [&begins[..150], &lines[..], &begins[150..], &lines[..], &begins[..]] {
        base.database.write(batch).await.expect("stored");
    }
    let removed = base.database.remove_before(i64::MAX, 1000).await.expect("removed");
    assert_eq!(removed, 300);
    let usage = base.database.usage(&UsageFilter::default(), 1000).await.expect("sums");
    let found: BTreeMap<_, _> = usage
        .iter()
        .map(|sum| {
            let of_it = [sum.runs, sum.cells, sum.wall_ms, sum.cpu_ms, sum.output_bytes];
            ((sum.day, sum.owner.name().to_owned(), sum.language.to_string()), of_it)
        })
        .collect();
    assert_eq!(found, expected);
    let (owner, day) = ("ann".parse().expect("an owner"), BEGAN / DAY_MS + 1);
    let filter = UsageFilter { owner: Some(owner), from: Some(day), to: Some(day) };
    let of_ann = base.database.usage(&filter, 1000).await.expect("sums");
    assert_eq!(of_ann.len(), expected.keys().filter(|(of, owner, _)| *of == day && owner == "ann").count());
}

async fn an_end_is_kept_once(base: Base) {
    let (database, mut dice) = (&base.database, Dice::new(1));
    let open = line(run_at(BEGAN, &mut dice), key("ann", "c"), None);
    let with = |word| HistoryLine { end: Some(ended(word, BEGAN)), ..open.clone() };
    let word = async || {
        let line = database.line(&open.conversation.owner, open.run).await.expect("an answer").expect("the line");
        line.end.map(|end| end.word.as_str())
    };
    database.write(std::slice::from_ref(&open)).await.expect("stored");
    assert_eq!(database.open().await.expect("an answer"), [(open.instance, None)]);
    database.beat(open.instance, 7).await.expect("a beat");
    assert_eq!(database.open().await.expect("an answer"), [(open.instance, Some(7))]);
    let close =
        async |instance, before| database.close_lost(instance, before, BEGAN, "It was lost.").await.expect("an answer");
    assert_eq!(close(InstanceId::new(), i64::MAX).await, 0, "of another server");
    assert_eq!(close(open.instance, BEGAN).await, 0, "it began at that moment");
    assert_eq!(close(open.instance, BEGAN + 1).await, 1);
    assert_eq!(word().await, Some("server_lost"));
    assert!(database.usage(&UsageFilter::default(), 10).await.expect("sums").is_empty());
    // The server lived, and could not reach the database for a while.
    database.write(&[with("exited")]).await.expect("stored");
    assert_eq!(word().await, Some("exited"));
    database.write(&[with("timed_out"), open.clone()]).await.expect("stored");
    assert_eq!(word().await, Some("exited"));
    assert_eq!(database.usage(&UsageFilter::default(), 10).await.expect("sums")[0].runs, 1);
    assert_eq!(database.open().await.expect("an answer"), []);
}

async fn an_end_of_another_version_keeps_no_line_from_being_read(base: Base) {
    let (database, mut dice) = (&base.database, Dice::new(9));
    let lines: Vec<_> = (0..3)
        .map(|n| line(run_at(BEGAN + n, &mut dice), key("ann", "c"), Some(ended("exited", BEGAN + n + 70))))
        .collect();
    database.write(&lines).await.expect("stored");
    let pool = sqlx::AnyPool::connect(&base.url).await.expect("another server");
    let change = sqlx::query("UPDATE history SET ended = 'evaporated' WHERE id = $1").bind(lines[1].run.to_string());
    change.execute(&pool).await.expect("changed");
    pool.close().await;

    let page = database.page(&LineFilter::default(), 10).await.expect("a page");
    assert_eq!(page.iter().map(|line| line.run).collect::<Vec<_>>(), [lines[2].run, lines[1].run, lines[0].run]);
    assert_eq!((&page[0], &page[2]), (&lines[2], &lines[0]));
    let end = page[1].end.as_ref().expect("it has ended");
    assert_eq!((end.word, end.failure), (EndWord::FAILED, Some(Code::Internal)));
    assert_eq!(end.sentence, ended("exited", BEGAN).sentence, "what the other server told is kept");
    let who = &lines[1].conversation.owner;
    assert_eq!(database.line(who, lines[1].run).await.expect("an answer").as_ref(), Some(&page[1]));
    for which in [Notable::Slowest, Notable::Failing] {
        let found = database.notable(which, 0, 10).await.expect("lines");
        assert!(found.contains(&page[1]), "{which:?}: {found:?}");
    }
    let parts = database.parts(0, DAY_MS).await.expect("counts");
    let count = |word: EndWord| parts.iter().filter(|part| part.ended == word).map(|part| part.runs).sum::<u64>();
    assert_eq!((count(EndWord::FAILED), parts.iter().map(|part| part.runs).sum::<u64>()), (1, 3));
}

async fn keys_are_kept_for_a_day(base: Base) {
    let database = &base.database;
    let at = |unix_ms, digest| KeyRecord {
        owner: "ann".parse().expect("an owner"),
        key: "k".to_owned(),
        digest: [digest; 32],
        run: RunId::new(),
        conversation: None,
        unix_ms,
    };
    let (first, second) = (at(1000, 1), at(2000, 2));
    assert_eq!(database.keep(&first, 0).await.expect("stored"), None);
    assert_eq!(database.keep(&second, 0).await.expect("an answer").as_ref(), Some(&first));
    let other = KeyRecord { owner: "bob".parse().expect("an owner"), ..second.clone() };
    assert_eq!(database.keep(&other, 0).await.expect("stored"), None, "each owner has its own");
    database.release(&second).await.expect("nothing: it was not kept");
    assert_eq!(database.keys(0, 10).await.expect("keys"), [other.clone(), first]);
    assert_eq!(database.keep(&second, 1001).await.expect("stored"), None, "the first is too old");
    database.release(&second).await.expect("released");
    assert_eq!(database.keys(0, 10).await.expect("keys"), std::slice::from_ref(&other));
    assert_eq!(database.forget(2001, 10).await.expect("an answer"), 1);
    assert_eq!(database.keys(0, 10).await.expect("keys"), []);
}

/// With `LONG=1` a million lines; the times are printed.
async fn a_page_of_many_lines_is_found(base: Base) {
    let mut dice = Dice::new(6);
    let count = how_many(2000, 1_000_000);
    for _ in 0..count / 1000 {
        let lines = random_lines(1000, &mut dice);
        base.database.write(&lines).await.expect("stored");
    }
    let of = |text: &str| Some(text.parse().expect("a name"));
    let middle =
        base.database.page(&LineFilter::default(), count / 2).await.expect("a page").last().map(|line| line.run);
    for (name, filter) in [
        ("newest", LineFilter::default()),
        ("after half of them", LineFilter { after: middle, ..LineFilter::default() }),
        ("of an owner", LineFilter { owner: of("ann"), after: middle, ..LineFilter::default() }),
        ("of an unknown owner", LineFilter { owner: of("eve"), ..LineFilter::default() }),
        (
            "by two",
            LineFilter { owner: of("ann"), conversation: Some("d".parse().expect("an id")), ..LineFilter::default() },
        ),
        ("by end", LineFilter { ended: Some(EndWord::FAILED), after: middle, ..LineFilter::default() }),
        (
            "of an unused end",
            LineFilter { ended: Some("out_of_memory".parse().expect("a word")), ..LineFilter::default() },
        ),
    ] {
        let begun = Instant::now();
        let page = base.database.page(&filter, 51).await.expect("a page");
        println!("{name}: {} lines of {count} in {:?}", page.len(), begun.elapsed());
        assert!(page.iter().all(|line| matches(line, &filter)));
        let keys: BTreeSet<_> = page.iter().map(|line| line.run).collect();
        assert_eq!(keys.len(), page.len(), "{name}");
    }
}
