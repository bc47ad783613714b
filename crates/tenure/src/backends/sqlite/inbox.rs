//! How a client in another process hears: one FIFO for each client, beside the file.
//!
//! A FIFO without a reader means that nobody is there, which is how the store knows not to hand a lock to a
//! client that died. Messages may be lost (a full FIFO, a client that hangs): renewals heal that.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde::{Deserialize, Serialize};

use crate::backend::{Event, Listener};
use crate::error::{Certainty, Error, ErrorKind, Loss, Result};
use crate::machine::{Applied, Grant, Op, Outcome};
use crate::owner::ClaimId;

/// Writes up to this size are never mixed with another process's.
const MESSAGE_MAX: usize = 4096;
/// The most abandoned inboxes removed when a client opens the store.
const SWEEP_MAX: usize = 256;
/// How long a client takes to make its inbox, at the very most.
const UNREADY_MAX: Duration = Duration::from_secs(60);

/// A message: one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Granted {
        claim: ClaimId,
        grant: Grant,
        number: u64,
    },
    Broken {
        claim: ClaimId,
        by: String,
        reason: String,
    },
    /// To oneself: stop listening.
    Close,
}

impl Message {
    fn event(self) -> Option<Event> {
        match self {
            Self::Granted { claim, grant, number } => Some(Event::Granted { id: claim, grant, number }),
            Self::Broken { claim, by, reason } => Some(Event::Ended { id: claim, loss: Loss::Broken { by, reason } }),
            Self::Close => None,
        }
    }
}

/// The inbox of one client. Removed when dropped.
pub(super) struct Inbox {
    path: PathBuf,
    post: Post,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("path", &self.path).finish()
    }
}

/// Sends to inboxes.
#[derive(Clone)]
pub(super) struct Post {
    directory: PathBuf,
    own: Arc<str>,
    listener: Arc<OnceLock<Listener>>,
}

impl Inbox {
    /// Makes an inbox beside the store's file and starts to listen.
    pub(super) fn open(store: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Store, "no inbox can be made beside the store; make its directory writable")
                .with_certainty(Certainty::NotApplied)
                .because(error)
        };
        let mut directory = store.as_os_str().to_owned();
        directory.push("-inbox");
        let directory = PathBuf::from(directory);
        std::fs::create_dir_all(&directory).map_err(failed)?;
        remove_abandoned(&directory);
        let own: Arc<str> = format!("{:016x}", rand::random::<u64>()).into();
        let path = directory.join(&*own);
        // Made under another name: an inbox without a reader would be taken for an abandoned one.
        let unready = directory.join(format!("{own}.new"));
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, &unready, FileType::Fifo, mode, 0).map_err(|error| failed(error.into()))?;
        // Opened for writing too, so that it never reads an end of file when a sender leaves.
        let reader = OpenOptions::new().read(true).write(true).open(&unready).map_err(failed)?;
        std::fs::rename(&unready, &path).map_err(failed)?;
        let listener: Arc<OnceLock<Listener>> = Arc::default();
        let heard = listener.clone();
        let thread = std::thread::Builder::new().name("tenure-inbox".to_owned());
        thread.spawn(move || listen(reader, &heard)).map_err(failed)?;
        let post = Post { directory, own, listener };
        Ok(Self { path, post })
    }

    pub(super) fn listen(&self, listener: Listener) {
        drop(self.post.listener.set(listener));
    }

    pub(super) fn address(&self) -> Arc<str> {
        self.post.own.clone()
    }

    pub(super) fn post(&self) -> Post {
        self.post.clone()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if let Some(mut own) = open_for_writing(&self.path) {
            send(&mut own, &Message::Close);
        }
        drop(std::fs::remove_file(&self.path));
    }
}

fn listen(reader: File, listener: &OnceLock<Listener>) {
    for line in BufReader::new(reader).split(b'\n') {
        let Ok(line) = line else { return };
        // What is not a message of ours is nothing to us.
        match serde_json::from_slice(&line) {
            Ok(Message::Close) => return,
            Ok(message) => {
                if let (Some(listener), Some(event)) = (listener.get(), Message::event(message)) {
                    listener(event);
                }
            }
            Err(_) => {}
        }
    }
}

/// Removes inboxes that nobody reads: their clients were killed.
fn remove_abandoned(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.take(SWEEP_MAX).flatten() {
        let path = entry.path();
        let abandoned = match path.extension() {
            None => matches!(try_open(&path), Err(rustix::io::Errno::NXIO)),
            // Its client was killed while it made it, unless it is making it now.
            Some(_) => age(&entry).is_some_and(|age| age > UNREADY_MAX),
        };
        if abandoned {
            drop(std::fs::remove_file(path));
        }
    }
}

fn age(entry: &std::fs::DirEntry) -> Option<Duration> {
    entry.metadata().ok()?.modified().ok()?.elapsed().ok()
}

fn try_open(path: &Path) -> std::result::Result<File, rustix::io::Errno> {
    let open = OpenOptions::new().write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    open.map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
}

fn open_for_writing(path: &Path) -> Option<File> {
    try_open(path).ok()
}

fn send(inbox: &mut File, message: &Message) {
    let Ok(mut line) = serde_json::to_vec(message) else { return };
    line.push(b'\n');
    if line.len() <= MESSAGE_MAX {
        // A full inbox belongs to a client that hangs; it will ask when it wakes.
        drop(inbox.write_all(&line));
    }
}

impl Post {
    /// Sends what a transaction brought about. Called after its commit.
    pub(super) fn deliver(&self, mut news: News) {
        for (inbox, message) in std::mem::take(&mut news.messages) {
            if inbox == self.own {
                if let (Some(listener), Some(event)) = (self.listener.get(), message.event()) {
                    listener(event);
                }
                continue;
            }
            let opened = news.open.entry(inbox.clone()).or_insert_with(|| self.open(&inbox));
            if let Some(file) = opened {
                send(file, &message);
            }
        }
    }

    /// Opens a client's inbox. An address is a file name of ours, whatever the file says.
    fn open(&self, inbox: &str) -> Option<File> {
        let is_address = !inbox.is_empty() && inbox.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_address.then(|| open_for_writing(&self.directory.join(inbox))).flatten()
    }
}

/// What a transaction has to tell others, and the inboxes it has opened.
#[derive(Default)]
pub(super) struct News {
    messages: Vec<(Arc<str>, Message)>,
    open: HashMap<Arc<str>, Option<File>>,
}

impl News {
    /// Whether a client is there to hear.
    pub(super) fn hears(&mut self, post: &Post, inbox: &Arc<str>) -> bool {
        *inbox == post.own || self.open.entry(inbox.clone()).or_insert_with(|| post.open(inbox)).is_some()
    }

    pub(super) fn note(&mut self, applied: &Applied, op: &Op) {
        if let (Outcome::Evicted(evicted), Op::Break { by, reason, .. }) = (&applied.outcome, op) {
            for ended in evicted {
                let message = Message::Broken { claim: ended.id, by: by.to_string(), reason: reason.to_string() };
                self.messages.push((ended.inbox.clone(), message));
            }
        }
        for granted in &applied.grants {
            let message = Message::Granted { claim: granted.id, grant: granted.grant, number: granted.number };
            self.messages.push((granted.inbox.clone(), message));
        }
    }
}
