//! Bully and the ring: the rules of the papers, what a majority adds to them, and how many messages an election takes. And
//! a random simulation of all protocols.

mod bully;
mod counts;
mod dice;
mod members;
mod net;
mod ring;
mod sim;
