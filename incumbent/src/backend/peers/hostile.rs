//! What somebody says who knows the secret, or looks like a peer, and says what no peer may: the connection is cut, with the
//! reason, and nothing else happens.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use incumbent_core::peers::raft::{Message, Raft};
use incumbent_core::peers::register::{Ask, Ballot};
use incumbent_core::peers::{Envelope, Term, members};
use incumbent_core::{Authority, CandidateId, ElectionName, Nonce, Note, Settings};
use testkit::Port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::bytes::Bytes;

use super::config::Config;
use super::handshake::{self, Badge, Connection, Membership, Own};
use super::known::Known;
use super::node::Node;
use super::public::init;
use super::wire::{self, Answer, Back, Forth, Question, Register, Say};
use crate::url::StoreUrl;

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(20);

fn id(name: &str) -> CandidateId {
    CandidateId::new(name).expect("a name")
}

fn config(dir: &Path, ports: &[Port; 2], name: &str) -> Arc<Config> {
    let secret = dir.join("secret");
    std::fs::write(&secret, "0123456789abcdef").expect("written");
    let [a, b] = ports.each_ref().map(Port::number);
    let (state, secret) = (dir.join(name), secret.display());
    let url = format!(
        "raft://{name}?peers=a=127.0.0.1:{a},b=127.0.0.1:{b}&state={}&secret_file={secret}",
        state.display()
    );
    let url = StoreUrl::parse(&url).expect("a URL");
    Arc::new(Config::new(&url, &Settings::default()).expect("good settings"))
}

/// The peer `b` as `a` sees it, which nothing keeps from saying anything.
fn stranger(config: &Arc<Config>) -> Own {
    let badge = Badge { name: id("b"), nonce: Nonce(7), run: Nonce(8) };
    let known = Arc::new(Known::new([].into(), None));
    let member = Membership { cluster: Authority::new("test"), badge, known };
    Own { config: Arc::clone(config), member: Some(member), trial: false }
}

async fn dial(own: &Own) -> Connection {
    handshake::dial(own, &id("a")).await.map_err(|unspoken| unspoken.error).expect("let in")
}

/// Whether it is still answered.
async fn is_answered(connection: &mut Connection) -> bool {
    let question = Forth::<Message>::Ask { number: 9, question: Question::List };
    connection.send(wire::encode(&question).expect("a frame")).await.expect("sent");
    let frame = tokio::time::timeout(SOON, connection.next()).await.expect("an answer in time");
    let frame = frame.expect("a frame").expect("whole");
    matches!(wire::decode(&frame), Ok(Back::Answer { number: 9, answer: Ok(Answer::List(..)) }))
}

/// Why it was cut.
async fn cut(mut connection: Connection) -> String {
    let mut why = None;
    while let Some(Ok(frame)) = tokio::time::timeout(SOON, connection.next()).await.expect("it is cut") {
        match wire::decode(&frame).expect("a frame") {
            Back::Cut(text) => why = Some(text),
            other => panic!("{other:?}"),
        }
    }
    why.expect("a reason")
}

fn heartbeat(change: impl FnOnce(&mut Envelope<Message>)) -> Vec<u8> {
    let mut envelope = Envelope {
        cluster: Authority::new("test"),
        list: 1,
        from: id("b"),
        to: id("a"),
        term: Term(1),
        message: Message::Heartbeat { round: 1 },
    };
    change(&mut envelope);
    let election = ElectionName::new("billing").expect("a name");
    wire::encode(&Forth::Say(Say { election, notice: None, envelope })).expect("a frame").to_vec()
}

#[tokio::test]
async fn a_message_that_is_refused_cuts_its_connection_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let ports = [Port::reserve(), Port::reserve()];
    init(&dir.path().join("a"), "a", "test").expect("a state");
    let (a, b) = (config(dir.path(), &ports, "a"), config(dir.path(), &ports, "b"));
    let node = Node::join::<Raft>(a, |_, rules| rules).await.expect("joined");
    let own = stranger(&b);
    let mut good = dial(&own).await;
    assert!(is_answered(&mut good).await);
    let register = Register::new(&ElectionName::new("billing").expect("a name"), Note::Checkpoint);
    let only_a_member = Question::Register(1, register, Ask::Prepare(Ballot::ZERO));
    let list = Envelope {
        cluster: Authority::new("test"),
        list: 1,
        from: id("x"),
        to: id("a"),
        term: Term(0),
        message: members::Message::Ask,
    };
    let frames = [
        (b"no frame of ours".to_vec(), "cannot be understood"),
        // Behind it stands something more.
        ([heartbeat(|_| {}), vec![0]].concat(), "cannot be understood"),
        (heartbeat(|_| {})[..20].to_vec(), "cannot be understood"),
        (heartbeat(|message| message.cluster = Authority::new("other")), "another cluster"),
        (heartbeat(|message| message.from = id("x")), "speaks for another peer"),
        (heartbeat(|message| message.to = id("x")), "for another peer"),
        (heartbeat(|message| message.term = Term(u64::MAX)), "further ahead"),
        (wire::encode(&Forth::<Message>::List(list)).expect("a frame").to_vec(), "speaks for another peer"),
    ];
    for (frame, hint) in frames {
        let mut bad = dial(&own).await;
        bad.send(Bytes::from(frame)).await.expect("sent");
        let why = cut(bad).await;
        assert!(why.contains(hint), "{hint}: {why}");
        assert!(is_answered(&mut good).await, "{hint}");
    }
    // Of a frame that is too long only the length is read.
    let mut long = dial(&own).await;
    long.get_mut().write_all(&(wire::FRAME_MAX as u32 + 1).to_be_bytes()).await.expect("sent");
    assert!(cut(long).await.contains("frame size"));
    // One that is cut short is no message.
    let mut short = dial(&own).await;
    let whole = heartbeat(|_| {});
    let length = (whole.len() as u32).to_be_bytes();
    short.get_mut().write_all(&[&length, &whole[..9]].concat()).await.expect("sent");
    short.get_mut().shutdown().await.expect("closed");
    assert!(cut(short).await.contains("bytes remaining"));
    // Who only asks is no member.
    let asker = Own { member: None, ..own.clone() };
    let mut bad = dial(&asker).await;
    bad.send(wire::encode(&Forth::<Message>::Ask { number: 1, question: only_a_member }).expect("a frame"))
        .await
        .expect("sent");
    assert!(cut(bad).await.contains("what only a member may"));
    // One of a list that is on its way is no fault.
    good.send(Bytes::from(heartbeat(|message| message.list = 3))).await.expect("sent");
    assert!(is_answered(&mut good).await);
    assert!(is_answered(&mut dial(&own).await).await);
    drop(node);
}

#[tokio::test]
async fn another_version_is_told_which_one_this_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let ports = [Port::reserve(), Port::reserve()];
    init(&dir.path().join("a"), "a", "test").expect("a state");
    let node = Node::join::<Raft>(config(dir.path(), &ports, "a"), |_, rules| rules).await.expect("joined");
    let mut stream = TcpStream::connect(node.address).await.expect("connected");
    stream.write_all(b"\0\0\0\x08INCPEER\x63").await.expect("sent");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.expect("it is cut");
    read.expect("read");
    assert_eq!(&answer[4..11], b"INCPEER");
    assert!(!handshake::is_greeting(&[&answer[4..11], &[99], &answer[12..]].concat()));
    // It is the greeting and nothing more, least of all a proof.
    assert_eq!(answer.len(), 4 + u32::from_be_bytes(*answer.first_chunk().expect("a length")) as usize);
    drop(node);
}
