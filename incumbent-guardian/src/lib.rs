//! The process between incumbent and what it runs: watches the deadline, kills the whole tree.
