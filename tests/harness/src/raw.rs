//! An initiator that builds its PDUs by hand (RFC 7143), so that a test can send what no initiator would.

mod connection;
mod login;
mod pdu;
mod session;

pub use connection::{Connection, Received};
pub use login::{Login, LoginAnswer};
pub use pdu::{Pdu, cdb, opcode};
pub use session::{Direction, Outcome, Session, Task};
