//! Names: the rule, and what the refusal says.

use incumbent_core::ids::{ADDRESS_MAX, ADDRESS_RULE, NAME_MAX, check_address};
use incumbent_core::{CandidateId, ElectionName, ErrorKind, Nonce};

fn refusal(name: &str) -> String {
    let error = ElectionName::new(name).expect_err(name);
    assert_eq!(error.kind(), ErrorKind::InvalidName);
    error.to_string()
}

#[test]
fn good_election_names_are_kept_as_they_are() {
    let longest = "x".repeat(128);
    for name in ["a", "7", "billing", "Billing-2.eu_west", "a.", "0--", &longest] {
        assert_eq!(ElectionName::new(name).expect(name).as_str(), name);
    }
}

#[test]
fn bad_election_names_are_refused_with_the_rule_and_the_offence() {
    assert_eq!(
        refusal("a/b"),
        "invalid election name \"a/b\": it contains '/'; a name is 1 to 128 of A-Z a-z 0-9 . _ - and starts with a \
         letter or digit"
    );
    for (name, offence) in [
        ("", "it is empty"),
        ("/", "it starts with '/'"),
        (".hidden", "it starts with '.'"),
        ("-x", "it starts with '-'"),
        ("two words", "it contains ' '"),
        ("trailing ", "it contains ' '"),
        ("zahlläufe", "it contains 'ä'"),
        ("日程", "it starts with '日'"),
        ("a\nb", "it contains '\\n'"),
        ("a\0b", "it contains '\\0'"),
        ("a%2fb", "it contains '%'"),
    ] {
        let text = refusal(name);
        assert!(text.contains(&format!(": {offence}; ")), "{text}");
    }
}

#[test]
fn an_address_to_advertise_fits_on_a_line() {
    let longest = "x".repeat(512);
    for address in ["10.0.0.7:8080", "[::1]:80", "https://pod-7.example/a?b=c", "ä", &longest] {
        assert!(check_address(address).is_ok(), "{address}");
    }
    for address in ["", "a b", " a", "a\t", "a\u{1b}", "a\u{2028}b", &(longest.clone() + "x")] {
        let error = check_address(address).expect_err(address);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(ADDRESS_RULE), "{error}");
    }
    assert!(check_address(&"x".repeat(1_000_000)).expect_err("huge").to_string().len() < 300);
}

#[test]
fn the_rules_state_the_bounds() {
    for rule in [ElectionName::RULE, CandidateId::RULE] {
        assert!(rule.contains(&format!("1 to {NAME_MAX} ")), "{rule}");
    }
    assert!(ADDRESS_RULE.contains(&format!("1 to {ADDRESS_MAX} ")));
}

#[test]
fn a_huge_name_is_refused_without_being_repeated() {
    let text = refusal(&"x".repeat(1_000_000));
    assert!(text.contains("it has 1000000 bytes"), "{text}");
    assert!(text.len() < 300, "{} bytes", text.len());
    assert!(refusal(&"x".repeat(129)).contains("it has 129 bytes"));
    assert!(refusal(&"ä".repeat(1_000_000)).len() < 300);
}

#[test]
fn stored_names_are_checked_like_typed_ones() {
    assert!(serde_json::from_str::<ElectionName>("\"billing\"").is_ok());
    assert!(serde_json::from_str::<ElectionName>("\"a/b\"").is_err());
    assert!(serde_json::from_str::<CandidateId>("\"\"").is_err());
}

#[test]
fn candidate_ids_are_for_people() {
    let longest = "x".repeat(128);
    for id in ["web-2:4711", "Büro 3", "pod/7", " ", &longest] {
        assert_eq!(CandidateId::new(id).expect(id).as_str(), id);
    }
    for id in ["", "a\nb", "tab\t", "\u{7f}", &"x".repeat(129), &"ä".repeat(65)] {
        let error = CandidateId::new(id).expect_err(id);
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        assert!(error.to_string().contains("an id is 1 to 128 bytes without control characters"), "{error}");
    }
}

#[test]
fn nonces_are_32_hexadecimal_digits() {
    let nonce = Nonce(0x0123_4567_89ab_cdef);
    assert_eq!(nonce.to_string(), "00000000000000000123456789abcdef");
    assert_eq!(nonce.to_string().parse(), Ok(nonce));
    assert!(u128::MAX.to_string().parse::<Nonce>().is_err(), "39 decimal digits");
    let short = "f".repeat(31);
    let signed = format!("+{}", "f".repeat(31));
    for bad in
        ["", "f", &short, &signed, "0x000000000000000123456789abcdef", "g0000000000000000123456789abcdef"]
    {
        assert!(bad.parse::<Nonce>().is_err(), "{bad:?}");
    }
    assert_eq!(serde_json::to_string(&nonce).expect("json"), format!("\"{nonce}\""));
}
