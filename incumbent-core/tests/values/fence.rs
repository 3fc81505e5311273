//! The check at the resource.

use incumbent_core::{Admission, Authority, ErrorKind, FencingToken, HighWater};

fn etcd() -> Authority {
    Authority::new("etcd:cdf8:/prod")
}

#[test]
fn the_first_token_raises() {
    assert_eq!(HighWater::admit(None, &etcd(), FencingToken(0)), Ok(Admission::Raise));
}

#[test]
fn an_older_token_is_refused_and_a_newer_one_raises() {
    let stored = HighWater { authority: etcd(), token: FencingToken(7) };
    let admit = |token| HighWater::admit(Some(&stored), &etcd(), FencingToken(token));
    assert_eq!(admit(7), Ok(Admission::Current));
    assert_eq!(admit(8), Ok(Admission::Raise));
    assert_eq!(admit(u64::MAX), Ok(Admission::Raise));
    for old in [0, 6] {
        let error = admit(old).expect_err("an older token");
        assert_eq!(error.kind(), ErrorKind::Fenced);
        assert_eq!(
            error.to_string(),
            format!("token {old} is older than 7, which this resource has seen: another leads")
        );
    }
}

#[test]
fn another_authority_is_refused_whatever_its_token() {
    let stored = HighWater { authority: etcd(), token: FencingToken(7) };
    for token in [0, 7, u64::MAX] {
        let error = HighWater::admit(Some(&stored), &Authority::new("file:1f"), FencingToken(token))
            .expect_err("another");
        assert_eq!(error.kind(), ErrorKind::Fenced);
        let text = error.to_string();
        assert!(
            text.contains("etcd:cdf8:/prod")
                && text.contains("file:1f")
                && text.contains("incumbent fence --help"),
            "{text}"
        );
    }
    // However long what they share is.
    let long = |end| Authority::new("x".repeat(10_000) + end);
    let stored = HighWater { authority: long("a"), token: FencingToken(7) };
    assert!(HighWater::admit(Some(&stored), &long("b"), FencingToken(8)).is_err());
}

#[test]
fn what_a_fence_stores_is_read_again() {
    let stored = HighWater { authority: etcd(), token: FencingToken(u64::MAX) };
    let json = serde_json::to_string(&stored).expect("json");
    assert_eq!(serde_json::from_str::<HighWater>(&json).expect("json"), stored);
}
