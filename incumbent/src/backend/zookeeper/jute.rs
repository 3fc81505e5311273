//! ZooKeeper's records on the wire: the few requests that an election needs, and their answers.

use incumbent_core::ephemeral::Written;

use crate::clock;

/// Numbers of the requests.
pub(super) mod op {
    pub(in super::super) const CREATE: i32 = 1;
    pub(in super::super) const DELETE: i32 = 2;
    pub(in super::super) const EXISTS: i32 = 3;
    pub(in super::super) const GET_DATA: i32 = 4;
    pub(in super::super) const SET_DATA: i32 = 5;
    pub(in super::super) const GET_CHILDREN: i32 = 8;
    pub(in super::super) const PING: i32 = 11;
    pub(in super::super) const MULTI: i32 = 14;
    pub(in super::super) const CREATE2: i32 = 15;
    pub(in super::super) const AUTH: i32 = 100;
    pub(in super::super) const SET_WATCHES: i32 = 101;
    pub(in super::super) const CLOSE: i32 = -11;
    pub(in super::super) const ERROR: i32 = -1;
}

/// Numbers that answers to no request of the caller carry, and requests outside the count.
pub(super) mod xid {
    pub(in super::super) const EVENT: i32 = -1;
    pub(in super::super) const PING: i32 = -2;
    pub(in super::super) const AUTH: i32 = -4;
    pub(in super::super) const SET_WATCHES: i32 = -8;
}

/// What a server answers instead of a result.
pub(super) mod code {
    pub(in super::super) const OK: i32 = 0;
    pub(in super::super) const NO_NODE: i32 = -101;
    pub(in super::super) const NO_AUTH: i32 = -102;
    pub(in super::super) const BAD_VERSION: i32 = -103;
    pub(in super::super) const NODE_EXISTS: i32 = -110;
    pub(in super::super) const SESSION_EXPIRED: i32 = -112;
    pub(in super::super) const AUTH_FAILED: i32 = -115;
    pub(in super::super) const SESSION_MOVED: i32 = -118;
}

/// The longest answer that is read; a server's own limit is 1 MiB unless an operator has raised it.
pub(super) const FRAME_MAX: usize = 16 << 20;

/// A record under construction.
#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn request(xid: i32, op: i32) -> Writer {
        Writer::default().int(xid).int(op)
    }

    pub(super) fn int(mut self, value: i32) -> Writer {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, value: i64) -> Writer {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn bool(mut self, value: bool) -> Writer {
        self.0.push(value.into());
        self
    }

    pub(super) fn bytes(self, value: &[u8]) -> Writer {
        // What is sent is far below this limit.
        let mut out = self.int(i32::try_from(value.len()).unwrap_or(i32::MAX));
        out.0.extend_from_slice(value);
        out
    }

    pub(super) fn text(self, value: &str) -> Writer {
        self.bytes(value.as_bytes())
    }

    pub(super) fn texts<'a>(self, values: impl ExactSizeIterator<Item = &'a str>) -> Writer {
        let count = i32::try_from(values.len()).unwrap_or(i32::MAX);
        values.fold(self.int(count), Writer::text)
    }

    pub(super) fn append(mut self, other: Writer) -> Writer {
        self.0.extend(other.0);
        self
    }

    #[cfg(test)]
    pub(super) fn into_body(self) -> Vec<u8> {
        self.0
    }

    /// With its length in front.
    pub(super) fn into_frame(self) -> Vec<u8> {
        let mut frame = Writer::default().int(i32::try_from(self.0.len()).unwrap_or(i32::MAX)).0;
        frame.extend(self.0);
        frame
    }
}

/// A record that is read. Every method gives `None` where the record is too short or makes no sense.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn long(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn bool(&mut self) -> Option<bool> {
        Some(self.take(1)?[0] != 0)
    }

    /// A length of -1 stands for nothing.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        match self.int()? {
            -1 => Some(&[]),
            count => self.take(count.try_into().ok()?),
        }
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    /// A length of -1 stands for nothing.
    pub(super) fn texts(&mut self) -> Option<Vec<String>> {
        match self.int()? {
            -1 => Some(Vec::new()),
            count => (0..u32::try_from(count).ok()?).map(|_| self.text()).collect(),
        }
    }

    pub(super) fn stat(&mut self) -> Option<Stat> {
        let (created, modified) = (self.long()?, self.long()?);
        self.take(16)?;
        let version = self.int()?;
        self.take(8)?;
        let owner = self.long()?;
        self.take(16)?;
        Some(Stat { created, modified, version, owner })
    }
}

/// What ZooKeeper knows of a node, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stat {
    /// The transaction that created it (`czxid`).
    pub(super) created: i64,
    /// The transaction that changed it last (`mzxid`).
    pub(super) modified: i64,
    /// How often its content was written.
    pub(super) version: i32,
    /// The session that it ends with; 0: none.
    pub(super) owner: i64,
}

impl Stat {
    /// As the answer to a write that has just come.
    pub(super) fn written(&self) -> Written {
        Written { created: self.created, owner: self.owner, at: clock::now() }
    }
}

/// Who may do what with a node that is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acl {
    /// Everyone, everything.
    Open,
    /// Those who have shown the same credentials as the creator, everything.
    Creator,
}

/// How long a node lives, and how it is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Persistent = 0,
    /// Ends with the session; a number is put behind its name that counts the children of its parent.
    EphemeralSequential = 3,
}

/// One write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Write {
    Create {
        path: String,
        data: Vec<u8>,
        mode: Mode,
    },
    /// Of the version, if one is given.
    Set {
        path: String,
        data: Vec<u8>,
        version: Option<i32>,
    },
    Delete {
        path: String,
    },
}

impl Write {
    pub(super) fn op(&self) -> i32 {
        match self {
            Write::Create { .. } => op::CREATE2,
            Write::Set { .. } => op::SET_DATA,
            Write::Delete { .. } => op::DELETE,
        }
    }

    pub(super) fn path(&self) -> &str {
        match self {
            Write::Create { path, .. } | Write::Set { path, .. } | Write::Delete { path } => path,
        }
    }

    pub(super) fn put(&self, out: Writer, acl: Acl) -> Writer {
        match self {
            Write::Create { path, data, mode } => {
                let (scheme, id) = match acl {
                    Acl::Open => ("world", "anyone"),
                    Acl::Creator => ("auth", ""),
                };
                const ALL: i32 = 31;
                let out = out.text(path).bytes(data).int(1).int(ALL);
                out.text(scheme).text(id).int(*mode as i32)
            }
            Write::Set { path, data, version } => out.text(path).bytes(data).int(version.unwrap_or(-1)),
            Write::Delete { path } => out.text(path).int(-1),
        }
    }
}

/// What a write gave: the name of what was created, and what is there now, except after a deletion.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Wrote {
    pub(super) path: Option<String>,
    pub(super) stat: Option<Stat>,
}

impl Wrote {
    pub(super) fn read(op: i32, body: &mut Reader<'_>) -> Option<Wrote> {
        Some(match op {
            op::CREATE2 => Wrote { path: Some(body.text()?), stat: Some(body.stat()?) },
            op::SET_DATA => Wrote { path: None, stat: Some(body.stat()?) },
            op::CREATE => Wrote { path: Some(body.text()?), stat: None },
            _ => Wrote::default(),
        })
    }
}

/// The answers to several writes that are done together or not at all; else the number of the one at fault and its code.
/// The header of such an answer says that all is well either way.
pub(super) fn multi(body: &mut Reader<'_>) -> Option<Result<Vec<Wrote>, (usize, i32)>> {
    let (mut wrote, mut failed) = (Vec::new(), None);
    loop {
        let (op, done, _) = (body.int()?, body.bool()?, body.int()?);
        if done {
            return Some(failed.map_or(Ok(wrote), Err));
        }
        if op == op::ERROR {
            let code = body.int()?;
            // Those before it show 0, those behind it that they were not tried.
            if code != code::OK && failed.is_none() {
                failed = Some((wrote.len(), code));
            }
            wrote.push(Wrote::default());
        } else {
            wrote.push(Wrote::read(op, body)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let body = Writer::default().int(-5).long(1 << 40).bool(true).text("a/b").bytes(&[0, 255]);
        let body = body.texts(["x", "y"].into_iter()).into_body();
        let mut reader = Reader(&body);
        assert_eq!((reader.int(), reader.long(), reader.bool()), (Some(-5), Some(1 << 40), Some(true)));
        assert_eq!((reader.text().as_deref(), reader.bytes()), (Some("a/b"), Some(&[0, 255][..])));
        assert_eq!(reader.texts(), Some(vec!["x".to_owned(), "y".to_owned()]));
        assert_eq!(reader.int(), None);
    }

    #[test]
    fn garbage_gives_nothing() {
        for garbage in [&b"HTTP/1.1 400 Bad Request\r\n"[..], &[0xfe; 9], &[0, 0, 0, 9, 1]] {
            assert_eq!(Reader(garbage).texts(), None);
            assert_eq!(Reader(garbage).stat(), None);
        }
        assert_eq!(Reader(&[0xff, 0xff, 0xff, 0xfe]).bytes(), None);
        assert_eq!(Reader(&[0xff, 0xff, 0xff, 0xff]).bytes(), Some(&[][..]));
        assert_eq!(Reader(&[0xff, 0xff, 0xff, 0xff]).texts(), Some(Vec::new()));
    }

    #[test]
    fn writes_done_together_name_the_one_at_fault() {
        let failed = |out: Writer, code| out.int(op::ERROR).bool(false).int(code).int(code);
        let end = |out: Writer| out.int(-1).bool(true).int(-1).into_body();
        let body = end(failed(failed(failed(Writer::default(), 0), code::NO_NODE), -2));
        assert_eq!(multi(&mut Reader(&body)), Some(Err((1, code::NO_NODE))));
        let body = end(Writer::default().int(op::DELETE).bool(false).int(0));
        assert_eq!(multi(&mut Reader(&body)), Some(Ok(vec![Wrote::default()])));
        assert_eq!(multi(&mut Reader(&body[..6])), None);
    }
}
