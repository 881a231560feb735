//! Keeps strangers from flooding the log.

use std::time::{Duration, Instant};

/// Lets a number of lines through in each window of time, and counts the rest.
#[derive(Debug, Default)]
pub struct Quota {
    since: Option<Instant>,
    logged: u32,
    left_out: u64,
}

/// Whether a line may be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may; so many were left out before it.
    Log {
        /// How many.
        left_out: u64,
    },
    /// It may not.
    LeaveOut,
}

impl Quota {
    /// Asks for one line at `now`.
    pub fn ask(&mut self, now: Instant) -> Verdict {
        let mut left_out = 0;
        if self.since.is_none_or(|since| now - since >= WINDOW) {
            left_out = self.left_out;
            *self = Self { since: Some(now), ..Self::default() };
        }
        if self.logged < LOGGED_MAX {
            self.logged += 1;
            Verdict::Log { left_out }
        } else {
            self.left_out += 1;
            Verdict::LeaveOut
        }
    }
}

const WINDOW: Duration = Duration::from_secs(10);
const LOGGED_MAX: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Security promise: a stranger cannot fill the log, and what was left out is told.
    #[test]
    fn a_flood_is_counted_not_logged() {
        let (mut quota, start) = (Quota::default(), Instant::now());
        let logged = (0..1000).filter(|_| quota.ask(start) != Verdict::LeaveOut).count();
        assert_eq!(logged, 20);
        assert_eq!(quota.ask(start + WINDOW), Verdict::Log { left_out: 980 });
    }
}
