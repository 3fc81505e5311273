//! The file backend among real processes: deaths, freezes, damage by hand, directories that cannot work.

#[cfg(test)]
mod crowd;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod death;
#[cfg(test)]
mod directory;
#[cfg(test)]
mod hints;
#[cfg(test)]
mod process;
#[cfg(test)]
mod threads;
#[cfg(test)]
mod tokens;

/// A ttl so long that what happens in half of it did not wait for it.
#[cfg(test)]
pub(crate) const LONG: std::time::Duration = std::time::Duration::from_secs(20);
