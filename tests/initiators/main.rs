//! Raw bytes against a running daemon: each fault that broke another target, and its kind (RFC 7143).
//!
//! A test's comment names the target that got it wrong. Every test asserts the right answer, and then that
//! the process lives, that a session next to it saw nothing of it, and that a newcomer can log in.
//! `EVENKEEL_TEST_TARGET=tgt` runs the same tests against tgt: some fail there, which shows that they can.

mod data;
mod fixture;
mod flood;
mod login;
mod reject;
mod scsi;
mod sequence;
mod session;
mod task_management;
