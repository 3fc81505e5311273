//! The stored checkpoint and the right of a term to it.

use incumbent_core::checkpoint::{Access, CHECKPOINT_MAX, CheckpointValue, access};
use incumbent_core::{ErrorKind, FencingToken};

use crate::stored;

#[test]
fn what_is_written_is_read() {
    let parts = [
        None,
        Some(Vec::new()),
        Some(b"page 17".to_vec()),
        Some((0..=255).collect()),
        Some(vec![b'\n'; CHECKPOINT_MAX]),
    ];
    for user in &parts {
        for cron in &parts {
            let value = CheckpointValue { user: user.clone(), cron: cron.clone() };
            let bytes = value.encode().expect("it is short enough");
            assert_eq!(CheckpointValue::decode(&stored(1, bytes)), Ok(value));
        }
    }
}

#[test]
fn a_value_that_is_too_long_is_refused() {
    for value in [
        CheckpointValue { user: Some(vec![0; CHECKPOINT_MAX + 1]), cron: None },
        CheckpointValue { user: None, cron: Some(vec![0; CHECKPOINT_MAX + 1]) },
    ] {
        let error = value.encode().expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(error.to_string(), "a checkpoint of 65537 bytes is longer than 65536");
    }
}

#[test]
fn garbage_is_refused() {
    for body in [
        &b""[..],
        b"garbage",
        b"\n",
        b"{}\n",
        b"{\"v\":1,\"user\":5,\"cron\":null}\nabc",
        b"{\"v\":1,\"user\":18446744073709551615,\"cron\":null}\nabc",
        b"{\"v\":1,\"user\":-1,\"cron\":null}\nabc",
        b"{\"v\":1,\"user\":3,\"cron\":null}abc",
        b"\xff\xfe\n",
    ] {
        let error = CheckpointValue::decode(&stored(1, body)).expect_err("garbage");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.to_string(), "the stored checkpoint cannot be read");
    }
}

#[test]
fn a_newer_format_is_refused_with_what_to_do_however_it_looks() {
    for body in ["{\"v\":2,\"user\":3,\"cron\":null}\nabc", "{\"v\":2,\"parts\":[\"abc\"]}\n"] {
        let error = CheckpointValue::decode(&stored(1, body)).expect_err(body);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error
                .to_string()
                .ends_with("has format 2, newer than 1, which this release understands; update this program")
        );
    }
}

#[test]
fn fields_that_another_release_of_this_format_added_are_no_offence() {
    let value = CheckpointValue::decode(&stored(1, "{\"v\":1,\"user\":3,\"zone\":\"eu\"}\nabc"));
    assert_eq!(value, Ok(CheckpointValue { user: Some(b"abc".to_vec()), cron: None }));
}

#[test]
fn content_is_not_shown() {
    let value = CheckpointValue { user: Some(b"secret".to_vec()), cron: None };
    let text = format!("{value:?} {:?}", stored(1, value.encode().expect("short")));
    assert!(!text.contains("secret") && !text.contains("115, 101"), "{text}");
}

#[test]
fn a_term_raises_the_token_before_it_reads_and_an_older_one_is_refused() {
    let token = FencingToken(7);
    assert_eq!(access(None, token), Ok(Access::Raise));
    assert_eq!(access(Some(&stored(6, "")), token), Ok(Access::Raise));
    assert_eq!(access(Some(&stored(7, "")), token), Ok(Access::Open));
    let error = access(Some(&stored(8, "")), token).expect_err("a later term was here");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert_eq!(error.to_string(), "the checkpoint belongs to a later term: its token is 8, this one's is 7");
}
