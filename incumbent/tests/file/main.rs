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
mod process;
#[cfg(test)]
mod tokens;
