//! Reads secrets from their files, which nobody else may read.

use std::{fs::File, io::Read, os::unix::fs::MetadataExt, path::Path};

use anyhow::Context;
use ops::config::{Chap, Cluster, Secret, SecretError};

/// The secret that the nodes of a cluster prove to each other, where there is one.
///
/// # Errors
/// When the file cannot be read, or is no good as a secret's.
pub fn cluster(cluster: &Cluster) -> anyhow::Result<Option<Secret>> {
    cluster.secret_file.as_deref().map(|path| read(path, Secret::cluster)).transpose()
}

/// The secret of a user of CHAP.
///
/// # Errors
/// When the file cannot be read, or is no good as a secret's.
pub fn chap(chap: &Chap) -> anyhow::Result<Secret> {
    read(&chap.secret_file, Secret::chap)
}

fn read(path: &Path, check: fn(Vec<u8>, u32) -> Result<Secret, SecretError>) -> anyhow::Result<Secret> {
    let shown = path.display();
    let mut file = File::open(path).with_context(|| format!("cannot open the secret's file {shown}"))?;
    let mode = file.metadata()?.mode();
    let mut content = Vec::new();
    file.by_ref()
        .take(FILE_MAX)
        .read_to_end(&mut content)
        .with_context(|| format!("cannot read the secret's file {shown}"))?;
    check(content, mode).with_context(|| shown.to_string())
}

/// What is read of a file at most, in bytes: more than any secret.
const FILE_MAX: u64 = 4096;
