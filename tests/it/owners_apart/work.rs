//! What a server does for a request: its answer, its statements to the database, and what it opens below its root.
//!
//! Times are not compared: they differ by chance. Equal work and equal bytes leave nothing that a time could tell.

use std::{cell::Cell, collections::BTreeMap, mem::MaybeUninit, os::fd::OwnedFd, path::Path};

use reqwest::RequestBuilder;
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};

use crate::support::postgres::Postgres;

/// Headers that differ between any two answers.
const OF_ONE: [&str; 2] = ["date", "x-request-id"];

/// What a request led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    pub status: u16,
    headers: BTreeMap<String, String>,
    pub body: String,
    pub statements: Vec<String>,
    pub files: Vec<String>,
}

pub struct Observer<'a> {
    cluster: &'a Postgres,
    /// Read so far of the cluster's log.
    read: Cell<usize>,
    watch: OwnedFd,
    /// The folders that are watched.
    folders: BTreeMap<i32, String>,
    /// The owner who asks: the server's own statements name none.
    owner: &'static str,
}

impl<'a> Observer<'a> {
    /// Observes the folders that these owners have now.
    pub fn new(cluster: &'a Postgres, root: &Path, owner: &'static str, owners: &[&str]) -> Self {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).expect("inotify");
        let mut observer = Self { cluster, read: Cell::new(0), watch, folders: BTreeMap::new(), owner };
        for owner in owners {
            observer.add(&root.join(format!("@{owner}")), root);
        }
        observer
    }

    /// Where its statements are told: for the connections of the server.
    pub fn url(cluster: &Postgres) -> String {
        format!("{}&options=-c%20log_statement=all", cluster.url())
    }

    fn add(&mut self, folder: &Path, root: &Path) {
        let number = inotify::add_watch(&self.watch, folder, WatchFlags::ALL_EVENTS).expect("a watch");
        let name = folder.strip_prefix(root).expect("below the root").display().to_string();
        self.folders.insert(number, name);
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.add(&entry.path(), root);
            }
        }
    }

    /// Sends a request; in what it led to, `id` is no more than a word.
    pub async fn done(&self, request: RequestBuilder, id: &str) -> Done {
        self.statements(id);
        self.files();
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let text = |value: &reqwest::header::HeaderValue| value.to_str().expect("text").replace(id, "ID");
        let all = answer.headers().iter().map(|(name, value)| (name.to_string(), text(value)));
        let mut headers: BTreeMap<_, _> = all.collect();
        let of_one = OF_ONE.map(|name| headers.remove(name).unwrap_or_default());
        let body = answer.text().await.expect("text");
        // A session has the id of its kernel without hyphens.
        let body = body.replace(id, "ID").replace(&id.replace('-', ""), "ID").replace(&of_one[1], "REQUEST");
        let statements = self.statements(id).into_iter().map(|statement| statement.replace(id, "ID")).collect();
        let files = self.files().into_iter().map(|event| event.replace(id, "ID")).collect();
        Done { status, headers, body, statements, files }
    }

    /// The statements since the last call that name the owner who asks or the id, with their parameters.
    fn statements(&self, id: &str) -> Vec<String> {
        let log = self.cluster.log();
        let new = log.get(self.read.replace(log.len())..).unwrap_or_default().to_owned();
        let mut all: Vec<String> = Vec::new();
        for line in new.lines() {
            if let Some((_, statement)) = line.split_once("LOG:  execute ") {
                // The name of a prepared statement counts up. From PostgreSQL 16 on, parameters have a capital letter.
                all.push(statement.split_once(": ").map_or(statement, |(_, text)| text).to_owned());
            } else if let (Some((_, values)), Some(last)) = (line.split_once("arameters: "), all.last_mut()) {
                last.push_str(" -- ");
                last.push_str(values);
            }
        }
        let names = [self.owner, id].map(|name| format!("'{name}'"));
        all.retain(|statement| names.iter().any(|name| statement.contains(name)));
        all
    }

    /// What happened in the folders since the last call.
    fn files(&self) -> Vec<String> {
        let mut buffer = [MaybeUninit::uninit(); 8 << 10];
        let mut reader = Reader::new(&self.watch, &mut buffer);
        let mut all = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                    assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW), "too much happened");
                    all.push(format!("{}/{name}: {:?}", self.folders[&event.wd()], event.events()));
                }
                Err(Errno::AGAIN) => return all,
                Err(error) => panic!("{error}"),
            }
        }
    }
}
