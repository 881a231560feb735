//! `docs/configuration.md` says what the code does.

use std::{env, fs, path::Path};

/// The reference is written from the parser's own catalogue, so it cannot drift. `EVENKEEL_WRITE_DOCS=1` writes it.
#[test]
fn the_reference_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    if env::var_os("EVENKEEL_WRITE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, ops::config::reference()).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    assert!(
        written == ops::config::reference(),
        "docs/configuration.md is old: EVENKEEL_WRITE_DOCS=1 cargo test -p ops --test reference",
    );
}
