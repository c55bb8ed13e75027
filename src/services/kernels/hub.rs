//! One kernel and its connected clients: who gets which message, and when code may run.
//!
//! Broadcasts of a kernel go to all clients, replies and questions to the client that sent the request. The hub always
//! reads the kernel and waits for no client: one that does not read is disconnected. Code waits for the turn of its
//! conversation, which is held until all code that was sent has ended; later messages of the client on the same channel
//! wait behind the code. A turn belongs to one token, so cells that run in one turn have the same token: they count for
//! its limits and stop when it ends.

mod shell;

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ConnectionEnd, Hub, Inner, QuestionLine,
    answers::KernelSender,
    cells::Cells,
    order::{Order, OrderReceiver, orders},
    turn::{TurnChange, TurnState},
    unread::{Gap, Kept, Unread},
};
use crate::{
    domain::{Code, Failure},
    services::{
        runs::Runs,
        sessions::{
            KernelLink, MessageSender, OomKills, SessionEnd,
            message::{Channel, KernelMessage},
            printed_bytes,
        },
    },
};

/// The header of a cell that has ended, and a line beside its output.
type Note = (Bytes, String);

/// A connected client.
pub(super) struct Client {
    /// Its own id, or one that it gets for this connection.
    pub(super) name: String,
    pub(super) queue: MessageSender,
    /// Where it can come back under its name.
    pub(super) unread: Option<Unread>,
    pub(super) end: Arc<OnceLock<ConnectionEnd>>,
}

/// For the client that disconnected last, while none is connected.
struct Buffer {
    name: String,
    /// What its connection has not written.
    unread: Unread,
    /// What came after that.
    later: Kept,
}

pub(super) struct HubTask {
    runs: Runs,
    question_line: QuestionLine,
    /// To the session's kernel, and to its last one while it has none.
    link: KernelLink,
    new_clients: mpsc::UnboundedReceiver<Client>,
    orders: OrderReceiver,
    /// Why the kernel before this one ended.
    last_end: SessionEnd,
    /// Counts the restarts under way that clients of Jupyter asked for.
    restarts: TaskTracker,
    clients: Vec<Client>,
    buffer: Option<Buffer>,
    sender: KernelSender,
    cells: Cells,
    turn: TurnState,
    /// On the shell channel, not passed on yet.
    shell: VecDeque<Order>,
    outbox: VecDeque<KernelMessage>,
    /// Messages of the control and stdin channels. They go before the others.
    urgent: VecDeque<KernelMessage>,
    notes: (mpsc::UnboundedSender<Note>, mpsc::UnboundedReceiver<Note>),
    /// The header of the cell that was reported last.
    reported: Bytes,
    /// That of the cell whose connections and calls are reported.
    watched: Option<Bytes>,
    oom_kills: OomKills,
}

impl Client {
    fn leave(&self, end: ConnectionEnd) {
        // Only the first reason counts.
        let _ = self.end.set(end);
    }
}

impl Inner {
    pub(super) fn begin(&self, link: KernelLink) -> Hub {
        let (clients, new_clients) = mpsc::unbounded_channel();
        let (orders, new_orders) = orders();
        let restarts = TaskTracker::new();
        let task = HubTask {
            runs: self.runs.clone(),
            question_line: self.question_line,
            link,
            new_clients,
            orders: new_orders,
            last_end: SessionEnd::Server,
            restarts: restarts.clone(),
            clients: Vec::new(),
            buffer: None,
            sender: KernelSender::default(),
            cells: Cells::default(),
            turn: TurnState::None,
            shell: VecDeque::new(),
            outbox: VecDeque::new(),
            urgent: VecDeque::new(),
            notes: mpsc::unbounded_channel(),
            reported: Bytes::from_static(b"{}"),
            watched: None,
            oom_kills: OomKills::default(),
        };
        self.tasks.spawn(task.run(self.tasks.stop.clone()));
        Hub { clients, orders, connections: TaskTracker::new(), restarts }
    }
}

impl HubTask {
    async fn run(mut self, stop: CancellationToken) {
        let end = stop.run_until_cancelled(self.follow()).await;
        self.end(&end.map_or(ConnectionEnd::Stopping, |end| ConnectionEnd::Ended(end.reason())));
    }

    /// Serves one kernel of the session after the other; how the last one ended.
    async fn follow(&mut self) -> SessionEnd {
        loop {
            self.serve().await;
            let end = self.runs.sessions().ended(&self.link).await;
            if matches!(self.turn, TurnState::Held { .. })
                && let Some(line) = self.runs.sessions().lost_files()
            {
                self.note(line);
            }
            let lost = self.take_lost(end);
            self.refuse(lost, &Failure::new(Code::SessionEnded, end.sentence()));
            match self.restarted().await {
                Ok(next) => self.link = next,
                Err(end) => {
                    self.accept();
                    self.deliver(None, &self.sender.status("dead"));
                    return end;
                }
            }
        }
    }

    /// Accepts clients that are still waiting, and sends all of them the reason of the end.
    fn end(&mut self, end: &ConnectionEnd) {
        drop(self.take_lost(SessionEnd::Server));
        self.new_clients.close();
        self.accept();
        self.clients.drain(..).for_each(|client| client.leave(end.clone()));
    }

    fn accept(&mut self) {
        while let Ok(client) = self.new_clients.try_recv() {
            self.connect(client);
        }
    }

    /// The next kernel of the session, if it is restarted. Clients come meanwhile, and what they send is held.
    async fn restarted(&mut self) -> Result<KernelLink, SessionEnd> {
        let (sessions, ended) = (self.runs.sessions().clone(), Arc::clone(&self.link.session));
        let mut next = std::pin::pin!(sessions.next_link(&ended));
        // JupyterLab takes this status for a death, so it is for restarts that no client of Jupyter asked for.
        let mut is_announced = !self.restarts.is_empty();
        loop {
            if !is_announced && sessions.restarting(&ended.conversation.owner).iter().any(|(id, ..)| *id == ended.id) {
                is_announced = true;
                self.deliver(None, &self.sender.status("restarting"));
            }
            let capacity = self.capacity();
            tokio::select! {
                biased;
                Some(client) = self.new_clients.recv() => self.connect(client),
                next = &mut next => return next,
                Some(order) = self.orders.next(capacity) => self.take(order),
            }
        }
    }

    /// Relays until the kernel has ended.
    async fn serve(&mut self) {
        let outgoing = self.link.outgoing.clone();
        loop {
            self.advance();
            let (capacity, due) = (self.capacity(), self.cells.next_due());
            tokio::select! {
                message = self.link.subscription.next() => match message {
                    Some(message) => self.relay(&message),
                    None => return,
                },
                Some(client) = self.new_clients.recv() => self.connect(client),
                Some(order) = self.orders.next(capacity) => {
                    self.link.session.touch();
                    self.take(order);
                }
                permit = outgoing.reserve(), if !self.outbox.is_empty() || !self.urgent.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(message) = self.urgent.pop_front().or_else(|| self.outbox.pop_front()) {
                            permit.send(message);
                        }
                    }
                    // The kernel takes nothing any more, and is about to end.
                    Err(_) => self.clear_outbox(),
                },
                change = self.turn.change() => match change {
                    TurnChange::Came(Ok((turn, busy))) => {
                        self.turn = TurnState::held(turn, busy);
                        // What was killed for memory before this turn is not counted for its first cell.
                        self.cells.ask_before();
                        self.outbox.push_back(KernelLink::ask_figures());
                    }
                    TurnChange::Came(Err(failure)) => self.refuse_waiting(&failure),
                    TurnChange::Stopped(reason) => self.stop_cells(&reason),
                },
                Some((parent, note)) = self.notes.1.recv() => self.deliver(None, &self.sender.note(parent, &note)),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }

    fn connect(&mut self, client: Client) {
        let Kept { mut messages, gap, .. } = self.missed(&client.name);
        self.clients.retain(|other| !other.queue.is_closed());
        if let Some(Gap { at, count, parent }) = gap {
            let note = format!("[{count} messages were left out while this client did not read or was away.]\n");
            messages.insert(at, self.sender.note(parent, &note));
        }
        for message in &messages {
            // There is room for all of it in an empty queue.
            client.queue.try_send(message);
        }
        self.clients.push(client);
    }

    /// What was not sent to the client of this name. Its earlier connection ends.
    fn missed(&mut self, name: &str) -> Kept {
        let buffer = self.buffer.take().filter(|buffer| buffer.name == name);
        if let Some(at) = self.clients.iter().position(|other| other.name == name) {
            let before = self.clients.remove(at);
            before.leave(ConnectionEnd::Replaced);
            return before.unread.as_ref().map(Unread::take).unwrap_or_default();
        }
        let Some(Buffer { unread, later, .. }) = buffer else { return Kept::default() };
        let mut missed = unread.take();
        missed.append(later);
        missed
    }

    /// Takes a message of a client, which may have left since.
    fn take(&mut self, order: Order) {
        // Its client came before it, but through another channel.
        self.accept();
        if !self.orders.is_for_this_kernel(&order) {
            return self.refuse_late(order);
        }
        match order.message.channel {
            Channel::Shell => return self.take_shell(order),
            Channel::Control => self.cells.asked(order.header.msg_id, order.client),
            _ => self.cells.answered(),
        }
        self.urgent.push_back(order.message);
    }

    fn clear_outbox(&mut self) {
        self.outbox.clear();
        self.urgent.clear();
    }

    /// Relays one message of the kernel; before its idle status also the refusals of a cell's connections, since
    /// clients take it for the end.
    fn relay(&mut self, message: &KernelMessage) {
        let (header, parent) = (message.read_header(), message.read_parent());
        if message.channel == Channel::Bridge {
            match header.msg_type.as_str() {
                // A text that was cut has a mark.
                "dropped" if message.read_content()["bytes"] != 0 => {
                    self.note("[Some output was lost: it came too fast.]\n");
                }
                "figures" => self.measured(&message.read_content()),
                _ => {}
            }
            return;
        }
        self.sender.learn_session(&header);
        if message.channel == Channel::Iopub {
            if matches!(header.msg_type.as_str(), "stream" | "display_data" | "execute_result" | "error") {
                self.cells.printed(&parent.msg_id, || printed_bytes(&header.msg_type, &message.read_content()));
            }
            if header.msg_type == "status" && message.read_content()["execution_state"] == "idle" {
                let cell = self.cells.idle(&parent.msg_id);
                if let Some(header) = cell.filter(|header| self.watched.as_ref() == Some(header)) {
                    self.note_all(&header, self.link.reporter.take_refusals());
                }
            }
            return self.deliver(None, message);
        }
        if message.channel == Channel::Stdin {
            self.cells.questioned(&parent.msg_id, message);
        }
        if header.msg_type == "execute_reply" {
            self.cells.replied(&parent.msg_id, || message.read_content());
        }
        self.cells.open.iter_mut().for_each(|cell| cell.progress.observe(message));
        if let Some(asker) = self.cells.asker(&parent.msg_id, message.channel != Channel::Stdin) {
            self.deliver(Some(&asker), message);
        }
    }

    /// Hands a message to one client or to all. The last one that left and can come back finds it then.
    fn deliver(&mut self, to: Option<&str>, message: &KernelMessage) {
        let mut left = None;
        self.clients.retain(|client| {
            let is_for = to.is_none_or(|name| name == client.name);
            let stays = if is_for { client.queue.try_send(message) } else { !client.queue.is_closed() };
            if !stays {
                client.leave(ConnectionEnd::NotRead);
                let unread = client.unread.clone().map(|unread| (client.name.clone(), unread));
                left = unread.or(left.take());
            }
            stays
        });
        if let Some((name, unread)) = left.filter(|_| self.clients.is_empty()) {
            self.buffer = Some(Buffer { name, unread, later: Kept::default() });
        }
        if let Some(buffer) = self.buffer.as_mut().filter(|buffer| to.is_none_or(|name| name == buffer.name)) {
            buffer.later.push(message);
        }
    }

    /// Sends a text to the clients that watch the cell that runs, or that has replied last and is not over.
    fn note(&mut self, text: &str) {
        let running = self.cells.running().map(|cell| cell.header.clone());
        let replied = || self.cells.open.last().map(|cell| cell.header.clone());
        let parent = running.or_else(replied).unwrap_or(Bytes::from_static(b"{}"));
        self.deliver(None, &self.sender.note(parent, text));
    }

    /// Sends lines beside the output of a cell.
    fn note_all(&mut self, cell: &Bytes, lines: Vec<String>) {
        for line in lines {
            self.deliver(None, &self.sender.note(cell.clone(), &line));
        }
    }

    /// Reports to clients why their code, named by its header, has no answer of the kernel.
    fn refuse(&mut self, code: impl IntoIterator<Item = (String, Bytes)>, failure: &Failure) {
        for (client, header) in code {
            for answer in self.sender.refusal(&header, failure) {
                self.deliver((answer.channel == Channel::Shell).then_some(client.as_str()), &answer);
            }
        }
    }
}
