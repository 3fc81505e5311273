//! The hand-over note: what is written is read, and nothing else is believed.

use incumbent_core::{ErrorKind, FencingToken, HandoverRequest};

use crate::stored;

#[test]
fn a_request_carries_its_token_beside_it() {
    for to in [None, Some("b".parse().expect("a valid id"))] {
        let request = HandoverRequest { token: FencingToken(7), to };
        assert_eq!(HandoverRequest::decode(&stored(7, request.encode())), Ok(Some(request)));
    }
}

#[test]
fn a_withdrawn_request_asks_for_nothing() {
    assert_eq!(HandoverRequest::decode(&stored(7, HandoverRequest::withdrawn())), Ok(None));
}

#[test]
fn garbage_is_refused() {
    for body in ["", "garbage", "{}", "{\"v\":1}", "{\"v\":1,\"open\":true,\"to\":\"a\\nb\"}", "\u{0}\u{0}"] {
        let error = HandoverRequest::decode(&stored(7, body)).expect_err(body);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.to_string(), "the stored hand-over request cannot be read");
    }
}

#[test]
fn a_newer_format_is_refused_with_what_to_do_however_it_looks() {
    for body in ["{\"v\":2,\"open\":true}", "{\"v\":2,\"open\":\"perhaps\"}", "{\"v\":2}"] {
        let error = HandoverRequest::decode(&stored(7, body)).expect_err(body);
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
    let request = HandoverRequest::decode(&stored(7, "{\"v\":1,\"open\":true,\"why\":\"deploy\"}"));
    assert_eq!(request, Ok(Some(HandoverRequest { token: FencingToken(7), to: None })));
}
