//! Who an initiator is, and what it wants.

use super::super::chap::Credentials;
use super::super::keys::{DATA_SEGMENT_MAX, Parameters};
use super::super::pdu::{Digests, Isid};

/// Who logs in, to what, on which terms.
#[derive(Clone, Debug)]
pub struct Settings {
    /// InitiatorName.
    pub initiator: String,
    /// TargetName; `None` for a discovery session.
    pub target: Option<String>,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// What the initiator proves. Without it the login starts in the operational stage.
    pub chap: Option<Credentials>,
    /// What the target has to prove.
    pub mutual: Option<Credentials>,
    /// 17 random bytes: identifier and challenge of a mutual CHAP.
    pub nonce: [u8; 17],
    /// The digests to ask for.
    pub digests: Digests,
    /// What to offer: immediate data, unsolicited data, bursts.
    pub offer: Parameters,
}

impl Settings {
    /// A normal session without authentication and digests, which asks for what saves most round trips.
    #[must_use]
    pub fn new(initiator: &str, target: &str) -> Self {
        Self {
            initiator: initiator.to_owned(),
            target: Some(target.to_owned()),
            isid: Isid([0x80, 0, 0, 0, 0, 1]),
            chap: None,
            mutual: None,
            nonce: [0; 17],
            digests: Digests::default(),
            offer: Parameters {
                peer_data_segment_max: DATA_SEGMENT_MAX,
                initial_r2t: false,
                burst_max: 1 << 20,
                first_burst_max: 262_144,
                r2t_max: 8,
                ..Parameters::default()
            },
        }
    }

    /// A discovery session.
    #[must_use]
    pub fn discovery(initiator: &str) -> Self {
        Self { target: None, ..Self::new(initiator, "") }
    }
}
