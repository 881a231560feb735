//! Links between nodes over real sockets on loopback: which connection is kept, what strangers get, and what
//! becomes of packets.

mod links;
mod loss;
mod strangers;
mod traffic;
mod world;
