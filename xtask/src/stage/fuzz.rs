//! stub
use super::*;
pub(super) fn run(_o: &Options) -> Result<Tally> {
    Ok(Tally::passed(0))
}
