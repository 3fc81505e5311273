//! A socket between two of our processes that carries messages and descriptors, and never blocks its sender.
//!
//! A message is its length (u32, little-endian) and JSON. Descriptors travel beside the first byte of their message.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most descriptors that one message may carry: stdin and the descriptors to hold.
pub(crate) const MAX_FDS: usize = 16;
/// Above what any system accepts as arguments and environment, written as JSON.
const MAX_MESSAGE: usize = 64 << 20;
/// A broken pipe is an error to report, not a signal to die of. (Elsewhere the runtime of Rust ignores the signal.)
#[cfg(target_os = "linux")]
const SEND: SendFlags = SendFlags::NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const SEND: SendFlags = SendFlags::empty();

#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    output: VecDeque<Frame>,
    input: Vec<u8>,
    received_fds: Vec<OwnedFd>,
    closed: bool,
}

#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

impl Channel {
    /// A channel over one end of a socket pair.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        Ok(Channel {
            stream,
            output: VecDeque::new(),
            input: Vec::new(),
            received_fds: Vec::new(),
            closed: false,
        })
    }

    /// Queues a message and sends what the socket takes. If the other side is gone the message is dropped:
    /// the end of the channel tells that, on the receiving side.
    pub(crate) fn send(&mut self, message: &impl Serialize, fds: Vec<OwnedFd>) -> io::Result<()> {
        let json = serde_json::to_vec(message)?;
        let len = u32::try_from(json.len()).ok().filter(|len| *len as usize <= MAX_MESSAGE);
        let len = len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "message too long"))?;
        if fds.len() > MAX_FDS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors in one message"));
        }
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend_from_slice(&json);
        self.output.push_back(Frame { bytes, sent: 0, fds });
        self.flush();
        Ok(())
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) {
        while let Some(frame) = self.output.front_mut() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds: Vec<BorrowedFd<'_>> = frame.fds.iter().map(AsFd::as_fd).collect();
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&fds));
            }
            match sendmsg(&self.stream, &[IoSlice::new(&frame.bytes[frame.sent..])], &mut control, SEND) {
                Ok(sent) => {
                    frame.fds.clear();
                    frame.sent += sent;
                    if frame.sent == frame.bytes.len() {
                        self.output.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.output.clear(),
            }
        }
    }

    /// Whether everything queued was sent, or can no longer be.
    pub(crate) fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    /// What to poll this channel for.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.is_flushed() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// The next message and the descriptors received so far, if one is complete. Does not block.
    ///
    /// # Errors
    /// If the bytes are no message of ours.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            if !self.fill() {
                return Ok(None);
            }
        }
    }

    /// Whether the other side is gone, or unusable, and everything it sent was received.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The descriptors that came with the messages received so far.
    pub(crate) fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.received_fds)
    }

    fn take_message<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some((len, rest)) = self.input.split_first_chunk() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > MAX_MESSAGE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a message"));
        }
        let Some(json) = rest.get(..len) else { return Ok(None) };
        let message = serde_json::from_slice(json)?;
        self.input.drain(..4 + len);
        Ok(Some(message))
    }

    /// Reads once; false if there is nothing to read now.
    fn fill(&mut self) -> bool {
        let mut bytes = [0; 16 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        #[cfg(target_os = "linux")]
        let flags = RecvFlags::CMSG_CLOEXEC;
        #[cfg(not(target_os = "linux"))]
        let flags = RecvFlags::empty();
        match recvmsg(&self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(received) if received.bytes > 0 => {
                self.input.extend_from_slice(&bytes[..received.bytes]);
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = message {
                        self.received_fds.extend(fds);
                    }
                }
                true
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            // The end of the stream, or a reset: the other side died with messages of ours unread.
            Ok(_) | Err(_) => {
                self.closed = true;
                false
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    fn pair() -> (Channel, Channel) {
        let (left, right) = UnixStream::pair().unwrap();
        (Channel::new(left).unwrap(), Channel::new(right).unwrap())
    }

    #[test]
    fn messages_and_descriptors_arrive_in_order() {
        let (mut left, mut right) = pair();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "held").unwrap();
        left.send(&"one", vec![File::open(file.path()).unwrap().into()]).unwrap();
        left.send(&2, vec![]).unwrap();
        assert_eq!(right.receive::<String>().unwrap().unwrap(), "one");
        let mut text = String::new();
        File::from(right.take_fds().pop().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "held");
        assert_eq!(right.receive::<u32>().unwrap(), Some(2));
        assert_eq!(right.receive::<u32>().unwrap(), None);
        assert!(!right.is_closed());
        drop(left);
        assert_eq!(right.receive::<u32>().unwrap(), None);
        assert!(right.is_closed());
    }

    #[test]
    fn a_message_larger_than_the_socket_does_not_block_the_sender() {
        let (mut left, mut right) = pair();
        let long = "x".repeat(3 << 20);
        left.send(&long, vec![]).unwrap();
        assert!(!left.is_flushed());
        let received = loop {
            if let Some(message) = right.receive::<String>().unwrap() {
                break message;
            }
            left.flush();
        };
        assert!(received == long && left.is_flushed());
    }

    #[test]
    fn sending_to_a_side_that_is_gone_neither_fails_nor_kills() {
        let (mut left, right) = pair();
        drop(right);
        left.send(&1, vec![]).unwrap();
        assert!(left.is_flushed());
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error() {
        let (left, right) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &left, &[0xff; 64]).unwrap();
        assert!(Channel::new(right).unwrap().receive::<u32>().is_err());
    }
}
