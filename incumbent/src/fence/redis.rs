//! A fence in Redis: one hash, judged by the script that writes what it protects.
//!
//! Redis runs a script as one step, so nothing comes between the check and the write. The library brings the script's beginning;
//! the client is yours: [`RedisFence::script`] puts the check in front of your own Lua, and whoever sends it names the fence's key
//! first and the mark's two arguments first.
//!
//! ```
//! use incumbent::fence::redis::RedisFence;
//! use incumbent::{Authority, FencingToken, HighWater};
//!
//! let fence = RedisFence::new("ledger:fence");
//! let mark = HighWater { authority: Authority::new("redis:7c31f0ed"), token: FencingToken(17) };
//! // Your keys follow the fence's, your arguments the mark's two: KEYS[2], ARGV[3].
//! let script = RedisFence::script("return redis.call('INCRBY', KEYS[2], ARGV[3])");
//! let arguments = RedisFence::arguments(&mark);
//! // With the crate `redis`: Script::new(&script).key(fence.key()).key("ledger:total").arg(&arguments).arg(40).invoke(…)
//! # let _ = (fence, arguments, script);
//! ```
//!
//! A new leader raises the fence before it reads anything that it will build on: it sends [`RedisFence::raise`]. What a refusal means
//! is in [`refusal`]. The fence is as durable as its Redis: one that forgets writes forgets the mark too.

use incumbent_core::{Error, ErrorKind, HighWater};

/// What stands in front of each fenced script. Tokens are compared as text: a number of Lua is exact up to 2^53 only.
const CHECK: &str = r#"local function incumbent_admit(key, authority, token)
  local found = redis.call('HMGET', key, 'v', 'authority', 'token')
  if found[1] and found[1] ~= '1' then
    return redis.error_reply('FENCED a newer release wrote this fence; update this program')
  end
  if found[2] and found[2] ~= authority then
    return redis.error_reply('FENCED the fence knows tokens of authority ' .. found[2] .. ', this one is of ' .. authority
      .. '; if the election has moved there for good, an operator runs what `incumbent fence redis --adopt` prints')
  end
  local seen = found[3] or '0'
  if #token < #seen or #token == #seen and token < seen then
    return redis.error_reply('FENCED token ' .. token .. ' is older than ' .. seen .. ', which this resource has seen: another leads')
  end
  if token ~= seen or not found[2] then
    redis.call('HSET', key, 'v', '1', 'authority', authority, 'token', token)
  end
  return nil
end
local incumbent_refusal = incumbent_admit(KEYS[1], ARGV[1], ARGV[2])
if incumbent_refusal then return incumbent_refusal end
"#;

/// The fence under one key, in the database that holds what it protects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisFence {
    key: String,
}

impl RedisFence {
    /// The fence under `key`. In a Redis Cluster it must lie in the slot of what it protects: give both the same `{tag}`.
    pub fn new(key: impl Into<String>) -> RedisFence {
        RedisFence { key: key.into() }
    }

    /// Its key, the first of the script's.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// `body` with the check in front. It runs only if the mark is admitted; else the script answers an error that begins with
    /// `FENCED`, and nothing was written. `body` finds its own keys from `KEYS[2]` on and its arguments from `ARGV[3]` on.
    pub fn script(body: &str) -> String {
        // The line of flags must stay the first one.
        match body.split_once('\n') {
            Some((flags, rest)) if flags.starts_with("#!") => format!("{flags}\n{CHECK}{rest}"),
            _ => format!("{CHECK}{body}"),
        }
    }

    /// The script of a new leader, which only raises the fence. Answers 1.
    pub fn raise() -> String {
        RedisFence::script("return 1")
    }

    /// What a mark is to a script: its first two arguments.
    pub fn arguments(mark: &HighWater) -> [String; 2] {
        [mark.authority.as_str().to_owned(), mark.token.to_string()]
    }

    /// The script with which an operator makes the fence accept a mark whatever was there; key and arguments as always. Answers 1.
    pub fn adopt() -> &'static str {
        "redis.call('HSET', KEYS[1], 'v', '1', 'authority', ARGV[1], 'token', ARGV[2]) return 1"
    }

    /// [`adopt`](RedisFence::adopt) as a command for a shell in which `redis-cli` finds the server.
    pub fn adopt_text(&self, mark: &HighWater) -> String {
        let [authority, token] = RedisFence::arguments(mark);
        let words = [RedisFence::adopt(), "1", &self.key, &authority, &token];
        let quoted = words.map(|word| format!("'{}'", word.replace('\'', r"'\''")));
        format!("redis-cli EVAL {}", quoted.join(" "))
    }
}

/// The refusal in the text of an error that a fenced script gave, whatever the client put around it: an older token, or another
/// authority ([`ErrorKind::Fenced`]). `None` if the error is another one.
pub fn refusal(text: &str) -> Option<Error> {
    let (_, words) = text.split_once("FENCED")?;
    let words = words.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).trim_end();
    Some(Error::new(ErrorKind::Fenced, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_stay_in_the_first_line() {
        let script = RedisFence::script("#!lua flags=allow-oom\nreturn 1");
        assert!(script.starts_with("#!lua flags=allow-oom\nlocal function"), "{script}");
        assert!(script.ends_with("return 1"));
    }

    #[test]
    fn a_refusal_is_told_from_other_errors() {
        assert_eq!(refusal("NOAUTH Authentication required"), None);
        for text in ["FENCED token 5 is older than 7\n", "\"FENCED\": token 5 is older than 7"] {
            let refused = refusal(text).expect("a refusal");
            assert_eq!(
                (refused.kind(), refused.to_string()),
                (ErrorKind::Fenced, "token 5 is older than 7".into())
            );
        }
    }

    #[test]
    fn a_command_for_the_shell_is_quoted() {
        use incumbent_core::{Authority, FencingToken};
        let mark = HighWater { authority: Authority::new("it's"), token: FencingToken(3) };
        let text = RedisFence::new("a b").adopt_text(&mark);
        assert!(text.ends_with(r"'1' 'a b' 'it'\''s' '3'"), "{text}");
    }
}
