//! The command: looked for before anything else, so that a typing error shows at once and not at the first fail-over.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use incumbent::ErrorKind;
use rustix::fs::{Access, access};

use crate::exit;

/// Why a command cannot run, and the exit code that a shell has for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) exit_code: u8,
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
}

/// The command's name for people: without folder and arguments.
pub(crate) fn name(command: &[OsString]) -> String {
    let program = command.first().map(Path::new).unwrap_or(Path::new(""));
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// Looks for `program` as `exec` will.
///
/// # Errors
/// If it is not there, or is no file that this user may execute.
pub(crate) fn look_for(program: &OsStr) -> Result<(), Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    look_in(program, &path)
}

fn look_in(program: &OsStr, path: &OsStr) -> Result<(), Missing> {
    if program.is_empty() {
        let message = "the command is empty".to_owned();
        return Err(Missing { exit_code: exit::NOT_FOUND, kind: ErrorKind::NotFound, message });
    }
    let shown = program.to_string_lossy();
    let found = if program.as_bytes().contains(&b'/') {
        judge(Path::new(program))
    } else {
        // A file that cannot be executed does not hide one further on.
        let mut found = Found::Nothing;
        for folder in std::env::split_paths(path) {
            match judge(&folder.join(program)) {
                Found::Nothing => {}
                Found::Executable => return Ok(()),
                Found::NotExecutable => found = Found::NotExecutable,
            }
        }
        found
    };
    match found {
        Found::Executable => Ok(()),
        Found::NotExecutable => Err(Missing {
            exit_code: exit::NOT_EXECUTABLE,
            kind: ErrorKind::Denied,
            message: format!("{shown} cannot be executed: it is no file, or this user may not execute it"),
        }),
        Found::Nothing => {
            let message = format!("there is no command {shown}");
            Err(Missing { exit_code: exit::NOT_FOUND, kind: ErrorKind::NotFound, message })
        }
    }
}

enum Found {
    Nothing,
    NotExecutable,
    Executable,
}

fn judge(path: &Path) -> Found {
    match path.metadata() {
        Err(_) => Found::Nothing,
        Ok(file) if file.is_file() && access(path, Access::EXEC_OK).is_ok() => Found::Executable,
        Ok(_) => Found::NotExecutable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        assert!(look_for(OsStr::new("sh")).is_ok());
        assert!(look_for(OsStr::new("/bin/sh")).is_ok());
        let code = |program: &str| look_for(OsStr::new(program)).unwrap_err().exit_code;
        assert_eq!(code("no-such-command-anywhere"), exit::NOT_FOUND);
        assert_eq!(code("/no/such/command"), exit::NOT_FOUND);
        assert_eq!(code("/"), exit::NOT_EXECUTABLE);
        assert_eq!(code(""), exit::NOT_FOUND);
    }

    #[test]
    fn the_name_has_no_folder_and_no_arguments() {
        assert_eq!(name(&["/usr/bin/env".into(), "secret".into()]), "env");
        assert_eq!(name(&["sh".into()]), "sh");
    }
}
