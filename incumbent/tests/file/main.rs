//! The file backend among real processes: deaths, freezes, damage by hand, directories that cannot work.

mod death;
mod process;
