//! User and password, and the token that etcd gives for them.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use incumbent_core::{ErrorKind, Result};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};

use super::connection::Link;
use super::failure::{self, Effect};
use super::proto::AuthenticateRequest;

/// Who we are to etcd. Shows its password to nobody but the server.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The token in use; every member of the cluster accepts it until it expires or the users change.
pub(super) struct Auth {
    credentials: Option<Credentials>,
    token: Mutex<Token>,
    /// Held while one caller fetches a token, so that a thousand callers do not each fetch one: etcd spends some
    /// 50 ms of its processor on each password.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Clone, PartialEq, Eq)]
enum Token {
    /// To be fetched.
    Missing,
    /// The server has authentication switched off.
    NotNeeded,
    Held(MetadataValue<Ascii>),
}

/// Proof of who we are, for one request.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pass(Token);

impl Pass {
    /// Puts the token into the metadata of `request`.
    pub(super) fn stamp<T>(&self, request: &mut Request<T>) {
        if let Token::Held(token) = &self.0 {
            request.metadata_mut().insert("token", token.clone());
        }
    }
}

impl Auth {
    pub(super) fn new(credentials: Option<Credentials>) -> Auth {
        Auth { credentials, token: Mutex::new(Token::Missing), fetching: tokio::sync::Mutex::new(()) }
    }

    /// The pass to use now; asks the server at `link` for a token if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] for a wrong user or password; else as any call. Never ambiguous.
    pub(super) async fn pass(&self, link: &Link) -> Result<Pass> {
        let Some(credentials) = &self.credentials else { return Ok(Pass(Token::NotNeeded)) };
        if let Some(pass) = self.held() {
            return Ok(pass);
        }
        let _one_at_a_time = self.fetching.lock().await;
        if let Some(pass) = self.held() {
            return Ok(pass);
        }
        let request =
            AuthenticateRequest { name: credentials.user.clone(), password: credentials.password.clone() };
        let token = match link.send(Request::new(request)).await {
            Ok(answer) => {
                let mut token = MetadataValue::try_from(answer.token).map_err(|_| {
                    failure::error(ErrorKind::Internal, link.host(), "the token is not a header value")
                })?;
                token.set_sensitive(true);
                Token::Held(token)
            }
            Err(status) if failure::is_auth_disabled(&status) => {
                tracing::warn!(
                    host = link.host(),
                    "etcd has authentication switched off: the user is not checked"
                );
                Token::NotNeeded
            }
            Err(status) => return Err(failure::explain(status, link.host(), Effect::None)),
        };
        *self.lock() = token.clone();
        Ok(Pass(token))
    }

    /// Notes that the server refused `pass`; true if another one may help.
    pub(super) fn refused(&self, pass: &Pass) -> bool {
        let mut token = self.lock();
        if *token == pass.0 {
            *token = Token::Missing;
        }
        self.credentials.is_some()
    }

    fn held(&self) -> Option<Pass> {
        let token = self.lock();
        (*token != Token::Missing).then(|| Pass(token.clone()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Token> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::Credentials;

    #[test]
    fn debug_does_not_show_the_password() {
        let credentials = Credentials { user: "alice".into(), password: "s3cret".into() };
        let shown = format!("{credentials:?}");
        assert!(shown.contains("alice") && !shown.contains("s3cret"), "{shown}");
    }
}
