//! Downloads Debian packages of any suite without touching the system's own apt state, and unpacks them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// Debian's own key ring, for a source that names none.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Downloads `packages` of `suite` into `into`; `state` keeps the package lists for the next time.
pub(crate) fn download(state: &Path, suite: &str, packages: &[&str], into: &Path) -> Result<Vec<PathBuf>> {
    let config = configure(state, suite)?;
    // Lists of an earlier fetch may do. Where they name packages that the mirror has replaced, they are renewed.
    if apt_get(&config, into, "download", packages).is_err() {
        apt_get(&config, into, "update", &[])?;
        apt_get(&config, into, "download", packages)?;
    }
    let entries = fs::read_dir(into).map_err(|e| at(into, e))?;
    let debs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    if debs.len() != packages.len() {
        return Err(Error::new(format!("apt-get downloaded {} of {} packages", debs.len(), packages.len())));
    }
    Ok(debs)
}

/// Unpacks one package under `root`.
pub(crate) fn unpack(deb: &Path, root: &Path) -> Result<()> {
    run(Command::new("dpkg").arg("-x").arg(deb).arg(root))
}

/// Writes an apt configuration whose every path lies under `state`, and gives its file.
fn configure(state: &Path, suite: &str) -> Result<PathBuf> {
    let dir = state.join(suite);
    let make = |path: PathBuf| fs::create_dir_all(&path).map_err(|e| at(&path, e));
    make(dir.join("lists/partial"))?;
    make(dir.join("cache/archives/partial"))?;
    make(dir.join("sources"))?;
    let write = |path: PathBuf, text: &str| fs::write(&path, text).map_err(|e| at(&path, e)).map(|()| path);
    write(dir.join("status"), "")?;
    write(dir.join("sources/debian.sources"), &source_for(suite)?)?;
    let dir_text = dir.display();
    // The hooks of the system's configuration would work on the system's state.
    let text = format!(
        r#"Dir::State "{dir_text}";
Dir::State::status "{dir_text}/status";
Dir::State::lists "{dir_text}/lists";
Dir::Cache "{dir_text}/cache";
Dir::Cache::archives "{dir_text}/cache/archives";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{dir_text}/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"#
    );
    write(dir.join("apt.conf"), &text)
}

fn apt_get(config: &Path, workdir: &Path, verb: &str, packages: &[&str]) -> Result<()> {
    // `update` succeeds with a warning where a mirror does not answer, unless told otherwise.
    run(Command::new("apt-get")
        .current_dir(workdir)
        .arg("-q")
        .arg("-c")
        .arg(config)
        .args(["-o", "APT::Update::Error-Mode=any"])
        .arg(verb)
        .args(packages))
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .env("LC_ALL", "C")
        .output()
        .map_err(|e| Error::new(format!("cannot run {name}: {e} (the packages are Debian's)")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::new(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim_end())))
}

fn at(path: &Path, error: std::io::Error) -> Error {
    Error::new(format!("{}: {error}", path.display()))
}

/// A deb822 source for `suite`, from the mirror that this system uses.
fn source_for(suite: &str) -> Result<String> {
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |key: &str| {
        os.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim_matches('"').to_owned())
    };
    if field("ID=").as_deref() != Some("debian") {
        return Err(Error::new(format!(
            "the packages are Debian's, and this system is {}",
            field("PRETTY_NAME=").unwrap_or_else(|| "another one".to_owned())
        )));
    }
    let mut stanzas = Vec::new();
    for path in source_files() {
        let text = fs::read_to_string(&path).unwrap_or_default();
        if path.extension().is_some_and(|ext| ext == "sources") {
            stanzas.extend(parse_deb822(&text));
        } else {
            stanzas.extend(parse_classic(&text));
        }
    }
    let codename = field("VERSION_CODENAME=").unwrap_or_default();
    let stanza = choose(&stanzas, &codename).ok_or_else(|| {
        Error::new("the system's apt sources name no Debian mirror with the component main")
    })?;
    Ok(stanza.with_suite(suite))
}

fn source_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let mut parts: Vec<PathBuf> = fs::read_dir("/etc/apt/sources.list.d")
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    parts.retain(|path| path.extension().is_some_and(|ext| ext == "sources" || ext == "list"));
    parts.sort();
    files.append(&mut parts);
    files
}

/// The fields of one source, as in a deb822 stanza; a value keeps its continuation lines.
#[derive(Debug, PartialEq)]
struct Stanza(Vec<(String, String)>);

impl Stanza {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value.as_str())
    }

    fn has(&self, key: &str, word: &str) -> bool {
        self.get(key).is_some_and(|value| value.split_whitespace().any(|w| w == word))
    }

    /// The same mirror, keys and options, for the binary packages of `main` in another suite.
    fn with_suite(&self, suite: &str) -> String {
        let mut text = format!("Types: deb\nSuites: {suite}\nComponents: main\n");
        for (name, value) in &self.0 {
            if !["Types", "Suites", "Components", "Enabled"].iter().any(|own| own.eq_ignore_ascii_case(name))
            {
                text.push_str(&format!("{name}: {value}\n"));
            }
        }
        if self.get("Signed-By").is_none() && Path::new(KEYRING).exists() {
            text.push_str(&format!("Signed-By: {KEYRING}\n"));
        }
        text
    }
}

/// The source of the system's own suite; without one, the first Debian source that is not for security updates.
fn choose<'a>(stanzas: &'a [Stanza], codename: &str) -> Option<&'a Stanza> {
    let usable = |s: &&Stanza| {
        s.has("Types", "deb") && s.has("Components", "main") && s.get("Enabled").is_none_or(|e| e != "no")
    };
    stanzas.iter().filter(usable).find(|s| s.has("Suites", codename)).or_else(|| {
        stanzas.iter().filter(usable).find(|s| s.get("URIs").is_some_and(|u| !u.contains("security")))
    })
}

fn parse_deb822(text: &str) -> Vec<Stanza> {
    let mut stanzas = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            if !fields.is_empty() {
                stanzas.push(Stanza(std::mem::take(&mut fields)));
            }
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    stanzas
}

/// Lines like `deb [signed-by=KEYRING] URI SUITE COMPONENT...`.
fn parse_classic(text: &str) -> Vec<Stanza> {
    text.lines().filter_map(|line| parse_classic_line(line.split('#').next().unwrap_or_default())).collect()
}

fn parse_classic_line(line: &str) -> Option<Stanza> {
    let (kind, mut rest) = line.trim().split_once(char::is_whitespace)?;
    rest = rest.trim_start();
    let mut fields = vec![("Types".to_owned(), kind.to_owned())];
    if let Some(bracketed) = rest.strip_prefix('[') {
        let (options, after) = bracketed.split_once(']')?;
        for option in options.split_whitespace() {
            let (name, value) = option.split_once('=')?;
            let name = match name {
                "arch" => "Architectures",
                "signed-by" => "Signed-By",
                "trusted" => "Trusted",
                "check-valid-until" => "Check-Valid-Until",
                other => other,
            };
            fields.push((name.to_owned(), value.replace(',', " ")));
        }
        rest = after;
    }
    let mut words = rest.split_whitespace();
    fields.push(("URIs".to_owned(), words.next()?.to_owned()));
    fields.push(("Suites".to_owned(), words.next()?.to_owned()));
    fields.push(("Components".to_owned(), words.collect::<Vec<_>>().join(" ")));
    Some(Stanza(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deb822_source_keeps_its_mirror_and_keys() {
        let text = "# a comment\nTypes: deb\n# another\nURIs: http://mirror/debian-security\nSuites: bookworm-security\n\
                    Components: main\n\nTypes: deb deb-src\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\n\
                    Components: main contrib\nSigned-By:\n -----BEGIN KEY-----\n .\n abc\n";
        let stanzas = parse_deb822(text);
        assert_eq!(stanzas.len(), 2);
        assert_eq!(
            choose(&stanzas, "bookworm").expect("a source").with_suite("trixie"),
            "Types: deb\nSuites: trixie\nComponents: main\nURIs: http://mirror/debian\n\
             Signed-By: \n -----BEGIN KEY-----\n .\n abc\n"
        );
    }

    #[test]
    fn a_classic_source_keeps_its_mirror_and_keys() {
        let text = "# deb http://old/debian bookworm main\n\
                    deb-src http://mirror/debian bookworm main\n\
                    deb [arch=amd64,arm64 signed-by=/k.gpg] http://mirror/debian bookworm main contrib # note\n";
        let stanzas = parse_classic(text);
        assert_eq!(
            choose(&stanzas, "bookworm").expect("a source").with_suite("trixie"),
            "Types: deb\nSuites: trixie\nComponents: main\nArchitectures: amd64 arm64\nSigned-By: /k.gpg\n\
             URIs: http://mirror/debian\n"
        );
    }

    #[test]
    fn a_disabled_source_or_one_for_security_is_not_the_mirror() {
        let text = "Enabled: no\nTypes: deb\nURIs: http://a/debian\nSuites: bookworm\nComponents: main\n\n\
                    Types: deb\nURIs: http://a/debian-security\nSuites: stable-security\nComponents: main\n\n\
                    Types: deb\nURIs: http://b/debian\nSuites: stable\nComponents: main\n";
        let stanzas = parse_deb822(text);
        assert_eq!(choose(&stanzas, "bookworm").and_then(|s| s.get("URIs")), Some("http://b/debian"));
    }
}
