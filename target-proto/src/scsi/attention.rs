//! Unit attention conditions (SAM-5 5.14): what happened to a logical unit that one nexus has not been told.

use super::sense::{Additional, Sense, SenseKey};

/// The conditions that wait for one nexus on one logical unit, in the order they arose. Each waits once, so that
/// there are never more than there are kinds.
#[derive(Clone, Debug, Default)]
pub(super) struct Attentions(Vec<Additional>);

impl Attentions {
    /// Adds a condition; a reset goes before all others (SAM-5 table 50).
    pub(super) fn raise(&mut self, condition: Additional) {
        if self.0.contains(&condition) {
            return;
        }
        let at = if condition.code == RESET { 0 } else { self.0.len() };
        self.0.insert(at, condition);
    }

    /// Takes the condition that waits longest.
    pub(super) fn take(&mut self) -> Option<Sense> {
        (!self.0.is_empty()).then(|| Sense::new(SenseKey::UnitAttention, self.0.remove(0)))
    }

    /// The condition is known in another way now.
    pub(super) fn clear(&mut self, condition: Additional) {
        self.0.retain(|waiting| *waiting != condition);
    }
}

/// The code that POWER ON, RESET and NEXUS LOSS share.
const RESET: u8 = Additional::POWER_ON_OR_RESET.code;

#[cfg(test)]
mod tests {
    use super::*;

    /// SAM-5 5.14: each condition is reported once, and the queue stays as short as there are kinds.
    #[test]
    fn each_condition_waits_once() {
        let mut attentions = Attentions::default();
        for _ in 0..3 {
            attentions.raise(Additional::CAPACITY_CHANGED);
            attentions.raise(Additional::LUNS_CHANGED);
        }
        attentions.clear(Additional::LUNS_CHANGED);
        let sense = attentions.take().unwrap();
        assert_eq!((sense.key, sense.additional), (SenseKey::UnitAttention, Additional::CAPACITY_CHANGED));
        assert_eq!(attentions.take(), None);
    }

    /// SAM-5 5.14: a reset is told first, and what happened beside it is not lost.
    #[test]
    fn a_reset_comes_first() {
        let mut attentions = Attentions::default();
        attentions.raise(Additional::CAPACITY_CHANGED);
        attentions.raise(Additional::DEVICE_RESET);
        assert_eq!(attentions.take().unwrap().additional, Additional::DEVICE_RESET);
        assert_eq!(attentions.take().unwrap().additional, Additional::CAPACITY_CHANGED);
        assert_eq!(attentions.take(), None);
    }
}
