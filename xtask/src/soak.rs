//! stub
pub(crate) fn run(_h: f64) -> anyhow::Result<()> {
    Ok(())
}
