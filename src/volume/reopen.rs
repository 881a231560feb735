//! Opens a disk again while its resource runs.

use std::{fmt, sync::Arc};

use replication::Found;

use super::Stored;
use crate::disk::Backing;

/// A disk that can be used, and what is on it.
#[derive(Debug)]
pub struct Opened {
    /// The open files.
    pub backing: Backing,
    /// What the replication core stored.
    pub found: Found,
    /// What the SCSI side stored.
    pub stored: Stored,
}

/// Opens one disk of this node, as at a start. Blocks.
#[derive(Clone)]
pub struct Opener(pub Arc<dyn Fn() -> Result<Opened, String> + Send + Sync>);

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}
