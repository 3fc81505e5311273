//! The file backend among real processes: deaths, freezes, damage by hand, directories that cannot work.

mod crowd;
mod damage;
mod death;
mod directory;
mod process;
mod tokens;
