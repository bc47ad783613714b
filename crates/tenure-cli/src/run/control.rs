//! What `tenure run` and its guardian say to each other: lines of JSON over a socket pair.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What the guardian is told. Moments are microseconds on the boot-time clock.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Start the command. Its stdin comes with the message.
    Start {
        /// What to add to its environment; null unsets.
        env: BTreeMap<String, Option<String>>,
        deadline_us: u64,
        grace_us: u64,
        /// Whether another run encloses this one.
        nested: bool,
        /// Whether what the command leaves running when it ends is ended too.
        #[serde(default)]
        whole: bool,
    },
    /// The lease is good until then.
    Deadline(u64),
    /// The lease is lost: stop the command now.
    Term,
    /// The command was told to end (SIGTERM, passed on): if we are killed now, there is no need to ask it again.
    Told,
}

/// What the guardian tells.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The command runs; its pid is its group's.
    Pid(i32),
    /// The command could not be started; the exit code that says so.
    Failed { message: String, code: u8 },
    /// The lease was not renewed in time, so the command was told to stop.
    Overdue,
    /// A signal stopped the command (it may be continued).
    Stopped(i32),
    /// The command exited.
    Exited(i32),
    /// A signal ended the command.
    Signaled(i32),
}

/// One message, as a line.
pub(crate) fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Puts lines together from whatever pieces arrive.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }

    /// The next message, if a whole line is there.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Option<io::Result<T>> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Some(serde_json::from_slice(&line).map_err(io::Error::from))
    }
}

/// Sends bytes without waiting; with `passenger`, that descriptor goes with them.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], passenger: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passengers = passenger.as_slice();
    if !passengers.is_empty() && !control.push(SendAncillaryMessage::ScmRights(passengers)) {
        return Err(io::Error::other("no room for the descriptor"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut sent = 0;
    while sent < bytes.len() {
        let rest = [IoSlice::new(bytes.get(sent..).unwrap_or_default())];
        sent += sendmsg(&socket, &rest, &mut control, flags)?;
        // It has left with the first piece.
        control.clear();
    }
    Ok(())
}

/// Receives what is there. Zero bytes: the other side is gone.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let passenger = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, passenger))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_survive_being_cut_anywhere() {
        let orders = [
            Order::Start {
                env: [("A".to_owned(), None)].into(),
                deadline_us: 7,
                grace_us: 1,
                nested: false,
                whole: true,
            },
            Order::Deadline(u64::MAX),
            Order::Term,
            Order::Told,
        ];
        let bytes: Vec<u8> = orders.iter().flat_map(|order| line(order).unwrap()).collect();
        for cut in 0..bytes.len() {
            let mut lines = Lines::default();
            let mut heard: Vec<Order> = Vec::new();
            for piece in [&bytes[..cut], &bytes[cut..]] {
                lines.push(piece);
                heard.extend(std::iter::from_fn(|| lines.next().map(Result::unwrap)));
            }
            assert_eq!(heard, orders);
        }
    }

    #[test]
    fn a_descriptor_travels_with_a_message() {
        let (here, there) = UnixStream::pair().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        send(&here, b"with\n", Some(reader.as_fd())).unwrap();
        drop(reader);
        let mut buffer = [0; 64];
        let (count, passenger) = receive(&there, &mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"with\n");
        writer.write_all(b"x").unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(passenger.unwrap(), &mut byte).unwrap(), 1);
    }
}
