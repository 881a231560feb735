//! One iSCSI connection on the shard of its target's resource.

use std::rc::Rc;

use super::listener::Accepted;
use crate::volume::Export;

/// Serves a session until it ends.
pub async fn serve(export: Rc<Export>, accepted: Accepted) {
    drop((export, accepted));
}
