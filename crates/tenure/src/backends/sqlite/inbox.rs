//! How a client in another process hears: one FIFO for each client, beside the file.
//!
//! A FIFO without a reader means that nobody is there, which is how the store knows not to hand a lock to a
//! client that died. Messages may be lost (a full FIFO, a client that hangs): renewals heal that.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde::{Deserialize, Serialize};

use super::place;
use crate::backend::{Event, Listener};
use crate::error::{Certainty, Error, ErrorKind, Loss, Result};
use crate::machine::{Applied, Grant, Op, Outcome};
use crate::owner::ClaimId;

/// Writes up to this size are never mixed with another process's.
const MESSAGE_MAX: usize = 4096;
/// The most inboxes looked at for abandoned ones when a client opens the store.
const SWEEP_MAX: usize = 4096;
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
        number: u64,
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
            Self::Broken { claim, number, by, reason } => {
                Some(Event::Ended { id: claim, number, loss: Loss::Broken { by, reason } })
            }
            Self::Close => None,
        }
    }
}

/// The inbox of one client. Removed when dropped.
pub(super) struct Inbox {
    path: PathBuf,
    post: Post,
    closed: Arc<AtomicBool>,
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
        let mut directory = store.as_os_str().to_owned();
        directory.push("-inbox");
        let directory = PathBuf::from(directory);
        let shown = directory.display().to_string();
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Store, format!("no inbox can be made in {shown}; make it writable for this user"))
                .with_certainty(Certainty::NotApplied)
                .because(error)
        };
        make_directory(&directory, store).map_err(failed)?;
        remove_abandoned(&directory);
        let own: Arc<str> = format!("{:016x}", rand::random::<u64>()).into();
        let path = directory.join(&*own);
        // Made under another name: an inbox without a reader would be taken for an abandoned one.
        let unready = directory.join(format!("{own}.new"));
        mknodat(CWD, &unready, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(|error| failed(error.into()))?;
        // Opened for writing too, so that it never reads an end of file when a sender leaves.
        let reader = OpenOptions::new().read(true).write(true).open(&unready).map_err(failed)?;
        // Whoever may write the store may write to its clients, whatever the umask.
        let mode = std::fs::metadata(store).map_err(failed)?.permissions().mode() & 0o666;
        reader.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        std::fs::rename(&unready, &path).map_err(failed)?;
        let listener: Arc<OnceLock<Listener>> = Arc::default();
        let heard = listener.clone();
        let thread = std::thread::Builder::new().name("tenure-inbox".to_owned());
        let closed: Arc<AtomicBool> = Arc::default();
        let closing = closed.clone();
        thread.spawn(move || listen(reader, &heard, &closing)).map_err(failed)?;
        let post = Post { directory, own, listener };
        Ok(Self { path, post, closed })
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
        self.closed.store(true, Ordering::Release);
        // Wakes the listener; if the inbox is full it is awake already.
        if let Ok(mut own) = try_open(&self.path) {
            send(&mut own, &Message::Close);
        }
        drop(std::fs::remove_file(&self.path));
    }
}

fn listen(reader: File, listener: &OnceLock<Listener>, closed: &AtomicBool) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while !closed.load(Ordering::Acquire) {
        line.clear();
        // What is longer than a message is read in pieces, none of which is one.
        let limit = u64::try_from(MESSAGE_MAX).unwrap_or(u64::MAX);
        if reader.by_ref().take(limit).read_until(b'\n', &mut line).is_err() {
            return;
        }
        // What is not a message of ours is nothing to us.
        match serde_json::from_slice(&line) {
            Ok(Message::Close) | Err(_) => {}
            Ok(message) => {
                if let (Some(listener), Some(event)) = (listener.get(), Message::event(message)) {
                    listener(event);
                }
            }
        }
    }
}

/// Makes the directory for whoever may write the store's own directory.
fn make_directory(directory: &Path, store: &Path) -> std::io::Result<()> {
    match std::fs::create_dir(directory) {
        Ok(()) => {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let made = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(directory)?;
            place::share(&made, store)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
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

fn send(inbox: &mut File, message: &Message) {
    let Ok(mut line) = serde_json::to_vec(message) else { return };
    line.push(b'\n');
    if line.len() <= MESSAGE_MAX {
        // A full inbox belongs to a client that hangs; it will ask when it wakes.
        drop(inbox.write_all(&line));
    }
}

/// What was found when an inbox was opened.
enum Reached {
    Open(File),
    /// Somebody may be there, but cannot be told: another user's, say. The renewal tells it.
    Unsure,
    Nobody,
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
            if let Reached::Open(file) = news.reached(self, &inbox) {
                send(file, &message);
            }
        }
    }

    /// Opens a client's inbox. An address is a file name of ours, whatever the file says.
    fn open(&self, inbox: &str) -> Reached {
        use rustix::io::Errno;
        if inbox.is_empty() || !inbox.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Reached::Nobody;
        }
        match try_open(&self.directory.join(inbox)) {
            Ok(file) => Reached::Open(file),
            Err(Errno::NXIO | Errno::NOENT) => Reached::Nobody,
            Err(_) => Reached::Unsure,
        }
    }
}

/// What a transaction has to tell others, and the inboxes it has opened.
#[derive(Default)]
pub(super) struct News {
    messages: Vec<(Arc<str>, Message)>,
    open: HashMap<Arc<str>, Reached>,
}

impl News {
    /// Whether a client is there to hear.
    pub(super) fn hears(&mut self, post: &Post, inbox: &Arc<str>) -> bool {
        *inbox == post.own || !matches!(self.reached(post, inbox), Reached::Nobody)
    }

    fn reached(&mut self, post: &Post, inbox: &Arc<str>) -> &mut Reached {
        self.open.entry(inbox.clone()).or_insert_with(|| post.open(inbox))
    }

    pub(super) fn note(&mut self, applied: &Applied, op: &Op) {
        if let (Outcome::Evicted(evicted), Op::Break { by, reason, .. }) = (&applied.outcome, op) {
            for ended in evicted {
                let message = Message::Broken {
                    claim: ended.id,
                    number: ended.number,
                    by: by.to_string(),
                    reason: reason.to_string(),
                };
                self.messages.push((ended.inbox.clone(), message));
            }
        }
        if let (Outcome::WaiterEnded { id, inbox, number }, Op::BreakWaiter { by, reason, .. }) = (&applied.outcome, op)
        {
            let (claim, number, by, reason) = (*id, *number, by.to_string(), reason.to_string());
            self.messages.push((inbox.clone(), Message::Broken { claim, number, by, reason }));
        }
        for granted in &applied.grants {
            let message = Message::Granted { claim: granted.id, grant: granted.grant, number: granted.number };
            self.messages.push((granted.inbox.clone(), message));
        }
    }
}
